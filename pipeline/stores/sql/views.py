"""What people and searches ask of the ledger. Nothing here writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, literal, or_, select, union_all

from pipeline.batches import batches
from pipeline.domain import (
    ArtifactRef,
    IndexBuild,
    LedgerStatus,
    PageView,
    Quarantine,
    ServedPage,
    StageView,
    Submission,
    SubmissionState,
    TaskState,
    VersionBuildState,
    VersionView,
    Waiting,
)
from pipeline.metadata import DocumentMetadata, Period, Scope, in_force
from pipeline.stores.sql import records
from pipeline.stores.sql.advancing import OPEN_TASKS, PlannedPage, live_builds, plan_pages
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.submissions import submission_query
from pipeline.stores.sql.tables import (
    documents,
    outbox,
    page_tasks,
    pages,
    served_pages,
    submissions,
    version_builds,
    versions,
)

WAITING = ("error_code", "error_message", "waiting_since")
"""Columns that say what a row waits for."""


class Views:
    """See `pipeline.protocols.LedgerViews` for the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def idle(self) -> bool:
        return self._database.read(_idle)

    def status(self, org: str | None) -> LedgerStatus:
        return self._database.read(lambda connection: _status(connection, org, self._database.now(connection)))

    def waiting(self, version_id: str) -> list[Waiting]:
        def work(connection: Connection) -> list[Waiting]:
            mine = _waiting_tasks(page_tasks.c.version_id == version_id)
            return _by_reason(connection, mine, self._database.now(connection))

        return self._database.read(work)

    def progress(self, version_ids: Sequence[str]) -> dict[tuple[str, str], int]:
        def work(connection: Connection) -> dict[tuple[str, str], int]:
            counts: Counter[tuple[str, str]] = Counter()
            for batch in batches(version_ids):
                counts.update(_tasks_by_state(connection, page_tasks.c.version_id.in_(batch)))
            return dict(counts)

        return self._database.read(work)

    def submissions(self, ids: Sequence[str]) -> list[Submission]:
        def work(connection: Connection) -> list[Submission]:
            rows: list[AnyRow] = []
            for batch in batches(ids):
                rows += connection.execute(submission_query().where(submissions.c.id.in_(batch))).all()
            order = {submission: place for place, submission in enumerate(ids)}
            return sorted(map(records.submission, rows), key=lambda found: order[found.id])

        return self._database.read(work)

    def submissions_of(self, name: str, org: str | None) -> list[Submission]:
        """The submission of that id, or all those of the document of that id, oldest first."""

        def work(connection: Connection) -> list[Submission]:
            query = submission_query().where(or_(submissions.c.id == name, documents.c.id == name))
            if org:
                query = query.where(documents.c.org == org)
            return [records.submission(row) for row in connection.execute(query.order_by(submissions.c.revision))]

        return self._database.read(work)

    def served(self, build: IndexBuild, scope: Scope, point_ids: Sequence[str]) -> Mapping[str, ServedPage]:
        def work(connection: Connection) -> dict[str, ServedPage]:
            found: dict[str, ServedPage] = {}
            for batch in batches(point_ids):
                found |= _served(connection, build, scope, batch)
            return found

        return self._database.read(work)

    def manifest(self, version_id: str, build_id: str) -> list[tuple[int, str, ArtifactRef, ArtifactRef]]:
        """What is served of a version in a build: page index, point id, image and text, in page order."""

        def work(connection: Connection) -> list[tuple[int, str, ArtifactRef, ArtifactRef]]:
            mine = served_pages.c.version_id == version_id, served_pages.c.build_id == build_id
            query = select(served_pages).where(*mine).order_by(served_pages.c.page_index)
            return [
                (row.page_index, row.point_id, ArtifactRef(**row.image), ArtifactRef(**row.text))
                for row in connection.execute(query)
            ]

        return self._database.read(work)

    def version(self, version_id: str, org: str | None) -> VersionView | None:
        return self._database.read(lambda connection: _version(connection, version_id, org))

    def pages(self, version_id: str) -> list[PageView]:
        return self._database.read(lambda connection: _pages(connection, version_id))


def _idle(connection: Connection) -> bool:
    unfinished = [VersionBuildState.PROCESSING, VersionBuildState.VALIDATING]
    looks = [
        select(submissions.c.id).where(submissions.c.state == SubmissionState.QUEUED),
        select(page_tasks.c.id).where(page_tasks.c.state.in_(OPEN_TASKS)),
        select(version_builds.c.version_id).where(version_builds.c.state.in_(unfinished)),
    ]
    return all(connection.execute(look.limit(1)).first() is None for look in looks)


