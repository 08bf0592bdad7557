"""Inserts the rows that follow from what is done, inside the transaction that made them follow."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from pipeline.advance import Rows, Step, TaskRow, plan_page
from pipeline.batches import batches
from pipeline.domain import (
    ArtifactRef,
    BuildState,
    IndexBuild,
    Profile,
    StageName,
    TaskState,
    VersionBuildState,
)
from pipeline.stores.sql import records
from pipeline.stores.sql.records import AnyRow
from pipeline.stores.sql.tables import (
    FREE,
    builds,
    documents,
    page_tasks,
    pages,
    profiles,
    version_builds,
    versions,
)

LIVE_BUILDS = (BuildState.BUILDING, BuildState.ACTIVE, BuildState.STANDBY)
OPEN_TASKS = (TaskState.PENDING, TaskState.LEASED)

CHUNK = 16
"""Pages of one document that stay neighbours in the queue, so that a window opens one PDF."""
PAGE_STRIDE_MICROS = 50_000
"""A page's place in the queue is behind its document's arrival by this much a page. A small document that
arrives while a big one is at work so comes in among its pages, and nothing waits for ever."""
NO_LIMIT = 1_000_000
"""`max_window` of a row that has not been in a lost window."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPage:
    """A page, the rows it has, and the rows it ought to have."""

    row: AnyRow
    tasks: Mapping[tuple[StageName, str], TaskRow]
    steps: Sequence[Step]


def current_profile(connection: Connection) -> Profile | None:
    row = connection.execute(select(profiles).order_by(profiles.c.revision.desc()).limit(1)).first()
    return records.profile(row) if row else None


def live_builds(connection: Connection) -> list[IndexBuild]:
    query = select(builds).where(builds.c.state.in_(LIVE_BUILDS)).order_by(builds.c.created_at, builds.c.id)
    return [records.build(row) for row in connection.execute(query)]


def plan_pages(
    connection: Connection, where: Any, live: Sequence[IndexBuild], *, lock: bool = False
) -> list[PlannedPage]:
    """Plan all pages that `where` selects; with `lock`, their rows are locked in id order first.

    The lock is what joins two stages of one page that complete at the same moment: under READ COMMITTED the
    second one waits here, and then sees what the first one did.
    """
    query = (
        select(
            pages.c.id,
            pages.c.version_id,
            pages.c.page_index,
            pages.c.page_label,
            versions.c.source_key,
            versions.c.sha256,
            versions.c.size,
            versions.c.title,
            versions.c.metadata,
            documents.c.deleted_at,
        )
        .join(versions, versions.c.id == pages.c.version_id)
        .join(documents, documents.c.id == versions.c.document_id)
        .where(where)
        .order_by(pages.c.id)
    )
    if lock:
        query = query.with_for_update(of=pages)
    page_rows = connection.execute(query).all()
    profile = current_profile(connection)
    if not page_rows or profile is None:
        return []
    tasks = _tasks_of(connection, [row.id for row in page_rows])
    return [_planned(row, tasks[row.id], profile, live) for row in page_rows]


def advance(connection: Connection, page_ids: Iterable[int], now: int) -> int:
    """Make the rows of these pages what `plan_page` says; returns how many were added or taken up again.

    Idempotent. Must run inside a write transaction.
    """
    return _settle(connection, pages.c.id.in_(sorted(set(page_ids))), now)


def advance_version(connection: Connection, version_id: str, now: int) -> int:
    """`advance` for every page of a version."""
    return _settle(connection, pages.c.version_id == version_id, now)


