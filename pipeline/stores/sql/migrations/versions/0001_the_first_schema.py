"""The first schema"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def ascii_bin(length: int) -> sa.types.TypeEngine[str]:
    """Compares byte by byte on MySQL and MariaDB, as on SQLite."""
    binary = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(binary, "mysql", "mariadb")


Id = ascii_bin(36)
Digest = ascii_bin(64)
Word = ascii_bin(32)
Prose = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    op.create_table(
        "builds",
        sa.Column("id", Id, nullable=False),
        sa.Column("collection", sa.String(length=64), nullable=False),
        sa.Column("contract", sa.JSON(), nullable=False),
        sa.Column("contract_digest", Digest, nullable=False),
        sa.Column("state", Word, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        **MYSQL,
    )
    op.create_table(
        "documents",
        sa.Column("id", Id, nullable=False),
        sa.Column("org", sa.String(length=255), nullable=False),
        sa.Column("source_uri", Prose, nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("last_revision", sa.Integer(), nullable=False),
        sa.Column("current_revision", sa.Integer(), nullable=True),
        sa.Column("current_version_id", Id, nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        **MYSQL,
    )
    op.create_index("documents_org", "documents", ["org"], unique=False)
    op.create_table(
        "page_tasks",
        sa.Column("id", Serial, autoincrement=True, nullable=False),
        sa.Column("page_id", sa.BigInteger(), nullable=False),
        sa.Column("version_id", Id, nullable=False),
        sa.Column("build_id", Id, nullable=True),
        sa.Column("stage", Word, nullable=False),
        sa.Column("fingerprint", Digest, nullable=False),
        sa.Column("code_version", sa.Integer(), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("state", Word, nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("order_key", sa.BigInteger(), nullable=False),
        sa.Column("available_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_window", sa.Integer(), nullable=False),
        sa.Column("token", Id, nullable=True),
        sa.Column("worker", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("outputs", sa.JSON(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=True),
        sa.Column("error_code", Word, nullable=True),
        sa.Column("error_message", Prose, nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("page_id", "stage", "fingerprint", name="page_tasks_identity"),
        **MYSQL,
    )
    op.create_index("page_tasks_claim", "page_tasks", ["stage", "state", "priority", "order_key", "id"], unique=False)
    op.create_index("page_tasks_finished", "page_tasks", ["finished_at"], unique=False)
    op.create_index("page_tasks_lease", "page_tasks", ["state", "lease_until"], unique=False)
    op.create_index("page_tasks_token", "page_tasks", ["token"], unique=False)
    op.create_index("page_tasks_version", "page_tasks", ["version_id", "state"], unique=False)
    op.create_table(
        "pages",
        sa.Column("id", Serial, autoincrement=True, nullable=False),
        sa.Column("version_id", Id, nullable=False),
        sa.Column("page_index", sa.Integer(), nullable=False),
        sa.Column("page_label", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("version_id", "page_index", name="pages_index"),
        **MYSQL,
    )
    op.create_table(
        "profiles",
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("digest", Digest, nullable=False),
        sa.Column("adopted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("revision"),
        **MYSQL,
    )
    op.create_table(
        "served_pages",
        sa.Column("version_id", Id, nullable=False),
        sa.Column("build_id", Id, nullable=False),
        sa.Column("page_index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("point_id", Id, nullable=False),
        sa.Column("image", sa.JSON(), nullable=False),
        sa.Column("text", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("version_id", "build_id", "page_index"),
        sa.UniqueConstraint("point_id", name="served_pages_point"),
        **MYSQL,
    )
    op.create_table(
        "submissions",
        sa.Column("id", Id, nullable=False),
        sa.Column("document_id", Id, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("state", Word, nullable=False),
        sa.Column("version_id", Id, nullable=True),
        sa.Column("error_code", Word, nullable=True),
        sa.Column("error_message", Prose, nullable=True),
        sa.Column("error_stage", Word, nullable=True),
        sa.Column("error_page", sa.Integer(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("token", Id, nullable=True),
        sa.Column("worker", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("available_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("document_id", "revision", name="submissions_revision"),
        **MYSQL,
    )
    op.create_index("submissions_claim", "submissions", ["state", "created_at"], unique=False)
    op.create_index("submissions_version", "submissions", ["version_id"], unique=False)
    op.create_table(
        "version_builds",
        sa.Column("version_id", Id, nullable=False),
        sa.Column("build_id", Id, nullable=False),
        sa.Column("state", Word, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("token", Id, nullable=True),
        sa.Column("worker", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("version_id", "build_id"),
        **MYSQL,
    )
    op.create_index("version_builds_state", "version_builds", ["state", "updated_at"], unique=False)
    op.create_table(
        "versions",
        sa.Column("id", Id, nullable=False),
        sa.Column("document_id", Id, nullable=False),
        sa.Column("sha256", Digest, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("source_key", sa.String(length=255), nullable=False),
        sa.Column("page_count", sa.Integer(), nullable=False),
        sa.Column("title", Prose, nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("profile_revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("document_id", "sha256", name="versions_content"),
        **MYSQL,
    )
    op.create_index("versions_profile", "versions", ["profile_revision"], unique=False)


def downgrade() -> None:
    op.drop_index("versions_profile", table_name="versions")
    op.drop_table("versions")
    op.drop_index("version_builds_state", table_name="version_builds")
    op.drop_table("version_builds")
    op.drop_index("submissions_version", table_name="submissions")
    op.drop_index("submissions_claim", table_name="submissions")
    op.drop_table("submissions")
    op.drop_table("served_pages")
    op.drop_table("profiles")
    op.drop_table("pages")
    op.drop_index("page_tasks_version", table_name="page_tasks")
    op.drop_index("page_tasks_token", table_name="page_tasks")
    op.drop_index("page_tasks_lease", table_name="page_tasks")
    op.drop_index("page_tasks_finished", table_name="page_tasks")
    op.drop_index("page_tasks_claim", table_name="page_tasks")
    op.drop_table("page_tasks")
    op.drop_index("documents_org", table_name="documents")
    op.drop_table("documents")
    op.drop_table("builds")
