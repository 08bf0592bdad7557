"""What is to be told to the outside: written with the state that it tells of, published afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from pipeline.domain import Event, EventKind, SubmissionState
from pipeline.stores.sql import records
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.tables import documents, outbox, submissions

UNPUBLISHED = outbox.c.published_at.is_(None)


class Outbox:
    """See `pipeline.protocols.Outbox` for the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(self) -> int:
        query = select(func.count()).select_from(outbox).where(UNPUBLISHED)
        return self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    def claim(self, limit: int, hold_s: float) -> list[Event]:
        def due(connection: Connection) -> bool:
            return connection.execute(_due(self._database.now(connection)).limit(1)).first() is not None

        if not self._database.read(due):
            return []
        return self._database.write(lambda connection: self._claim(connection, limit, hold_s))

    def published(self, ids: Sequence[int]) -> None:
        def work(connection: Connection) -> None:
            values = {"published_at": self._database.now(connection), "error_code": None, "error_message": None}
            connection.execute(update(outbox).where(outbox.c.id.in_(ids), UNPUBLISHED).values(**values))

        self._database.write(work)

    def defer(self, ids: Sequence[int], code: str, message: str, delay_s: float) -> None:
        def work(connection: Connection) -> None:
            again = self._database.now(connection) + int(delay_s * 1e6)
            values = {"available_at": again, "error_code": code, "error_message": message}
            connection.execute(update(outbox).where(outbox.c.id.in_(ids), UNPUBLISHED).values(**values))

        self._database.write(work)

    def prune(self, older_than_s: float) -> int:
        def work(connection: Connection) -> int:
            before = self._database.now(connection) - int(older_than_s * 1e6)
            return connection.execute(delete(outbox).where(outbox.c.published_at < before)).rowcount

        return self._database.write(work)

    def _claim(self, connection: Connection, limit: int, hold_s: float) -> list[Event]:
        now = self._database.now(connection)
        ids = list(connection.execute(_due(now).limit(limit).with_for_update(skip_locked=True)).scalars())
        held = update(outbox).where(outbox.c.id.in_(ids)).values(available_at=now + int(hold_s * 1e6))
        connection.execute(held)
        return [_event(row) for row in connection.execute(_events().where(outbox.c.id.in_(ids)))]


def tell(
    connection: Connection, submission_ids: Sequence[str], kind: EventKind, outcome: Mapping[str, Any], now: int
) -> None:
    """Write what became of these submissions, inside the transaction that made it so."""
    rows = [
        {"submission_id": submission, "kind": kind, "outcome": outcome, "created_at": now, "available_at": now}
        for submission in submission_ids
    ]
    if rows:
        connection.execute(insert(outbox), rows)


def _due(now: int) -> Any:
    return select(outbox.c.id).where(UNPUBLISHED, outbox.c.available_at <= now).order_by(outbox.c.id)


def _events() -> Any:
    """The columns of `records.submission`, with those of the event beside them."""
    return (
        select(
            submissions,
            documents.c.org,
            documents.c.source_uri,
            documents.c.current_revision,
            outbox.c.id.label("event_id"),
            outbox.c.kind,
            outbox.c.outcome,
            outbox.c.created_at.label("happened_at"),
        )
        .join(submissions, submissions.c.id == outbox.c.submission_id)
        .join(documents, documents.c.id == submissions.c.document_id)
        .order_by(outbox.c.id)
    )


def _event(row: AnyRow) -> Event:
    """The submission as it was then: it may have been put back since, and ended otherwise."""
    outcome = {**row.outcome, "state": SubmissionState(row.outcome["state"])}
    submission = dataclasses.replace(records.submission(row), **outcome)
    return Event(id=row.event_id, kind=EventKind(row.kind), submission=submission, micros=row.happened_at)
