"""The tables of the ledger. Times are microseconds since the epoch by the database's clock.

Ids, orgs and digests compare byte by byte (binary collation). A change here needs a migration beside it: a test
compares the two.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql

MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}

metadata = MetaData()

FREE: dict[str, Any] = {"token": None, "worker": None, "lease_until": None}
"""A row that nobody holds."""

Id = String(36).with_variant(mysql.VARCHAR(36, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
Digest = String(64).with_variant(mysql.VARCHAR(64, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
Word = String(32).with_variant(mysql.VARCHAR(32, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
Key = String(255).with_variant(mysql.VARCHAR(255, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
Prose = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
Micros = BigInteger
Serial = BigInteger().with_variant(Integer, "sqlite")

profiles = Table(
    "profiles",
    metadata,
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("options", JSON, nullable=False),
    Column("digest", Digest, nullable=False),
    Column("adopted_at", Micros, nullable=False),
    **MYSQL,
)

builds = Table(
    "builds",
    metadata,
    Column("id", Id, primary_key=True),
    Column("collection", String(64), nullable=False),
    Column("contract", JSON, nullable=False),
    Column("contract_digest", Digest, nullable=False),
    Column("state", Word, nullable=False),
    Column("created_at", Micros, nullable=False),
    **MYSQL,
)

documents = Table(
    "documents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("org", String(255), nullable=False),
    Column("source_uri", Prose, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("last_revision", Integer, nullable=False),
    Column("current_revision", Integer),
    Column("current_version_id", Id),
    Column("generation", Integer, nullable=False),
    Column("deleted_at", Micros),
    Column("created_at", Micros, nullable=False),
    Index("documents_org", "org"),
    **MYSQL,
)

submissions = Table(
    "submissions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("document_id", Id, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("state", Word, nullable=False),
    Column("version_id", Id),
    Column("error_code", Word),
    Column("error_message", Prose),
    Column("error_stage", Word),
    Column("error_page", Integer),
    Column("attempts", Integer, nullable=False),
    Column("token", Id),
    Column("worker", String(64)),
    Column("lease_until", Micros),
    Column("available_at", Micros, nullable=False),
    Column("created_at", Micros, nullable=False),
    Column("ended_at", Micros),
    Column("upload", JSON),
    Column("waiting_since", Micros),
    UniqueConstraint("document_id", "revision", name="submissions_revision"),
    Index("submissions_claim", "state", "created_at"),
    Index("submissions_version", "version_id"),
    **MYSQL,
)

versions = Table(
    "versions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("document_id", Id, nullable=False),
    Column("sha256", Digest, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("source_key", String(255), nullable=False),
    Column("page_count", Integer, nullable=False),
    Column("title", Prose, nullable=False),
    Column("notes", JSON, nullable=False),
    Column("profile_revision", Integer, nullable=False),
    Column("created_at", Micros, nullable=False),
    Column("metadata", JSON),
    Column("metadata_revision", Integer),
    UniqueConstraint("document_id", "sha256", name="versions_content"),
    Index("versions_profile", "profile_revision"),
    **MYSQL,
)

pages = Table(
    "pages",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("version_id", Id, nullable=False),
    Column("page_index", Integer, nullable=False),
    Column("page_label", String(255), nullable=False),
    UniqueConstraint("version_id", "page_index", name="pages_index"),
    **MYSQL,
)

page_tasks = Table(
    "page_tasks",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("page_id", BigInteger, nullable=False),
    Column("version_id", Id, nullable=False),
    Column("build_id", Id),
    Column("stage", Word, nullable=False),
    Column("fingerprint", Digest, nullable=False),
    Column("code_version", Integer, nullable=False),
    Column("recipe", JSON, nullable=False),
    Column("state", Word, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("order_key", Micros, nullable=False),
    Column("available_at", Micros, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("max_window", Integer, nullable=False),
    Column("token", Id),
    Column("worker", String(64)),
    Column("lease_until", Micros),
    Column("outputs", JSON),
    Column("facts", JSON),
    Column("error_code", Word),
    Column("error_message", Prose),
    Column("seconds", Float),
    Column("finished_at", Micros),
    Column("waiting_since", Micros),
    UniqueConstraint("page_id", "stage", "fingerprint", name="page_tasks_identity"),
    Index("page_tasks_claim", "stage", "state", "priority", "order_key", "id"),
    Index("page_tasks_lease", "state", "lease_until"),
    Index("page_tasks_version", "version_id", "state"),
    Index("page_tasks_token", "token"),
    Index("page_tasks_finished", "finished_at"),
    **MYSQL,
)

version_builds = Table(
    "version_builds",
    metadata,
    Column("version_id", Id, primary_key=True),
    Column("build_id", Id, primary_key=True),
    Column("state", Word, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("report", JSON),
    Column("token", Id),
    Column("worker", String(64)),
    Column("lease_until", Micros),
    Column("updated_at", Micros, nullable=False),
    Column("about", JSON),
    Index("version_builds_state", "state", "updated_at"),
    **MYSQL,
)

served_pages = Table(
    "served_pages",
    metadata,
    Column("version_id", Id, primary_key=True),
    Column("build_id", Id, primary_key=True),
    Column("page_index", Integer, primary_key=True, autoincrement=False),
    Column("point_id", Id, nullable=False),
    Column("image", JSON, nullable=False),
    Column("text", JSON, nullable=False),
    UniqueConstraint("point_id", name="served_pages_point"),
    **MYSQL,
)

waivers = Table(
    "waivers",
    metadata,
    Column("version_id", Id, primary_key=True),
    Column("page_index", Integer, primary_key=True, autoincrement=False),
    Column("stage", Word, primary_key=True),
    Column("error_code", Word, primary_key=True),
    Column("who", String(255), nullable=False),
    Column("why", Prose, nullable=False),
    Column("created_at", Micros, nullable=False),
    **MYSQL,
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("submission_id", Id, nullable=False),
    Column("kind", Word, nullable=False),
    Column("outcome", JSON, nullable=False),
    Column("created_at", Micros, nullable=False),
    Column("available_at", Micros, nullable=False),
    Column("published_at", Micros),
    Column("error_code", Word),
    Column("error_message", Prose),
    Index("outbox_unpublished", "published_at", "id"),
    **MYSQL,
)

uploads = Table(
    "uploads",
    metadata,
    Column("key", Key, primary_key=True),
    Column("upload_id", Prose, nullable=False),
    Column("sha256", Digest, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("part_bytes", BigInteger, nullable=False),
    Column("noted_at", Micros, nullable=False),
    **MYSQL,
)

upload_parts = Table(
    "upload_parts",
    metadata,
    Column("key", Key, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("etag", String(255), nullable=False),
    **MYSQL,
)