def _status(connection: Connection, org: str | None, now: int) -> LedgerStatus:
    mine = documents.c.org == org if org else literal(value=True)
    by_state = (
        select(submissions.c.state, func.count())
        .join(documents, documents.c.id == submissions.c.document_id)
        .where(mine)
        .group_by(submissions.c.state)
    )
    current = select(func.count(), func.coalesce(func.sum(versions.c.page_count), 0)).join(
        documents, documents.c.current_version_id == versions.c.id
    )
    searchable = connection.execute(current.where(mine, documents.c.deleted_at.is_(None))).one()
    return LedgerStatus(
        submissions=_pairs(connection, by_state),
        documents_searchable=searchable[0],
        pages_searchable=int(searchable[1]),
        tasks=_tasks_by_state(connection, _of_org(org)),
        rates=_rates(connection, now),
        waiting=_waiting(connection, org, now),
        quarantined=_quarantined(connection, org),
    )


def _pairs(connection: Connection, query: Any) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(query)}


def _tasks_by_state(connection: Connection, where: Any) -> dict[tuple[str, str], int]:
    query = (
        select(page_tasks.c.stage, page_tasks.c.state, func.count())
        .where(where)
        .group_by(page_tasks.c.stage, page_tasks.c.state)
    )
    return {(row[0], row[1]): row[2] for row in connection.execute(query)}


def _of_org(org: str | None) -> Any:
    if not org:
        return literal(value=True)
    of_org = (
        select(versions.c.id).join(documents, documents.c.id == versions.c.document_id).where(documents.c.org == org)
    )
    return page_tasks.c.version_id.in_(of_org)


def _rates(connection: Connection, now: int) -> dict[str, int]:
    """Pages finished in the last minute, by stage, of all orgs."""
    query = select(page_tasks.c.stage, func.count()).where(page_tasks.c.finished_at > now - 60_000_000)
    return _pairs(connection, query.group_by(page_tasks.c.stage))


def _quarantined(connection: Connection, org: str | None) -> list[Quarantine]:
    mine = documents.c.deleted_at.is_(None), documents.c.org == org if org else literal(value=True)
    query = (
        select(page_tasks.c.stage, page_tasks.c.error_code, func.count(), func.max(page_tasks.c.error_message))
        .join(versions, versions.c.id == page_tasks.c.version_id)
        .join(documents, documents.c.id == versions.c.document_id)
        .where(page_tasks.c.state == TaskState.FAILED, *mine)
        .group_by(page_tasks.c.stage, page_tasks.c.error_code)
        .order_by(page_tasks.c.stage, page_tasks.c.error_code)
    )
    return [
        Quarantine(stage=row[0], code=row[1] or "", pages=row[2], message=row[3] or "")
        for row in connection.execute(query)
    ]


def _waiting(connection: Connection, org: str | None, now: int) -> list[Waiting]:
    """What is put off, and on what: rows that go back again and again without being charged."""
    mine = documents.c.org == org if org else literal(value=True)
    columns = (submissions.c[name] for name in WAITING)
    intake = (
        select(literal("intake"), *columns)
        .join(documents, documents.c.id == submissions.c.document_id)
        .where(submissions.c.waiting_since.is_not(None), mine)
    )
    events = select(literal("outbox"), outbox.c.error_code, outbox.c.error_message, outbox.c.created_at).where(
        outbox.c.published_at.is_(None), outbox.c.error_code.is_not(None)
    )
    return _by_reason(connection, union_all(_waiting_tasks(_of_org(org)), intake, events), now)


def _waiting_tasks(where: Any) -> Any:
    columns = (page_tasks.c[name] for name in WAITING)
    open_ones = page_tasks.c.state.in_(OPEN_TASKS), page_tasks.c.waiting_since.is_not(None)
    return select(page_tasks.c.stage, *columns).where(*open_ones, where)


def _by_reason(connection: Connection, rows: Any, now: int) -> list[Waiting]:
    stage, code, message, since = rows.subquery().c
    query = select(stage, code, func.count(), func.max(message), func.min(since)).group_by(stage, code)
    return [
        Waiting(stage=row[0], code=row[1] or "", pages=row[2], message=row[3] or "", seconds=(now - row[4]) / 1e6)
        for row in connection.execute(query.order_by(stage, code))
    ]


