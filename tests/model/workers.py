"""Real code that stops after each of its effects, and goes on, or not, when a test says so.

A worker runs in a thread of its own, but never at the same time as the test: `step` lets it run to the next of the
effects that `pipeline.failpoints` names, and waits for it there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipeline import failpoints
from pipeline.domain import Message

_mine = threading.local()


class Killed(BaseException):
    """Ends a worker where it stands: nothing that catches an `Exception` notices."""


class Worker:
    """`work` gets the worker's name, under which the ledger knows it."""

    def __init__(self, kind: str, name: str, work: Callable[[str], object], message: Message | None = None) -> None:
        self.kind = kind
        self.name = name
        self.message = message
        """What a consumer was handed."""
        self.at: str | None = None
        """The effect after which it stands; None before the first one and after the end."""
        self.ended = False
        self._work = work
        self._error: Exception | None = None
        self._killed = False
        self._go, self._stand = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> str | None:
        """Run to the next effect; returns its name, None at the end. Raises what the work raised."""
        self.at = None
        self._go.release()
        self._stand.acquire()
        if self.ended:
            self._thread.join()
        if self._error:
            raise self._error
        return self.at

    def kill(self) -> None:
        self._killed = True
        if not self.ended:
            self.step()

    def _run(self) -> None:
        self._go.acquire()
        _mine.worker = self
        try:
            if not self._killed:
                self._work(self.name)
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - handed to whoever made the step
            self._error = error
        self.ended = True
        self._stand.release()

    def reached(self, name: str) -> None:
        if not self._killed:
            self.at = name
            self._stand.release()
            self._go.acquire()
        if self._killed:
            raise Killed


def _watch(name: str) -> None:
    worker: Worker | None = getattr(_mine, "worker", None)
    if worker:
        worker.reached(name)


def stop_at_effects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failpoints, "_watch", _watch)
