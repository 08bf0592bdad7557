"""What the business knows of a document; the outbox; sessions of uploads

On MySQL and MariaDB every statement is a transaction of its own: a migration that was killed half-way finds what it
has done, and goes on behind it.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def ascii_bin(length: int) -> sa.types.TypeEngine[str]:
    """Compares byte by byte on MySQL and MariaDB, as on SQLite."""
    binary = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(binary, "mysql", "mariadb")


Id = ascii_bin(36)
Digest = ascii_bin(64)
Word = ascii_bin(32)
Key = ascii_bin(255)
Prose = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    add_column("submissions", sa.Column("upload", sa.JSON()))
    add_column("versions", sa.Column("metadata", sa.JSON()))
    add_column("versions", sa.Column("metadata_revision", sa.Integer()))
    add_column("version_builds", sa.Column("about", sa.JSON()))
    create_table(
        "outbox",
        sa.Column("id", Serial, autoincrement=True, nullable=False),
        sa.Column("submission_id", Id, nullable=False),
        sa.Column("kind", Word, nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("available_at", sa.BigInteger(), nullable=False),
        sa.Column("published_at", sa.BigInteger()),
        sa.Column("error_code", Word),
        sa.Column("error_message", Prose),
        sa.PrimaryKeyConstraint("id"),
    )
    create_index("outbox_unpublished", "outbox", ["published_at", "id"])
    create_table(
        "uploads",
        sa.Column("key", Key, nullable=False),
        sa.Column("upload_id", Prose, nullable=False),
        sa.Column("sha256", Digest, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("part_bytes", sa.BigInteger(), nullable=False),
        sa.Column("noted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    create_table(
        "upload_parts",
        sa.Column("key", Key, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("etag", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("key", "number"),
    )


def create_table(name: str, *parts: Any) -> None:
    if name not in sa.inspect(op.get_bind()).get_table_names():
        op.create_table(name, *parts, **MYSQL)


def create_index(name: str, table: str, columns: list[str]) -> None:
    if name not in {known["name"] for known in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns)


def add_column(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {known["name"] for known in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)