def _served(connection: Connection, build: IndexBuild, scope: Scope, point_ids: Sequence[str]) -> dict[str, ServedPage]:
    """Those of the points that a search of this scope may answer with. This is where visibility is decided."""
    query = (
        select(
            served_pages,
            documents.c.org,
            documents.c.id.label("document_id"),
            documents.c.source_uri,
            documents.c.current_version_id,
            versions.c.title,
            versions.c.metadata,
            version_builds.c.about,
            pages.c.page_label,
        )
        .join(versions, versions.c.id == served_pages.c.version_id)
        .join(documents, documents.c.id == versions.c.document_id)
        .join(
            version_builds,
            and_(
                version_builds.c.version_id == served_pages.c.version_id,
                version_builds.c.build_id == served_pages.c.build_id,
            ),
        )
        .join(
            pages,
            and_(
                pages.c.version_id == served_pages.c.version_id,
                pages.c.page_index == served_pages.c.page_index,
            ),
        )
        .where(
            served_pages.c.build_id == build.id,
            served_pages.c.point_id.in_(point_ids),
            documents.c.org == scope.org,
            documents.c.deleted_at.is_(None),
        )
    )
    rows = connection.execute(query).all()
    answering = {row.current_version_id for row in rows}
    if scope.as_of:
        answering = _in_force(connection, build, {row.document_id for row in rows}, scope.as_of.toordinal())
    pairs = [(row, _about(row)) for row in rows if row.version_id in answering]
    return {row.point_id: _served_page(row, about) for row, about in pairs if scope.admits(about)}


def _about(row: AnyRow) -> Mapping[str, Any]:
    """What the served points say of their document; a manifest older than metadata says what a plain file would."""
    return row.about or records.about(row)


def _in_force(connection: Connection, build: IndexBuild, document_ids: set[str], day: int) -> set[str]:
    """Of each document, the version in force on `day` (as `date.toordinal` counts)."""
    of_version = submissions.c.version_id == versions.c.id, submissions.c.state == SubmissionState.SEARCHABLE
    revision = select(func.coalesce(func.max(submissions.c.revision), 0)).where(*of_version).scalar_subquery()
    query = (
        select(versions.c.id, versions.c.document_id, version_builds.c.about, revision.label("revision"))
        .join(version_builds, version_builds.c.version_id == versions.c.id)
        .where(
            versions.c.document_id.in_(document_ids),
            version_builds.c.build_id == build.id,
            version_builds.c.about.is_not(None),  # written with the manifest
        )
    )
    periods: dict[str, list[Period]] = defaultdict(list)
    for row in connection.execute(query):
        if row.about:
            begins, ends = row.about["in_force_from"], row.about["in_force_until"]
            periods[row.document_id].append((begins, row.revision, ends, row.id))
    answering = (in_force(of_document, day) for of_document in periods.values())
    return {version for version in answering if version}


def _served_page(row: AnyRow, about: Mapping[str, Any]) -> ServedPage:
    return ServedPage(
        point_id=row.point_id,
        org=row.org,
        document_id=row.document_id,
        version_id=row.version_id,
        source_uri=row.source_uri,
        title=about["title"],
        page_index=row.page_index,
        page_label=row.page_label,
        image=ArtifactRef(**row.image),
        text=ArtifactRef(**row.text),
        missing_pages=about.get("missing_pages", ()),
    )


def _version(connection: Connection, version_id: str, org: str | None) -> VersionView | None:
    query = (
        select(
            versions, documents.c.org, documents.c.source_uri, documents.c.current_version_id, documents.c.deleted_at
        )
        .join(documents, documents.c.id == versions.c.document_id)
        .where(or_(versions.c.id == version_id, _of_submission(version_id), _of_document(version_id)))
    )
    if org:
        query = query.where(documents.c.org == org)
    row = connection.execute(query).first()
    if row is None:
        return None
    gates = select(version_builds).where(version_builds.c.version_id == row.id)
    return VersionView(
        version_id=row.id,
        document_id=row.document_id,
        org=row.org,
        source_uri=row.source_uri,
        sha256=row.sha256,
        page_count=row.page_count,
        title=records.about(row)["title"],
        metadata=DocumentMetadata.model_validate(row.metadata or {}),
        notes=row.notes,
        current=row.current_version_id == row.id and row.deleted_at is None,
        gates={gate.build_id: {"state": gate.state, "report": gate.report} for gate in connection.execute(gates)},
    )


def _of_submission(name: str) -> Any:
    return versions.c.id.in_(select(submissions.c.version_id).where(submissions.c.id == name))


def _of_document(name: str) -> Any:
    return versions.c.id.in_(select(documents.c.current_version_id).where(documents.c.id == name))


def _pages(connection: Connection, version_id: str) -> list[PageView]:
    planned = plan_pages(connection, pages.c.version_id == version_id, live_builds(connection))
    return [_page_view(page) for page in sorted(planned, key=lambda page: page.row.page_index)]


def _page_view(page: PlannedPage) -> PageView:
    """The rows that the plan wants now; those of earlier profiles are history."""
    stages = [
        StageView(
            stage=step.stage.value,
            state=step.row.state.value,
            artifacts=step.row.outputs,
            facts=step.row.facts,
            error_code=step.row.error_code,
            error_message=step.row.error_message,
        )
        for step in page.steps
        if step.row
    ]
    return PageView(page_index=page.row.page_index, page_label=page.row.page_label, stages=stages)
