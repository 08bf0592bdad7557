"""Works until submissions have ended: alone in this home, or by following who is at work in it."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from actors.environment import join_cluster, own_ray
from actors.home import Home
from pipeline.messaging import Messenger
from pipeline.wiring import INTAKE, Pipeline

if TYPE_CHECKING:
    from actors.supervisor import Supervisor

log = logging.getLogger("pagegate")

INTAKE_FIRST_S = 5.0
"""How long submissions are taken in before Ray is started: often there is nothing left to do then."""
FOLLOW_S = 0.5


@contextlib.contextmanager
def messenger(pipeline: Pipeline, *, consume: bool) -> Iterator[Messenger | None]:
    """Publishes the ledger's events meanwhile and, with `consume`, takes submissions in; None without a broker."""
    options = pipeline.settings.broker
    if options is None:
        yield None
        return
    with Messenger(pipeline.ledger, pipeline.broker, options.notifications, consume=consume) as running:
        yield running


def work_until(
    pipeline: Pipeline, config: Path | None, finished: Callable[[], bool], on_tick: Callable[[], None]
) -> bool:
    """Process the ledger's work until `finished`; False if a signal stopped it before.

    If another process is at work in this home, it does the work and this one watches; should it end, this one
    takes over.
    """
    home = Home(pipeline.settings.home)
    if not home.acquire():
        log.warning("another process is at work in %s: following it", pipeline.settings.home)
        while not home.acquire():
            if finished():
                return True
            on_tick()
            time.sleep(FOLLOW_S)
    try:
        home.kill_orphans()
        if pipeline.settings.ledger.url is None:  # whoever held a lease in this home is no longer alive
            pipeline.ledger.release(None)
        _take_in(pipeline, on_tick)
        return finished() or _supervise(pipeline, config, home, finished, on_tick)
    finally:
        home.release()


def _take_in(pipeline: Pipeline, on_tick: Callable[[], None]) -> None:
    deadline = time.monotonic() + INTAKE_FIRST_S
    while time.monotonic() < deadline and pipeline.run(INTAKE, "intake"):
        on_tick()


def _supervise(
    pipeline: Pipeline,
    config: Path | None,
    home: Home,
    finished: Callable[[], bool],
    on_tick: Callable[[], None],
) -> bool:
    settings = pipeline.settings
    token = join_cluster() if settings.ray.address else own_ray()

    import ray

    from actors.cluster import join, start_local
    from actors.supervisor import Supervisor

    if settings.ray.address:
        if settings.index.kind == "edge":
            log.warning("index.kind: edge on several nodes works through one owner on this node, for trials only")
        join(settings.ray.address, home, token)
    else:
        start_local(settings.pools, home, token)
    try:
        supervisor = Supervisor(pipeline, config)
        with _stops(supervisor):
            supervisor.run(finished, lambda _report: on_tick())
        return not supervisor.stopping
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _stops(supervisor: Supervisor) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the supervisor after the windows in flight; a second one ends it at once."""

    def stop(number: int, _frame: FrameType | None) -> None:
        if supervisor.stopping:
            raise KeyboardInterrupt
        supervisor.stopping = True
        log.warning("stopping after the windows in flight (%s); again to stop at once", signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
