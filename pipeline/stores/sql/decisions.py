"""What a person decides about documents: to delete them, to try again, to do without a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, insert, or_, select, update

from pipeline.advance import prove_page
from pipeline.domain import (
    BuildState,
    PageFailure,
    SubmissionState,
    TaskState,
    VersionBuildState,
    Waiver,
)
from pipeline.errors import ConfigurationError, NotFound
from pipeline.stores.sql.advancing import OPEN_TASKS, advance_version, live_builds, plan_pages, reopen_gates
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.gates import waived
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.submissions import NO_ERROR, end
from pipeline.stores.sql.tables import (
    FREE,
    documents,
    page_tasks,
    pages,
    submissions,
    version_builds,
    versions,
    waivers,
)

DELETED = PageFailure(page_index=-1, stage="delete", code="deleted", message="the document was deleted")
UNENDED = {"ended_at": None, "waiting_since": None, **NO_ERROR}


class Decisions:
    """See `pipeline.protocols.Decisions` for the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def delete(self, org: str, name: str) -> list[str]:
        def work(connection: Connection) -> list[str]:
            now = self._database.now(connection)
            found = _documents(connection, org, name)
            for document in found:
                _tombstone(connection, document, now)
            return [document.id for document in found]

        return self._database.write(work)

    def retry(self, org: str, name: str) -> int:
        def work(connection: Connection) -> int:
            now = self._database.now(connection)
            mine = _of(_documents(connection, org, name), name)
            sources = _take_in_again(connection, mine, now)
            of_name = select(submissions.c.version_id).where(mine, submissions.c.version_id.is_not(None))
            taken_in = sorted(set(connection.execute(of_name).scalars()))
            return sources + sum(_put_back(connection, version, now) for version in taken_in)

        return self._database.write(work)

    def waive(self, org: str, name: str, page_index: int, who: str, why: str) -> Waiver:
        def work(connection: Connection) -> Waiver:
            now = self._database.now(connection)
            version = _version(connection, _of(_documents(connection, org, name), name), name)
            failure = _failure(connection, version, page_index)
            waiver = Waiver(
                version_id=version,
                page_index=page_index,
                stage=failure.stage,
                error_code=failure.code,
                who=who,
                why=why,
            )
            if (page_index, failure.stage, failure.code) not in waived(connection, version):
                connection.execute(insert(waivers), [{**dataclasses.asdict(waiver), "created_at": now}])
                _validate_again(connection, version, now)
            return waiver

        return self._database.write(work)


def _named(name: str) -> Any:
    """Submissions of that id, or of the document, version or source of that name."""
    of_source = select(documents.c.id).where(documents.c.source_uri == name)
    return or_(
        submissions.c.id == name,
        submissions.c.document_id == name,
        submissions.c.version_id == name,
        submissions.c.document_id.in_(of_source),
    )


def _of(found: Sequence[AnyRow], name: str) -> Any:
    """The submissions that `name` means, of these documents and no others: another tenant may use the same URI."""
    return and_(_named(name), submissions.c.document_id.in_([document.id for document in found]))


def _documents(connection: Connection, org: str, name: str) -> Sequence[AnyRow]:
    """The documents of this org that `name` means, locked. Raises `NotFound` if there is none, or it is deleted."""
    of_submission = select(submissions.c.document_id).where(_named(name))
    mine = documents.c.org == org, documents.c.deleted_at.is_(None), documents.c.id.in_(of_submission)
    found = connection.execute(select(documents).where(*mine).order_by(documents.c.id).with_for_update()).all()
    if not found:
        raise NotFound(f"no document, version or submission {name} of org {org}: `pagegate status` lists what there is")
    return found


def _tombstone(connection: Connection, document: AnyRow, now: int) -> None:
    """A worker that is at it loses its lease, and a gate its epoch: what they write is nobody's."""
    grown = {"deleted_at": now, "generation": document.generation + 1}
    connection.execute(update(documents).where(documents.c.id == document.id).values(**grown))
    of_document = select(versions.c.id).where(versions.c.document_id == document.id)
    tasks = page_tasks.c.version_id.in_(of_document), page_tasks.c.state.in_(OPEN_TASKS)
    # The token stays: it tells how large a window was, should its other rows be lost.
    superseded = {"state": TaskState.SUPERSEDED, "waiting_since": None, "worker": None, "lease_until": None}
    connection.execute(update(page_tasks).where(*tasks).values(**superseded))
    unproved = [VersionBuildState.PROCESSING, VersionBuildState.VALIDATING]
    gates = version_builds.c.version_id.in_(of_document), version_builds.c.state.in_(unproved)
    closed = {"state": VersionBuildState.REJECTED, "epoch": version_builds.c.epoch + 1, "updated_at": now}
    connection.execute(update(version_builds).where(*gates).values(**closed, **FREE))
    end(connection, submissions.c.document_id == document.id, SubmissionState.FAILED, now, DELETED)


def _take_in_again(connection: Connection, mine: Any, now: int) -> int:
    """Sources that never became a version; of a document's several submissions each goes its own way again."""
    failed = mine, submissions.c.state == SubmissionState.FAILED, submissions.c.version_id.is_(None)
    values = {"state": SubmissionState.QUEUED, "attempts": 0, "available_at": now, **UNENDED, **FREE}
    return connection.execute(update(submissions).where(*failed).values(**values)).rowcount


def _put_back(connection: Connection, version_id: str, now: int) -> int:
    failed = page_tasks.c.version_id == version_id, page_tasks.c.state == TaskState.FAILED
    values = {"state": TaskState.PENDING, "attempts": 0, "available_at": now, "finished_at": None}
    values |= {"error_code": None, "error_message": None} | FREE
    count = connection.execute(update(page_tasks).where(*failed).values(**values)).rowcount
    if count:
        _validate_again(connection, version_id, now)
    return count


def _validate_again(connection: Connection, version_id: str, now: int) -> None:
    reopen_gates(connection, {version_id}, now)
    rejected = submissions.c.version_id == version_id, submissions.c.state == SubmissionState.REJECTED
    values = {"state": SubmissionState.PROCESSING, **UNENDED}
    connection.execute(update(submissions).where(*rejected).values(**values))
    advance_version(connection, version_id, now)


def _version(connection: Connection, mine: Any, name: str) -> str:
    """The version that `name` means: of a document or source, that of its latest submission that has one."""
    query = select(submissions.c.version_id).where(mine, submissions.c.version_id.is_not(None))
    found = connection.execute(query.order_by(submissions.c.revision.desc()).limit(1)).scalar()
    if found is None:
        raise NotFound(f"{name} has no version yet: its source was not taken in")
    return str(found)


def _failure(connection: Connection, version_id: str, page_index: int) -> PageFailure:
    """Why this page is held back in the active build. Raises `ConfigurationError` if it is not."""
    where = pages.c.version_id == version_id, pages.c.page_index == page_index
    for build in (build for build in live_builds(connection) if build.state == BuildState.ACTIVE):
        for page in plan_pages(connection, where[0] & where[1], [build]):
            proof = prove_page(version_id, page_index, page.row.page_label, page.steps, build)
            if proof and proof.failure:
                return proof.failure
    raise ConfigurationError(f"page {page_index} of version {version_id} has not failed: there is nothing to waive")
