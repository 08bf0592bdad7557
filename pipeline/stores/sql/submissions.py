"""Submissions, and the documents, versions and pages that they become."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from pipeline.domain import (
    ArtifactRef,
    BuildState,
    EventKind,
    PageFailure,
    Submission,
    SubmissionState,
    VersionBuildState,
    VersionDraft,
)
from pipeline.errors import LeaseLost
from pipeline.identity import document_id
from pipeline.metadata import DocumentMetadata
from pipeline.stores.sql import records
from pipeline.stores.sql.advancing import advance_version, current_profile, live_builds, reopen_gates
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.outbox import tell
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.tables import FREE, builds, documents, pages, submissions, version_builds, versions

NO_ERROR = dict.fromkeys(("error_code", "error_message", "error_stage", "error_page"))

LABEL_CHARS = 255
"""A longer printed label is cut: its column ends there, and no reader gets further."""


class Submissions:
    """See `pipeline.protocols.SubmissionQueue` for the contract."""

    def __init__(self, database: Database, attempts: int) -> None:
        self._database = database
        self._attempts = attempts

    def submit(
        self,
        org: str,
        source_uri: str,
        metadata: DocumentMetadata,
        submission_id: str | None = None,
        upload: ArtifactRef | None = None,
        announce: bool = True,
    ) -> Submission:
        row = {
            "id": submission_id or str(uuid.uuid4()),
            "metadata": metadata.stored(),
            "upload": dataclasses.asdict(upload) if upload else None,
            "state": SubmissionState.QUEUED,
            "attempts": 0,
        }
        return self._database.write(lambda connection: self._submit(connection, row, org, source_uri, announce))

    def document_of(self, org: str, source_uri: str) -> str:
        return self._database.read(lambda connection: _newest_incarnation(connection, org, source_uri)[0])

    def pending(self) -> bool:
        def work(connection: Connection) -> bool:
            query = select(submissions.c.id).where(*_queued(self._database.now(connection))).limit(1)
            return connection.execute(query).first() is not None

        return self._database.read(work)

    def claim(self, lease_s: float, worker: str) -> tuple[str, Submission] | None:
        if not self.pending():
            return None
        token = str(uuid.uuid4())
        claimed = self._database.write(lambda connection: self._claim(connection, lease_s, worker, token))
        return (token, claimed) if claimed else None

    def known(self, version_id: str) -> VersionDraft | None:
        return self._database.read(lambda connection: _known(connection, version_id))

    def accept(self, token: str, draft: VersionDraft) -> None:
        self._database.write(lambda connection: self._accept(connection, token, draft))

    def fail(self, token: str, code: str, message: str) -> None:
        def work(connection: Connection) -> None:
            end(
                connection,
                submissions.c.token == token,
                SubmissionState.FAILED,
                self._database.now(connection),
                PageFailure(page_index=-1, stage="intake", code=code, message=message),
            )

        self._database.write(work)

    def defer(self, token: str, code: str, message: str, delay_s: float) -> None:
        def work(connection: Connection) -> None:
            again = self._database.now(connection) + int(delay_s * 1e6)
            values = {"error_code": code, "error_message": message, "available_at": again} | FREE
            values["waiting_since"] = func.coalesce(submissions.c.waiting_since, self._database.now(connection))
            connection.execute(update(submissions).where(submissions.c.token == token).values(**values))

        self._database.write(work)

    def release(self, worker: str | None) -> int:
        def work(connection: Connection) -> int:
            held = [submissions.c.token.is_not(None), submissions.c.state == SubmissionState.QUEUED]
            held += [submissions.c.worker == worker] if worker else []
            return connection.execute(update(submissions).where(*held).values(**FREE)).rowcount

        return self._database.write(work)

    def sweep(self) -> int:
        """Take overdue leases back; a source that ends its worker again and again is given up."""
        return self._database.write(self._sweep)

    def get(self, submission_id: str) -> Submission | None:
        def work(connection: Connection) -> Submission | None:
            row = connection.execute(submission_query().where(submissions.c.id == submission_id)).first()
            return records.submission(row) if row else None

        return self._database.read(work)

    def _submit(
        self, connection: Connection, row: Mapping[str, Any], org: str, source_uri: str, announce: bool
    ) -> Submission:
        mine = submissions.c.id == row["id"]
        known = connection.execute(submission_query().where(mine)).first()
        if known:
            return records.submission(known)
        now = self._database.now(connection)
        document = _document(connection, org, source_uri, now)
        revision = document.last_revision + 1
        connection.execute(update(documents).where(documents.c.id == document.id).values(last_revision=revision))
        place = {"document_id": document.id, "revision": revision, "available_at": now, "created_at": now}
        connection.execute(insert(submissions), [{**row, **place}])
        if announce:
            tell(
                connection,
                [row["id"]],
                EventKind.REGISTERED,
                {"state": row["state"], "version_id": None, **NO_ERROR},
                now,
            )
        return records.submission(connection.execute(submission_query().where(mine)).one())

    def _claim(self, connection: Connection, lease_s: float, worker: str, token: str) -> Submission | None:
        now = self._database.now(connection)
        query = (
            select(submissions.c.id)
            .where(*_queued(now))
            .order_by(submissions.c.created_at, submissions.c.revision, submissions.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        of_token = select(submissions.c.id).where(submissions.c.token == token)
        chosen = connection.execute(of_token).scalar() or connection.execute(query).scalar()
        if chosen is None:
            return None
        lease = {"token": token, "worker": worker, "lease_until": now + int(lease_s * 1e6)}
        connection.execute(update(submissions).where(submissions.c.id == chosen).values(**lease))
        return records.submission(connection.execute(submission_query().where(submissions.c.id == chosen)).one())

    def _accept(self, connection: Connection, token: str, draft: VersionDraft) -> None:
        now = self._database.now(connection)
        held = connection.execute(select(submissions).where(submissions.c.token == token).with_for_update()).first()
        if held is None:
            raise LeaseLost("the submission's lease was taken over while its source was read")
        if held.state != SubmissionState.QUEUED:
            return  # accepted already; the answer to that commit was lost
        document = connection.execute(
            select(documents).where(documents.c.id == held.document_id).with_for_update()
        ).one()
        _insert_version(connection, document.id, draft, now)
        _take_metadata(connection, draft.version_id, held, now)
        values = {"state": SubmissionState.PROCESSING, "version_id": draft.version_id, "lease_until": None}
        values |= {"error_code": None, "error_message": None, "waiting_since": None}
        connection.execute(update(submissions).where(submissions.c.id == held.id).values(**values))
        if advance_version(connection, draft.version_id, now) == 0:
            _settle_known(connection, document, held, draft.version_id, now)

    def _sweep(self, connection: Connection) -> int:
        now = self._database.now(connection)
        overdue = select(submissions).where(
            submissions.c.state == SubmissionState.QUEUED, submissions.c.lease_until < now
        )
        rows = connection.execute(overdue.with_for_update()).all()
        for row in rows:
            mine = submissions.c.id == row.id
            values = {"attempts": row.attempts + 1, "available_at": now} | FREE
            connection.execute(update(submissions).where(mine).values(**values))
            if row.attempts + 1 >= self._attempts:
                message = "the worker died each time while it read this source; see its log"
                failure = PageFailure(page_index=-1, stage="intake", code="worker_crashed", message=message)
                end(connection, mine, SubmissionState.FAILED, now, failure)
        return len(rows)


def end(
    connection: Connection, where: Any, state: SubmissionState, now: int, failure: PageFailure | None = None
) -> None:
    """End the submissions that `where` selects and that have not ended yet."""
    unended = submissions.c.state.in_([SubmissionState.QUEUED, SubmissionState.PROCESSING])
    ending = list(connection.execute(select(submissions.c.id).where(where, unended).with_for_update()).scalars())
    outcome: dict[str, Any] = {"state": state, **NO_ERROR}
    if failure:
        page = failure.page_index if failure.page_index >= 0 else None
        outcome |= {"error_code": failure.code, "error_message": failure.message}
        outcome |= {"error_stage": failure.stage, "error_page": page}
    values = {**outcome, "ended_at": now, "lease_until": None, "waiting_since": None}
    connection.execute(update(submissions).where(submissions.c.id.in_(ending)).values(**values))
    tell(connection, ending, EventKind(f"submission.{state}"), outcome, now)


def submission_query() -> Any:
    return select(submissions, documents.c.org, documents.c.source_uri, documents.c.current_revision).join(
        documents, documents.c.id == submissions.c.document_id
    )


def _queued(now: int) -> list[Any]:
    return [
        submissions.c.state == SubmissionState.QUEUED,
        submissions.c.lease_until.is_(None),
        submissions.c.available_at <= now,
    ]


def _document(connection: Connection, org: str, source_uri: str, now: int) -> AnyRow:
    """The newest incarnation of this document, made if it is not there, and locked."""
    new, incarnation = _newest_incarnation(connection, org, source_uri)
    query = select(documents).where(documents.c.id == new).with_for_update()
    row = connection.execute(query).first()
    if row is None:
        connection.execute(insert(documents), [_new_document(new, org, source_uri, incarnation, now)])
        return connection.execute(query).one()
    if row.deleted_at is not None:  # since we looked
        return _document(connection, org, source_uri, now)
    return row


def _newest_incarnation(connection: Connection, org: str, source_uri: str) -> tuple[str, int]:
    """Id and number of the first incarnation that is not deleted; a deleted document begins again as the next."""
    incarnation = 1
    while True:
        new = document_id(org, source_uri, incarnation)
        deleted = select(documents.c.id).where(documents.c.id == new, documents.c.deleted_at.is_not(None))
        if connection.execute(deleted).first() is None:
            return new, incarnation
        incarnation += 1


def _new_document(new: str, org: str, source_uri: str, incarnation: int, now: int) -> dict[str, Any]:
    return {
        "id": new,
        "org": org,
        "source_uri": source_uri,
        "incarnation": incarnation,
        "last_revision": 0,
        "generation": 0,
        "created_at": now,
    }


def _known(connection: Connection, version_id: str) -> VersionDraft | None:
    row = connection.execute(select(versions).where(versions.c.id == version_id)).first()
    if row is None:
        return None
    labels = select(pages.c.page_label).where(pages.c.version_id == version_id).order_by(pages.c.page_index)
    return VersionDraft(
        version_id=version_id,
        source=ArtifactRef(key=row.source_key, sha256=row.sha256, size=row.size),
        title=row.title,
        page_labels=list(connection.execute(labels).scalars()),
        notes=row.notes,
    )


def _insert_version(connection: Connection, document: str, draft: VersionDraft, now: int) -> None:
    """The version with its pages and one gate for each live build; nothing if the document has it already."""
    profile = current_profile(connection)
    if profile is None:
        raise RuntimeError("the ledger has no profile: open it through `pipeline.wiring`")
    mine = versions.c.id == draft.version_id
    if connection.execute(select(versions.c.id).where(mine)).first():
        connection.execute(update(versions).where(mine).values(profile_revision=profile.revision))
        return
    row = {
        "id": draft.version_id,
        "document_id": document,
        "sha256": draft.source.sha256,
        "size": draft.source.size,
        "source_key": draft.source.key,
        "page_count": len(draft.page_labels),
        "title": draft.title,
        "notes": dict(draft.notes),
        "profile_revision": profile.revision,
        "created_at": now,
    }
    connection.execute(insert(versions), [row])
    labelled = enumerate(draft.page_labels)
    page_rows = [
        {"version_id": draft.version_id, "page_index": i, "page_label": label[:LABEL_CHARS]} for i, label in labelled
    ]
    connection.execute(insert(pages), page_rows)
    connection.execute(
        insert(version_builds),
        [
            {
                "version_id": draft.version_id,
                "build_id": build.id,
                "state": VersionBuildState.PROCESSING,
                "epoch": 0,
                "updated_at": now,
            }
            for build in live_builds(connection)
        ],
    )


def _take_metadata(connection: Connection, version_id: str, held: AnyRow, now: int) -> None:
    """A content is described by the latest submission that names it; one that was overtaken changes nothing.

    What it serves was proved with other labels and dates, so its gates begin anew, even if no point is to be made.
    """
    mine = versions.c.id == version_id
    version = connection.execute(select(versions).where(mine).with_for_update()).one()
    if version.metadata_revision is not None and version.metadata_revision >= held.revision:
        return
    values = {"metadata": held.metadata, "metadata_revision": held.revision}
    connection.execute(update(versions).where(mine).values(**values))
    if (version.metadata or {}) != held.metadata:
        reopen_gates(connection, {version_id}, now)


def _settle_known(connection: Connection, document: AnyRow, held: AnyRow, version_id: str, now: int) -> None:
    """Nothing is to be computed for this content. If it is what the document serves already, the submission
    ends here; otherwise the gate validates the version again before it becomes current."""
    active = select(builds.c.id).where(builds.c.state == BuildState.ACTIVE)
    gate = version_builds.c.version_id == version_id, version_builds.c.build_id.in_(active)
    state = connection.execute(select(version_builds.c.state).where(*gate)).scalar()
    if state == VersionBuildState.ACCEPTED and document.current_version_id == version_id:
        later = max(held.revision, document.current_revision or 0)
        connection.execute(update(documents).where(documents.c.id == document.id).values(current_revision=later))
        end(connection, submissions.c.id == held.id, SubmissionState.SEARCHABLE, now)
    elif state in (VersionBuildState.ACCEPTED, VersionBuildState.REJECTED):
        values = {"state": VersionBuildState.PROCESSING, "updated_at": now}
        connection.execute(update(version_builds).where(*gate).values(**values))
