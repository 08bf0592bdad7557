"""Rows of `page_tasks`: claimed under a lease, renewed, settled under its token."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, case, func, literal, select, update

from pipeline.batches import batches
from pipeline.domain import (
    Deferred,
    Done,
    Failed,
    InputLost,
    Outcome,
    StageName,
    TaskState,
    VersionBuildState,
    Window,
)
from pipeline.stores.sql import records
from pipeline.stores.sql.advancing import NO_LIMIT, advance, live_builds
from pipeline.stores.sql.database import Database
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.tables import FREE, documents, page_tasks, pages, version_builds, versions

BACKOFF_S = 2.0
MAX_BACKOFF_S = 300.0
CHANGES_AT_ONCE = 256
"""Rows in one UPDATE: each has some twenty parameters, of which SQLite takes 32,766."""
LOST_INPUT_MICROS = 30_000_000
"""How long a row whose input is gone waits if no row can make that again (a source that we lost)."""


class Tasks:
    """See `pipeline.protocols.TaskQueue` for the contract."""

    def __init__(self, database: Database, code_versions: Mapping[StageName, int], attempts: int) -> None:
        self._database = database
        self._code_versions = code_versions
        self._attempts = attempts

    def pending(self, stage: StageName) -> bool:
        query = select(page_tasks.c.id).where(*self._claimable(stage)).limit(1)
        return self._database.read(
            lambda connection: (
                connection.execute(query.where(page_tasks.c.available_at <= self._database.now(connection))).first()
                is not None
            )
        )

    def claim(self, stage: StageName, limit: int, lease_s: float, worker: str) -> Window | None:
        if not self.pending(stage):  # a look costs no lock; a claim in vain would queue up behind real writers
            return None
        token = str(uuid.uuid4())
        return self._database.write(lambda connection: self._claim(connection, stage, limit, lease_s, worker, token))

    def renew(self, token: str, lease_s: float) -> bool:
        def work(connection: Connection) -> bool:
            lease_until = self._database.now(connection) + int(lease_s * 1e6)
            held = page_tasks.c.token == token, page_tasks.c.state == TaskState.LEASED
            return connection.execute(update(page_tasks).where(*held).values(lease_until=lease_until)).rowcount > 0

        return self._database.write(work)

    def settle(self, token: str, outcomes: Sequence[Outcome]) -> int:
        return self._database.write(lambda connection: self._settle(connection, token, outcomes))

    def release(self, worker: str | None) -> int:
        """Give back, uncharged, what `worker` holds, halving its windows; None: what anybody holds."""
        return self._database.write(lambda connection: self._expire(connection, worker, charged=False))

    def abandon(self, worker: str) -> int:
        """Treat the leases of a worker that is known to be dead as lost now."""
        return self._database.write(lambda connection: self._expire(connection, worker, charged=True))

    def sweep(self) -> int:
        def overdue(connection: Connection) -> bool:
            query = select(page_tasks.c.id).where(*_overdue(self._database.now(connection))).limit(1)
            return connection.execute(query).first() is not None

        if not self._database.read(overdue):
            return 0
        return self._database.write(lambda connection: self._expire(connection, None, charged=True, overdue=True))

    def reopen(self, connection: Connection, task_ids: Sequence[int], now: int) -> None:
        """Do these rows again: what they wrote is gone. The gates of their versions begin anew."""
        if not task_ids:
            return
        done = page_tasks.c.id.in_(task_ids), page_tasks.c.state == TaskState.DONE
        rows = connection.execute(select(page_tasks.c.page_id, page_tasks.c.version_id).where(*done)).all()
        values = {"state": TaskState.PENDING, "outputs": None, "facts": None, "available_at": now} | FREE
        connection.execute(update(page_tasks).where(*done).values(**values))
        _begin_epoch(connection, {row.version_id for row in rows}, now)
        advance(connection, [row.page_id for row in rows], now)

    def _claimable(self, stage: StageName) -> list[Any]:
        """Rows that this code can do: one of another code version is left to a worker that has it."""
        return [
            page_tasks.c.stage == stage,
            page_tasks.c.state == TaskState.PENDING,
            page_tasks.c.code_version == self._code_versions[stage],
        ]

    def _claim(
        self, connection: Connection, stage: StageName, limit: int, lease_s: float, worker: str, token: str
    ) -> Window | None:
        now = self._database.now(connection)
        held = _of_token(connection, token)  # of a commit whose answer was lost
        if not held:
            held = _trim(_candidates(connection, self._claimable(stage), limit, now))
            lease = {
                "state": TaskState.LEASED,
                "token": token,
                "worker": worker,
                "lease_until": now + int(lease_s * 1e6),
            }
            pending = page_tasks.c.id.in_(held), page_tasks.c.state == TaskState.PENDING
            connection.execute(update(page_tasks).where(*pending).values(**lease))
        tasks = _load(connection, held)
        return Window(token=token, stage=stage, tasks=tasks) if tasks else None

    def _settle(self, connection: Connection, token: str, outcomes: Sequence[Outcome]) -> int:
        now = self._database.now(connection)
        by_task = {outcome.task_id: outcome for outcome in outcomes}
        page_ids = _lock_pages(connection, list(by_task))
        query = select(
            page_tasks.c.id, page_tasks.c.attempts, page_tasks.c.waiting_since, page_tasks.c.finished_at
        ).where(
            page_tasks.c.token == token,
            page_tasks.c.state == TaskState.LEASED,
            page_tasks.c.id.in_(list(by_task)),
        )
        held = connection.execute(query.with_for_update()).all()
        changes = [{"task": row.id, **self._change(by_task[row.id], row, now)} for row in held]
        _update_held(connection, token, changes)
        self._reopen_inputs(connection, [by_task[row.id] for row in held], now)
        advance(connection, page_ids, now)
        return len(held)

    def _change(self, outcome: Outcome, row: AnyRow, now: int) -> dict[str, Any]:
        """The new column values of one held row. A done row keeps its token, which settles an unknown commit."""
        attempts, since = row.attempts, row.waiting_since or now
        change: dict[str, Any] = {
            "state": TaskState.PENDING,
            "outputs": None,
            "facts": None,
            "error_code": None,
            "error_message": None,
            "attempts": attempts,
            "available_at": now,
            "seconds": None,
            "finished_at": row.finished_at,  # of a row that was reopened: see `TaskRow.reopened`
            "waiting_since": None,
        }
        match outcome:
            case Done():
                change |= {"state": TaskState.DONE, "outputs": records.stored(outcome.outputs)}
                change |= {"facts": dict(outcome.facts), "seconds": outcome.seconds, "finished_at": now}
            case Failed():
                final = not outcome.retryable or attempts + 1 >= self._attempts
                change |= {"state": TaskState.FAILED, "finished_at": now} if final else {}
                change |= {"error_code": outcome.code, "error_message": outcome.message}
                change |= {"attempts": attempts + 1, "seconds": outcome.seconds}
                change["available_at"] = now + _backoff(attempts)
            case Deferred():
                change |= {"error_code": outcome.code, "error_message": outcome.message}
                change |= {"available_at": now + int(outcome.delay_s * 1e6), "waiting_since": since}
            case InputLost():
                change |= {"error_code": "artifact_lost", "error_message": f"{outcome.key} is lost"}
                change |= {"available_at": now + LOST_INPUT_MICROS, "waiting_since": since}
        return change

    def _reopen_inputs(self, connection: Connection, outcomes: Sequence[Outcome], now: int) -> None:
        lost = {outcome.task_id: outcome.key for outcome in outcomes if isinstance(outcome, InputLost)}
        if not lost:
            return
        page_of = select(page_tasks.c.page_id).where(page_tasks.c.id.in_(list(lost)))
        query = select(page_tasks.c.id, page_tasks.c.outputs).where(
            page_tasks.c.page_id.in_(page_of), page_tasks.c.state == TaskState.DONE
        )
        keys = set(lost.values())
        writers = [
            row.id
            for row in connection.execute(query)
            if any(ref.key in keys for ref in records.refs(row.outputs).values())
        ]
        self.reopen(connection, writers, now)

    def _expire(self, connection: Connection, worker: str | None, *, charged: bool, overdue: bool = False) -> int:
        """Take leases back. A lost window is halved; only a row that was leased alone is charged."""
        now = self._database.now(connection)
        which = [page_tasks.c.state == TaskState.LEASED]
        which += [page_tasks.c.worker == worker] if worker else []
        which += [page_tasks.c.lease_until < now] if overdue else []
        query = select(page_tasks.c.id, page_tasks.c.token, page_tasks.c.attempts).where(*which)
        rows = connection.execute(query.with_for_update()).all()
        sizes = _window_sizes(connection, {row.token for row in rows})
        for row in rows:
            change = self._lost(row, sizes[row.token], now, charged=charged)
            held = page_tasks.c.id == row.id, page_tasks.c.token == row.token
            connection.execute(update(page_tasks).where(*held).values(**change))
        return len(rows)

    def _lost(self, row: AnyRow, window: int, now: int, *, charged: bool) -> dict[str, Any]:
        change: dict[str, Any] = {"state": TaskState.PENDING, "available_at": now} | FREE
        change["max_window"] = max(1, window // 2)
        if window > 1 or not charged:
            return change
        attempts = row.attempts + 1
        change |= {"attempts": attempts, "available_at": now + _backoff(row.attempts)}
        change |= {
            "error_code": "worker_crashed",
            "error_message": "the worker died while it held this page alone; see its log",
        }
        if attempts >= self._attempts:
            change |= {"state": TaskState.FAILED, "finished_at": now}
        return change


def _window_sizes(connection: Connection, tokens: set[str]) -> dict[str, int]:
    """Rows that were leased together: of some of them the document may have been deleted since."""
    sizes: Counter[str] = Counter()
    query = select(page_tasks.c.token, func.count()).group_by(page_tasks.c.token)
    for batch in batches(sorted(tokens)):
        sizes.update({row[0]: row[1] for row in connection.execute(query.where(page_tasks.c.token.in_(batch)))})
    return sizes


def _overdue(now: int) -> list[Any]:
    return [page_tasks.c.state == TaskState.LEASED, page_tasks.c.lease_until < now]


def _candidates(connection: Connection, claimable: list[Any], limit: int, now: int) -> list[tuple[int, int]]:
    query = (
        select(page_tasks.c.id, page_tasks.c.max_window)
        .where(*claimable, page_tasks.c.available_at <= now)
        .order_by(page_tasks.c.priority, page_tasks.c.order_key, page_tasks.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [(row.id, row.max_window) for row in connection.execute(query)]


def _trim(candidates: Sequence[tuple[int, int]]) -> list[int]:
    """As many rows as the most suspicious one among them allows."""
    window: list[int] = []
    limit = NO_LIMIT
    for task_id, max_window in candidates:
        limit = min(limit, max_window)
        if len(window) >= limit:
            break
        window.append(task_id)
    return window


def _of_token(connection: Connection, token: str) -> list[int]:
    return list(connection.execute(select(page_tasks.c.id).where(page_tasks.c.token == token)).scalars())


def _load(connection: Connection, task_ids: Sequence[int]) -> list[Any]:
    if not task_ids:
        return []
    query = (
        select(
            page_tasks,
            pages.c.page_index,
            pages.c.page_label,
            documents.c.org,
            documents.c.id.label("document_id"),
        )
        .join(pages, pages.c.id == page_tasks.c.page_id)
        .join(versions, versions.c.id == page_tasks.c.version_id)
        .join(documents, documents.c.id == versions.c.document_id)
        .where(page_tasks.c.id.in_(task_ids))
        .order_by(page_tasks.c.priority, page_tasks.c.order_key, page_tasks.c.id)
    )
    builds = {build.id: build for build in live_builds(connection)}
    return [records.page_task(row, builds) for row in connection.execute(query)]


def _lock_pages(connection: Connection, task_ids: Sequence[int]) -> list[int]:
    """Lock the pages in id order, before their tasks: everybody who settles does it in this order."""
    of_tasks = select(page_tasks.c.page_id).where(page_tasks.c.id.in_(task_ids))
    page_ids = sorted(set(connection.execute(of_tasks).scalars()))
    query = select(pages.c.id).where(pages.c.id.in_(page_ids)).order_by(pages.c.id).with_for_update()
    return list(connection.execute(query).scalars())


def _update_held(connection: Connection, token: str, changes: Sequence[Mapping[str, Any]]) -> None:
    """One statement for many rows: over a network, a round trip a page would cost more than the page."""
    task = page_tasks.c.id
    for batch in batches(changes, CHANGES_AT_ONCE):
        new = {
            name: case({change["task"]: literal(change[name], page_tasks.c[name].type) for change in batch}, value=task)
            for name in batch[0]
            if name != "task"
        }
        held = page_tasks.c.token == token, page_tasks.c.state == TaskState.LEASED
        mine = task.in_([change["task"] for change in batch])
        connection.execute(update(page_tasks).where(mine, *held).values(lease_until=None, **new))


def _begin_epoch(connection: Connection, version_ids: set[str], now: int) -> None:
    connection.execute(
        update(version_builds)
        .where(version_builds.c.version_id.in_(version_ids))
        .values(state=VersionBuildState.PROCESSING, epoch=version_builds.c.epoch + 1, updated_at=now, **FREE)
    )


def _backoff(attempts: int) -> int:
    """Microseconds to wait after a counted failure: doubling, with jitter, bounded."""
    ceiling = min(MAX_BACKOFF_S, BACKOFF_S * 2**attempts)
    return int(random.uniform(ceiling / 2, ceiling) * 1e6)  # noqa: S311 - jitter, not a secret
