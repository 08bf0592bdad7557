"""Versions waiting for their gate, and what the gate writes when it is done."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, func, insert, or_, select, update

from pipeline.advance import prove_page
from pipeline.domain import (
    BuildState,
    GateReport,
    GateVerdict,
    GateWork,
    IndexBuild,
    PageProof,
    SubmissionState,
    VersionBuildState,
)
from pipeline.stores.sql import records
from pipeline.stores.sql.advancing import OPEN_TASKS, advance_version, plan_pages
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.submissions import end
from pipeline.stores.sql.tables import (
    FREE,
    builds,
    documents,
    page_tasks,
    pages,
    served_pages,
    submissions,
    version_builds,
    versions,
    waivers,
)
from pipeline.stores.sql.tasks import Tasks

PAGES_AT_ONCE = 500


class Gates:
    """See `pipeline.protocols.GateQueue` for the contract."""

    def __init__(self, database: Database, tasks: Tasks) -> None:
        self._database = database
        self._tasks = tasks

    def pending(self) -> bool:
        return self._database.read(lambda connection: connection.execute(_ready().limit(1)).first() is not None)

    def claim(self, lease_s: float, worker: str) -> GateWork | None:
        if not self.pending():
            return None
        token = str(uuid.uuid4())
        return self._database.write(lambda connection: self._claim(connection, lease_s, worker, token))

    def renew(self, token: str, lease_s: float) -> bool:
        def work(connection: Connection) -> bool:
            lease_until = self._database.now(connection) + int(lease_s * 1e6)
            statement = update(version_builds).where(version_builds.c.token == token)
            return connection.execute(statement.values(lease_until=lease_until)).rowcount > 0

        return self._database.write(work)

    def settle(self, work: GateWork, report: GateReport) -> GateVerdict:
        return self._database.write(lambda connection: self._settle(connection, work, report))

    def release(self, worker: str | None) -> int:
        """Give back what `worker` holds; None: what anybody holds."""
        return self._database.write(lambda connection: _expire(connection, worker))

    def sweep(self) -> int:
        def work(connection: Connection) -> int:
            return _expire(connection, None, before=self._database.now(connection))

        return self._database.write(work)

    def _claim(self, connection: Connection, lease_s: float, worker: str, token: str) -> GateWork | None:
        now = self._database.now(connection)
        chosen = connection.execute(_of_token(token)).first()  # of a commit whose answer was lost
        chosen = chosen or connection.execute(_ready().limit(1).with_for_update(skip_locked=True)).first()
        if chosen is None:
            return None
        context = connection.execute(_context(chosen)).one()
        build = records.build(context)
        proofs = _prove(connection, context.version_id, context.page_count, build)
        if proofs is None:  # a step was never inserted: do that now, and let the gate come again
            advance_version(connection, context.version_id, now)
            _touch(connection, chosen, now)
            return None
        lease = {
            "state": VersionBuildState.VALIDATING,
            "token": token,
            "worker": worker,
            "lease_until": now + int(lease_s * 1e6),
        }
        connection.execute(update(version_builds).where(*_same(chosen)).values(**lease))
        return GateWork(
            token=token,
            org=context.org,
            document_id=context.document_id,
            version_id=context.version_id,
            build=build,
            epoch=context.epoch,
            generation=context.generation,
            page_count=context.page_count,
            about=records.about(context),
            pages=proofs,
        )

    def _settle(self, connection: Connection, work: GateWork, report: GateReport) -> GateVerdict:
        now = self._database.now(connection)
        build = connection.execute(select(builds).where(builds.c.id == work.build.id).with_for_update()).one()
        document = connection.execute(
            select(documents).where(documents.c.id == work.document_id).with_for_update()
        ).one()
        mine = [version_builds.c.version_id == work.version_id, version_builds.c.build_id == work.build.id]
        held = connection.execute(select(version_builds).where(*mine).with_for_update()).first()
        if held is None:  # its document was deleted, and swept since
            return GateVerdict.STALE
        if held.token != work.token or held.epoch != work.epoch or held.state != VersionBuildState.VALIDATING:
            return GateVerdict.PROMOTED if _was_promoted(work, held, document) else GateVerdict.STALE
        if report.reopen:
            self._tasks.reopen(connection, report.reopen, now)
            return GateVerdict.REOPENED
        values: dict[str, Any] = {"report": dataclasses.asdict(report), "updated_at": now} | FREE
        if report.accepted and document.generation != work.generation:
            values |= {"state": VersionBuildState.PROCESSING}
        else:
            accepted, rejected = VersionBuildState.ACCEPTED, VersionBuildState.REJECTED
            values |= {"state": accepted if report.accepted else rejected}
        connection.execute(update(version_builds).where(*mine).values(**values))
        if values["state"] == VersionBuildState.PROCESSING:
            return GateVerdict.STALE
        active = build.state == BuildState.ACTIVE
        if not report.accepted:
            return _reject(connection, work, report, now, active=active)
        _write_manifest(connection, work)
        return _promote(connection, work, document, now) if active else GateVerdict.ACCEPTED


def _ready() -> Any:
    """Versions to be validated, oldest first, of which nothing is still to be done."""
    still_open = exists().where(
        page_tasks.c.version_id == version_builds.c.version_id,
        page_tasks.c.state.in_(OPEN_TASKS),
        or_(page_tasks.c.build_id.is_(None), page_tasks.c.build_id == version_builds.c.build_id),
    )
    return (
        select(version_builds.c.version_id, version_builds.c.build_id)
        .where(version_builds.c.state == VersionBuildState.PROCESSING, ~still_open)
        .order_by(version_builds.c.updated_at)
    )


def _of_token(token: str) -> Any:
    return select(version_builds.c.version_id, version_builds.c.build_id).where(version_builds.c.token == token)


def _was_promoted(work: GateWork, held: AnyRow, document: AnyRow) -> bool:
    """Whether this very gate has settled before, and the answer to its commit was lost."""
    accepted = held.epoch == work.epoch and held.state == VersionBuildState.ACCEPTED
    current = document.current_version_id == work.version_id and document.generation == work.generation + 1
    return bool(accepted and current)


def _same(chosen: AnyRow) -> list[Any]:
    return [
        version_builds.c.version_id == chosen.version_id,
        version_builds.c.build_id == chosen.build_id,
    ]


def _context(chosen: AnyRow) -> Any:
    return (
        select(
            builds,
            version_builds.c.version_id,
            version_builds.c.epoch,
            versions.c.page_count,
            versions.c.title,
            versions.c.metadata,
            documents.c.id.label("document_id"),
            documents.c.org,
            documents.c.generation,
        )
        .join(version_builds, version_builds.c.build_id == builds.c.id)
        .join(versions, versions.c.id == version_builds.c.version_id)
        .join(documents, documents.c.id == versions.c.document_id)
        .where(*_same(chosen))
    )


def _prove(connection: Connection, version_id: str, page_count: int, build: IndexBuild) -> list[PageProof] | None:
    """One proof a page, in page order; None if any page is not finished.

    Some pages at a time: their rows hold far more than a proof does, and a version may have 10,000 of them.
    """
    proofs: list[PageProof] = []
    decided = waived(connection, version_id)
    for first in range(0, page_count, PAGES_AT_ONCE):
        piece = [pages.c.version_id == version_id, pages.c.page_index >= first]
        if first + PAGES_AT_ONCE < page_count:  # the last piece has whatever lies behind, too
            piece.append(pages.c.page_index < first + PAGES_AT_ONCE)
        for page in plan_pages(connection, and_(*piece), [build]):
            proof = prove_page(version_id, page.row.page_index, page.row.page_label, page.steps, build)
            if proof is None:
                return None
            proofs.append(_with_waiver(proof, decided))
    return sorted(proofs, key=lambda proof: proof.page_index)


def is_served(connection: Connection, version_id: str, page_count: int, build: IndexBuild) -> bool:
    """Whether the manifest, if there is one, is what the plan in force makes of this version, as far as it is done."""
    mine = served_pages.c.version_id == version_id, served_pages.c.build_id == build.id
    manifest = {row.page_index: row for row in connection.execute(select(served_pages).where(*mine))}
    proofs = _prove(connection, version_id, page_count, build) if manifest else None
    wanted = {proof.page_index: proof for proof in proofs or () if proof.point_id}
    return not wanted or {
        index: (proof.point_id, records.stored(proof.artifacts)) for index, proof in wanted.items()
    } == {index: (row.point_id, {"image": row.image, "text": row.text}) for index, row in manifest.items()}


def waived(connection: Connection, version_id: str) -> set[tuple[int, str, str]]:
    """Page index, stage and error code of the failures that somebody decided to do without."""
    query = select(waivers).where(waivers.c.version_id == version_id)
    return {(row.page_index, row.stage, row.error_code) for row in connection.execute(query)}


def _with_waiver(proof: PageProof, decided: set[tuple[int, str, str]]) -> PageProof:
    failure = proof.failure
    if failure is None or (failure.page_index, failure.stage, failure.code) not in decided:
        return proof
    return dataclasses.replace(proof, failure=dataclasses.replace(failure, waived=True))


def _touch(connection: Connection, chosen: AnyRow, now: int) -> None:
    connection.execute(update(version_builds).where(*_same(chosen)).values(updated_at=now))


def _expire(connection: Connection, worker: str | None, before: int | None = None) -> int:
    held = [version_builds.c.state == VersionBuildState.VALIDATING]
    held += [version_builds.c.worker == worker] if worker else []
    held += [version_builds.c.lease_until < before] if before is not None else []
    values = {"state": VersionBuildState.PROCESSING} | FREE
    return connection.execute(update(version_builds).where(*held).values(**values)).rowcount


def _write_manifest(connection: Connection, work: GateWork) -> None:
    mine = served_pages.c.version_id == work.version_id, served_pages.c.build_id == work.build.id
    connection.execute(delete(served_pages).where(*mine))
    described = version_builds.c.version_id == work.version_id, version_builds.c.build_id == work.build.id
    missing = [proof.page_index for proof in work.pages if not proof.point_id]
    about = {**work.about, "missing_pages": missing}
    connection.execute(update(version_builds).where(*described).values(about=about))
    rows = [
        {
            "version_id": work.version_id,
            "build_id": work.build.id,
            "page_index": proof.page_index,
            "point_id": proof.point_id,
            **records.stored(proof.artifacts),
        }
        for proof in work.pages
        if proof.point_id
    ]
    connection.execute(insert(served_pages), rows)


def _promote(connection: Connection, work: GateWork, document: AnyRow, now: int) -> GateVerdict:
    """Make the version current if the latest submission that names it is later than the current one."""
    of_version = submissions.c.version_id == work.version_id
    query = select(func.max(submissions.c.revision)).where(
        of_version, submissions.c.state.in_([SubmissionState.PROCESSING, SubmissionState.SEARCHABLE])
    )
    revision = connection.execute(query).scalar() or 0
    end(connection, of_version, SubmissionState.SEARCHABLE, now)
    newer = revision > (document.current_revision or 0)
    if document.deleted_at is not None or not (newer or document.current_version_id == work.version_id):
        return GateVerdict.ACCEPTED
    values = {"generation": document.generation + 1, "current_version_id": work.version_id}
    values |= {"current_revision": max(revision, document.current_revision or 0)}
    connection.execute(update(documents).where(documents.c.id == document.id).values(**values))
    return GateVerdict.PROMOTED


def _reject(connection: Connection, work: GateWork, report: GateReport, now: int, *, active: bool) -> GateVerdict:
    if active:
        of_version = submissions.c.version_id == work.version_id
        end(connection, of_version, SubmissionState.REJECTED, now, report.failures[0])
    return GateVerdict.REJECTED
