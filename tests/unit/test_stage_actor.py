"""An actor in an outage of the ledger, without Ray running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.stage_actor import StageActor
from pipeline.errors import LedgerUnavailable


class AwayLedger:
    """Whether it answers is a test's to say; notes whose leases were given back."""

    def __init__(self) -> None:
        self.away = False
        self.released: list[str] = []

    def release(self, worker: str) -> None:
        self._answer()
        self.released.append(worker)

    def run(self, kind: str, worker: str) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.away:
            raise LedgerUnavailable("away")

    @property
    def ledger(self) -> AwayLedger:
        return self


def test_what_was_claimed_when_the_answer_was_lost_is_given_back_before_the_next_window() -> None:
    made: Any = StageActor
    actor = made.__ray_metadata__.modified_class("pdf", "pdf-1", None, Path("home"))
    actor._pipeline = pipeline = AwayLedger()
    actor.work()
    assert pipeline.released == []
    pipeline.away = True
    for _ in range(2):
        with pytest.raises(LedgerUnavailable):
            actor.work()
    pipeline.away = False
    actor.work()
    actor.work()
    assert pipeline.released == ["pdf-1"]