def _settle(connection: Connection, where: Any, now: int) -> int:
    live = live_builds(connection)
    planned = [page for page in plan_pages(connection, where, live, lock=True) if page.row.deleted_at is None]
    fresh = [_new_row(page.row, step, now) for page in planned for step in page.steps if step.row is None]
    if fresh:
        connection.execute(insert(page_tasks), fresh)
    revived = [
        step.row.id for page in planned for step in page.steps if step.row and step.row.state == TaskState.SUPERSEDED
    ]
    _set_state(connection, revived, TaskState.SUPERSEDED, TaskState.PENDING, now)
    _set_state(connection, _unwanted(planned), TaskState.PENDING, TaskState.SUPERSEDED, now)
    touched = {row["version_id"] for row in fresh} | {page.row.version_id for page in planned if revived}
    reopen_gates(connection, touched, now)
    return len(fresh) + len(revived)


def _tasks_of(connection: Connection, page_ids: Sequence[int]) -> dict[int, dict[tuple[StageName, str], TaskRow]]:
    tasks: dict[int, dict[tuple[StageName, str], TaskRow]] = defaultdict(dict)
    columns = ["id", "page_id", "stage", "fingerprint", "state", "outputs", "facts", "finished_at"]
    columns += ["error_code", "error_message"]
    query = select(*(page_tasks.c[name] for name in columns))
    for batch in batches(page_ids):
        for row in connection.execute(query.where(page_tasks.c.page_id.in_(batch))):
            tasks[row.page_id][StageName(row.stage), row.fingerprint] = records.task_row(row)
    return tasks


def _planned(row: AnyRow, tasks: Rows, profile: Profile, live: Sequence[IndexBuild]) -> PlannedPage:
    source = ArtifactRef(key=row.source_key, sha256=row.sha256, size=row.size)
    steps = plan_page(source, records.about(row), tasks, profile, live)
    return PlannedPage(row=row, tasks=tasks, steps=steps)


def _unwanted(planned: Sequence[PlannedPage]) -> list[int]:
    """Rows not yet begun that the plan no longer contains: another profile was adopted. One that was done before
    stays: its version may be served what it wrote until the gate has passed another."""
    unwanted = []
    for page in planned:
        wanted = {(step.stage, step.fingerprint) for step in page.steps}
        pending = {key: task for key, task in page.tasks.items() if task.state == TaskState.PENDING}
        unwanted += [task.id for key, task in pending.items() if key not in wanted and not task.reopened]
    return unwanted


def _new_row(page: AnyRow, step: Step, now: int) -> dict[str, Any]:
    chunk_start = page.page_index // CHUNK * CHUNK
    render = step.stage == StageName.RENDER
    building = step.build is not None and step.build.state == BuildState.BUILDING
    return {
        "page_id": page.id,
        "version_id": page.version_id,
        "build_id": step.build.id if step.build else None,
        "stage": step.stage,
        "fingerprint": step.fingerprint,
        "code_version": step.recipe["options"]["version"],
        "recipe": step.recipe,
        "state": TaskState.PENDING,
        "priority": 10 if building else 0,
        "order_key": now + (chunk_start * PAGE_STRIDE_MICROS if render else 0),
        "available_at": now,
        "attempts": 0,
        "max_window": NO_LIMIT,
    }


def _set_state(connection: Connection, ids: Sequence[int], old: TaskState, new: TaskState, now: int) -> None:
    if ids:
        which = page_tasks.c.id.in_(bindparam("tasks", expanding=True)), page_tasks.c.state == old
        statement = update(page_tasks).where(*which).values(state=new, available_at=now)
        for batch in batches(ids):
            connection.execute(statement, {"tasks": batch})


def reopen_gates(connection: Connection, version_ids: set[str], now: int) -> None:
    """A version with new work or new metadata is to be validated again once all is done: a gate that is reading it
    now finds another epoch and writes nothing. What the version serves stays served."""
    if version_ids:
        connection.execute(
            update(version_builds)
            .where(
                version_builds.c.version_id.in_(version_ids),
                version_builds.c.state != VersionBuildState.PROCESSING,
            )
            .values(
                state=VersionBuildState.PROCESSING,
                epoch=version_builds.c.epoch + 1,
                updated_at=now,
                **FREE,
            )
        )
