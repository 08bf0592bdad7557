"""Hands out the ledger's work to the pools, window by window, and brings back what was lost.

It holds nothing: kill it at any moment and start it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.pool import DEATHS_IN_A_ROW, ActorPool, Member
from pipeline.domain import StageName
from pipeline.errors import ConfigurationError, InfrastructureError, LedgerUnavailable, RayUnavailable
from pipeline.run_stage import WindowReport
from pipeline.wiring import POOL_OF, Pipeline, kinds_of

log = logging.getLogger("pagegate.supervisor")

SWEEP_S = 2.0
"""How often lost work is looked for."""
REST_S = 0.1
"""How long the loop rests when no call has ended."""
GRACE_S = 20.0
"""How long a stop waits for windows in flight."""
AFTER_OUTAGE_S = 20.0
"""How long nothing is swept after an outage of the ledger: whoever lives settles or gives back what it holds first,
and is not charged for leases that ran out meanwhile."""
PAUSE_S = 5.0
"""How long an actor rests after an infrastructure fault that it could not put on single pages."""


class Supervisor:
    """Pools start when there is first something for them to do."""

    def __init__(self, pipeline: Pipeline, config: Path | None) -> None:
        self._pipeline = pipeline
        settings = pipeline.settings
        home = settings.home.absolute()
        self._pools = [
            ActorPool(
                name,
                getattr(settings.pools, name),
                config,
                home,
                owner=name == POOL_OF[StageName.INDEX] and settings.index.kind == "edge",
            )
            for name in type(settings.pools).model_fields
        ]
        self._in_flight: dict[Any, ActorPool] = {}
        self._resting: dict[str, float] = {}
        self._sweep_at = 0.0
        self.stopping = False

    def run(self, finished: Callable[[], bool], on_report: Callable[[WindowReport], None]) -> None:
        """Work until `finished` says so or `stopping` is set; `on_report` is told of each window.

        Raises `ConfigurationError` if an actor refuses the settings, and `RayUnavailable` if actors of a pool
        die again and again before they finish anything.
        """
        try:
            self._place_owner()
            while not self.stopping and not self._turn(finished, on_report):
                pass
        finally:
            self._stop()

    def _turn(self, finished: Callable[[], bool], on_report: Callable[[WindowReport], None]) -> bool:
        """Hand out what there is, take what has ended; whether everything is finished."""
        try:
            self._dispatch()
            for call in self._ended():
                self._collect(call, on_report)
            self._sweep()
            return finished()
        except LedgerUnavailable as error:
            log.warning("waiting for the ledger: %s", error.message)
            time.sleep(PAUSE_S)
            self._sweep_at = time.monotonic() + AFTER_OUTAGE_S
            return False

    def _place_owner(self) -> None:
        """On a cluster of several nodes the index's owner is bound to this one: it has to be here before others
        take this node's CPUs."""
        if self._pipeline.settings.ray.address:
            for pool in self._pools:
                if pool.owner:
                    pool.start()

    def _dispatch(self) -> None:
        for pool in self._pools:
            if not any(self._pipeline.pending(kind) for kind in kinds_of(pool.name)):
                continue
            pool.start()
            for member in pool.idle():
                if self._resting.get(member.worker, 0.0) <= time.monotonic():
                    self._in_flight[pool.call(member)] = pool

    def _ended(self) -> list[Any]:
        if not self._in_flight:
            time.sleep(REST_S)
            return []
        ended, _ = ray.wait(list(self._in_flight), num_returns=1, timeout=REST_S)
        return list(ended)

    def _collect(self, call: Any, on_report: Callable[[WindowReport], None]) -> None:
        pool = self._in_flight.pop(call)
        member = pool.member_at(call)
        if member is None:
            return
        try:
            report = ray.get(call)
        except RayActorError as death:
            self._replace(pool, member, death)
            return
        except RayTaskError as error:
            self._failed(member, error)
            return
        member.call = None
        pool.deaths = 0
        if report is not None:
            on_report(report)

    def _replace(self, pool: ActorPool, member: Member, death: RayActorError) -> None:
        """A dead actor's leases are taken back at once; the ledger decides what that costs which page."""
        pool.bury(member)
        lost = self._pipeline.ledger.abandon(member.worker)
        log.warning("actor %s died (%d rows taken back): %s", member.worker, lost, _first_line(death))
        if pool.deaths >= DEATHS_IN_A_ROW:
            raise RayUnavailable(
                f"the actors of pool {pool.name} died {pool.deaths} times without finishing a window; "
                f"the last one said: {_first_line(death)}"
            ) from death

    def _failed(self, member: Member, error: RayTaskError) -> None:
        """A window ended by an exception: the actor lives, its rows have gone back."""
        member.call = None
        cause = error.cause
        if isinstance(cause, ConfigurationError):
            raise cause
        if isinstance(cause, InfrastructureError):
            self._resting[member.worker] = time.monotonic() + PAUSE_S
            log.warning("%s waits: %s", member.worker, cause.message)
            return
        log.error("a window of %s failed", member.worker, exc_info=error)

    def _sweep(self) -> None:
        if time.monotonic() >= self._sweep_at:
            self._pipeline.ledger.sweep()
            for pool in self._pools:
                pool.kill_hung()
            self._sweep_at = time.monotonic() + SWEEP_S

    def _stop(self) -> None:
        """Windows in flight may finish; what is not finished then goes back uncharged."""
        deadline = time.monotonic() + GRACE_S
        for pool in self._pools:
            for worker in pool.stop(max(0.0, deadline - time.monotonic())):
                self._pipeline.ledger.release(worker)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
