"""What the ledger says is in the object store and in the index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, or_, select

from pipeline.domain import (
    ArtifactRef,
    ExpectedObject,
    ExpectedPoint,
    IndexBuild,
    StageName,
    SubmissionState,
    TaskState,
)
from pipeline.identity import point_id
from pipeline.payload import payload_of
from pipeline.stores.sql import records
from pipeline.stores.sql.advancing import live_builds
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.tables import (
    documents,
    page_tasks,
    pages,
    served_pages,
    submissions,
    uploads,
    version_builds,
    versions,
    waivers,
)
from pipeline.stores.sql.tasks import Tasks

VERSIONS_AT_ONCE = 200
Expected = tuple[list[ExpectedObject], list[ExpectedPoint]]


class Audits:
    """See `pipeline.protocols.Audits` for the contract."""

    def __init__(self, database: Database, tasks: Tasks) -> None:
        self._database = database
        self._tasks = tasks

    def versions(self) -> Iterator[str]:
        last = ""
        while batch := self._database.read(lambda connection, after=last: _versions_after(connection, after)):  # type: ignore[misc]
            yield from batch
            last = batch[-1]

    def expected(self, version_id: str) -> Expected:
        return self._database.read(lambda connection: _expected(connection, version_id))

    def kept(self, document_id: str, version_id: str, grace_s: float) -> set[str]:
        return self._database.read(
            lambda connection: _kept(connection, document_id, version_id, self._before(connection, grace_s))
        )

    def points(self, build: IndexBuild, grace_s: float) -> set[str]:
        return self._database.read(lambda connection: _points(connection, build, self._before(connection, grace_s)))

    def reopen(self, task_ids: Sequence[int]) -> int:
        def work(connection: Connection) -> int:
            done = page_tasks.c.id.in_(task_ids), page_tasks.c.state == TaskState.DONE
            count = len(connection.execute(select(page_tasks.c.id).where(*done)).all())
            self._tasks.reopen(connection, task_ids, self._database.now(connection))
            return count

        return self._database.write(work)

    def deleted(self, grace_s: float) -> list[str]:
        def work(connection: Connection) -> list[str]:
            left = select(versions.c.document_id)
            old = documents.c.deleted_at < self._before(connection, grace_s), documents.c.id.in_(left)
            return list(connection.execute(select(documents.c.id).where(*old)).scalars())

        return self._database.read(work)

    def forget(self, document_id: str) -> None:
        def work(connection: Connection) -> None:
            deleted = documents.c.id == document_id, documents.c.deleted_at.is_not(None)
            if connection.execute(select(documents.c.id).where(*deleted).with_for_update()).first():
                _forget(connection, document_id)

        self._database.write(work)

    def _before(self, connection: Connection, grace_s: float) -> int:
        return self._database.now(connection) - int(grace_s * 1e6)


def _versions_after(connection: Connection, last: str) -> list[str]:
    query = (
        select(versions.c.id)
        .join(documents, documents.c.id == versions.c.document_id)
        .where(versions.c.id > last, documents.c.deleted_at.is_(None))
        .order_by(versions.c.id)
        .limit(VERSIONS_AT_ONCE)
    )
    return list(connection.execute(query).scalars())


def _expected(connection: Connection, version_id: str) -> Expected:
    version = connection.execute(
        select(versions, documents.c.org, documents.c.current_version_id, documents.c.generation)
        .join(documents, documents.c.id == versions.c.document_id)
        .where(versions.c.id == version_id, documents.c.deleted_at.is_(None))
    ).first()
    if version is None:  # deleted since it was listed
        return [], []
    source = ArtifactRef(key=version.source_key, sha256=version.sha256, size=version.size)
    rows = connection.execute(_tasks(version_id).where(page_tasks.c.state == TaskState.DONE)).all()
    objects = [ExpectedObject(ref=ref, task_id=row.id) for row in rows for ref in records.refs(row.outputs).values()]
    manifest = select(served_pages.c.point_id).where(served_pages.c.version_id == version_id)
    served = set(connection.execute(manifest).scalars()) if version.current_version_id == version_id else set()
    builds = {build.id: build for build in live_builds(connection)}
    indexed = [row for row in rows if row.stage == StageName.INDEX and row.build_id in builds]
    points = [_point(row, version, builds[row.build_id], served) for row in indexed]
    return [ExpectedObject(ref=source, task_id=None), *objects], points


def _tasks(version_id: str) -> Any:
    return (
        select(page_tasks, pages.c.page_index, pages.c.page_label)
        .join(pages, pages.c.id == page_tasks.c.page_id)
        .where(page_tasks.c.version_id == version_id)
    )


def _point(row: AnyRow, version: AnyRow, build: IndexBuild, served: set[str]) -> ExpectedPoint:
    name = point_id(build.id, version.id, row.page_index, row.fingerprint)
    payload = payload_of(
        org=version.org,
        document_id=version.document_id,
        version_id=version.id,
        page_index=row.page_index,
        page_label=row.page_label,
        build=build,
        about=row.recipe.get("about", {}),
    )
    return ExpectedPoint(
        point_id=name,
        task_id=row.id,
        build=build,
        n_tokens=row.facts["n_tokens"],
        payload=payload,
        served=name in served,
        generation=version.generation,
    )


def _kept(connection: Connection, document_id: str, version_id: str, before: int) -> set[str]:
    """Also of rows that are not done: what they were made from, and what they may be about to write again."""
    named: set[str] = set()
    waiting = submissions.c.document_id == document_id, submissions.c.state == SubmissionState.QUEUED
    for upload in connection.execute(select(submissions.c.upload).where(*waiting)).scalars():
        named |= {upload["key"]} if upload else set()
    prefix = f"{document_id}/{version_id}/"
    named |= set(connection.execute(select(uploads.c.key).where(uploads.c.key.startswith(prefix))).scalars())
    version = connection.execute(_not_long_deleted(before).where(versions.c.id == version_id)).first()
    if version is None:
        return named
    named.add(version.source_key)
    for row in connection.execute(_tasks(version_id)):
        named |= {ref.key for ref in records.refs(row.outputs).values()}
        named |= {ref.key for ref in records.refs(row.recipe["inputs"]).values()}
    for row in connection.execute(select(served_pages).where(served_pages.c.version_id == version_id)):
        named |= {row.image["key"], row.text["key"]}
    return named


def _not_long_deleted(before: int) -> Any:
    alive = or_(documents.c.deleted_at.is_(None), documents.c.deleted_at >= before)
    return select(versions).join(documents, documents.c.id == versions.c.document_id).where(alive)


def _points(connection: Connection, build: IndexBuild, before: int) -> set[str]:
    """Whatever the state of its row: a point may be there before its row is done."""
    query = (
        _not_long_deleted(before)
        .join(page_tasks, and_(page_tasks.c.version_id == versions.c.id, page_tasks.c.build_id == build.id))
        .join(pages, pages.c.id == page_tasks.c.page_id)
        .where(page_tasks.c.stage == StageName.INDEX)
        .with_only_columns(versions.c.id, pages.c.page_index, page_tasks.c.fingerprint)
    )
    return {point_id(build.id, *row) for row in connection.execute(query)}


def _forget(connection: Connection, document_id: str) -> None:
    of_document = select(versions.c.id).where(versions.c.document_id == document_id)
    for table in (served_pages, page_tasks, pages, version_builds, waivers):
        connection.execute(delete(table).where(table.c.version_id.in_(of_document)))
    connection.execute(delete(versions).where(versions.c.document_id == document_id))
