"""The one loop of all stages: claim a window, process it, store what it yields, settle it."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import time
from collections.abc import Iterator, Sequence

import tenacity

from pipeline.domain import (
    Deferred,
    Done,
    Failed,
    InputLost,
    Outcome,
    PageResult,
    PageTask,
    Window,
)
from pipeline.errors import (
    ArtifactLost,
    ConfigurationError,
    InfrastructureError,
    LeaseLost,
    LedgerUnavailable,
    PageError,
    PagegateError,
)
from pipeline.failpoints import reached
from pipeline.identity import artifact_key
from pipeline.protocols import Ledger, ObjectStore, Stage
from pipeline.settings import PoolSettings

DEFER_S = 5.0
"""About how long a page waits after an infrastructure fault."""
SETTLE_AGAIN_S = 3.0
"""How long a finished window waits at most before it tries an absent ledger again."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WindowReport:
    """What one window came to, for progress and logs."""

    kind: str
    done: int = 0
    failed: int = 0
    deferred: int = 0
    lost: int = 0
    """Rows that another worker had taken over."""
    seconds: float = 0.0
    message: str = ""
    """The last thing that went wrong."""


def run_stage(stage: Stage, ledger: Ledger, store: ObjectStore, pool: PoolSettings, worker: str) -> WindowReport | None:
    """Do one window of a stage; None if there was none.

    May be killed anywhere: what it stored is named by its content, and the rows it held are taken back when the
    lease ends. An unexpected exception is treated like the death of the worker, and raised.
    """
    window = ledger.tasks.claim(stage.name, pool.window, pool.lease_s, worker)
    if window is None:
        return None
    reached(f"{stage.name}.claimed")
    started = time.monotonic()
    try:
        outcomes = list(_outcomes(stage, ledger, store, window, pool.lease_s))
        settled = _settle(ledger, window.token, outcomes)
        reached(f"{stage.name}.settled")
    except LeaseLost as lost:
        return WindowReport(kind=stage.name, lost=len(window.tasks), message=lost.message)
    except ConfigurationError:
        ledger.tasks.release(worker)
        raise
    except Exception:
        ledger.tasks.abandon(worker)
        raise
    return _report(stage, outcomes, len(window.tasks) - settled, time.monotonic() - started)


def _outcomes(stage: Stage, ledger: Ledger, store: ObjectStore, window: Window, lease_s: float) -> Iterator[Outcome]:
    """One outcome a task, in order. The lease is renewed after a page, never while one is at work."""
    renewed = begun = time.monotonic()
    left = list(window.tasks)
    try:
        for result in stage.process(window.tasks):
            reached(f"{stage.name}.processed")
            outcome = _outcome(result, store, time.monotonic() - begun)
            left.remove(result.task)
            yield outcome
            begun = time.monotonic()
            if begun - renewed > lease_s / 3:
                _renew(ledger, window, lease_s)
                renewed = begun
                reached(f"{stage.name}.renewed")
    except InfrastructureError as error:
        yield from (_deferred(task, error) for task in left)


def _settle(ledger: Ledger, token: str, outcomes: Sequence[Outcome]) -> int:
    """The work is done: an outage of the ledger is waited out, and not paid for with the same work again."""
    patient = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(LedgerUnavailable), wait=tenacity.wait_random(0.5, SETTLE_AGAIN_S)
    )
    settled: int = patient(ledger.tasks.settle, token, outcomes)
    return settled


def _renew(ledger: Ledger, window: Window, lease_s: float) -> None:
    if not ledger.tasks.renew(window.token, lease_s):
        raise LeaseLost(f"the lease of {len(window.tasks)} {window.stage} rows was taken over; they are left alone")


def _outcome(result: PageResult, store: ObjectStore, seconds: float) -> Outcome:
    if result.error:
        return _not_done(result.task, result.error, seconds)
    outputs = {}
    for role, (content, suffix) in result.artifacts.items():
        outputs[role] = store.put(_key(result.task, role, content, suffix), content)
        reached(f"{result.task.stage}.put")
    return Done(task_id=result.task.id, outputs=outputs, facts=result.facts, seconds=seconds)


def _not_done(task: PageTask, error: PagegateError, seconds: float) -> Outcome:
    if isinstance(error, PageError):
        return Failed(
            task_id=task.id,
            code=error.code,
            message=error.message,
            retryable=error.retryable,
            seconds=seconds,
        )
    if isinstance(error, ArtifactLost):
        return InputLost(task_id=task.id, key=error.context["key"])
    if isinstance(error, InfrastructureError):
        return _deferred(task, error)
    raise error


def _deferred(task: PageTask, error: InfrastructureError) -> Deferred:
    delay_s = random.uniform(DEFER_S / 2, DEFER_S)  # noqa: S311 - jitter, not a secret
    return Deferred(task_id=task.id, code=error.code, message=error.message, delay_s=delay_s)


def _key(task: PageTask, role: str, content: bytes, suffix: str) -> str:
    digest = hashlib.sha256(content).hexdigest()
    return artifact_key(task.document_id, task.version_id, task.page_index, role, digest, suffix)


def _report(stage: Stage, outcomes: Sequence[Outcome], lost: int, seconds: float) -> WindowReport:
    kinds = [type(outcome) for outcome in outcomes]
    troubles = [outcome.message for outcome in outcomes if isinstance(outcome, (Failed, Deferred))]
    return WindowReport(
        kind=stage.name,
        done=max(0, kinds.count(Done) - lost),
        failed=kinds.count(Failed),
        deferred=kinds.count(Deferred) + kinds.count(InputLost),
        lost=lost,
        seconds=seconds,
        message=troubles[-1] if troubles else "",
    )
