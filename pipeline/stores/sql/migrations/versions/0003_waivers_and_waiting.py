"""Waivers; since when a row waits for something that is away"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def ascii_bin(length: int) -> sa.types.TypeEngine[str]:
    """Compares byte by byte on MySQL and MariaDB, as on SQLite."""
    binary = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(binary, "mysql", "mariadb")


Prose = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """Each step looks whether it was done: see 0002."""
    inspector = sa.inspect(op.get_bind())
    for table in ("submissions", "page_tasks"):
        if "waiting_since" not in {column["name"] for column in inspector.get_columns(table)}:
            op.add_column(table, sa.Column("waiting_since", sa.BigInteger()))
    if "waivers" not in inspector.get_table_names():
        op.create_table(
            "waivers",
            sa.Column("version_id", ascii_bin(36), nullable=False),
            sa.Column("page_index", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("stage", ascii_bin(32), nullable=False),
            sa.Column("error_code", ascii_bin(32), nullable=False),
            sa.Column("who", sa.String(length=255), nullable=False),
            sa.Column("why", Prose, nullable=False),
            sa.Column("created_at", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("version_id", "page_index", "stage", "error_code"),
            **MYSQL,
        )
