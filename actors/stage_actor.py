"""One class hosts any stage: an actor is a pipeline that does one window a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from actors.home import Home
from pipeline.errors import LedgerUnavailable
from pipeline.run_stage import WindowReport
from pipeline.settings import load_settings
from pipeline.wiring import Pipeline, kinds_of


@ray.remote
class StageActor:
    """Holds what its pool's stages need (a PDF child, OCR models, an encoder, the index) from window to window.

    It reads its settings itself, so that no credential travels as a task argument, which Ray's dashboard shows.
    """

    def __init__(self, pool: str, worker: str, config: Path | None, home: Path) -> None:
        """Only notes what it is for: what can fail is done in the first call, whose error reaches the caller."""
        self._kinds = kinds_of(pool)
        self._worker = worker
        self._config = config
        self._home = home
        self._pipeline: Pipeline | None = None
        self._lost_track = False

    def _open(self) -> Pipeline:
        if self._pipeline is None:
            Home(self._home).enlist()
            self._pipeline = Pipeline(load_settings(self._config, home=self._home)).open()
        return self._pipeline

    def work(self) -> WindowReport | None:
        """Do one window of the first kind of work that this pool has; None if there is none.

        Raises `LedgerUnavailable` in an outage. What was claimed when the answer was lost is given back, uncharged,
        at the next call.
        """
        pipeline = self._open()
        if self._lost_track:
            pipeline.ledger.release(self._worker)
            self._lost_track = False
        try:
            return self._work(pipeline)
        except LedgerUnavailable:
            self._lost_track = True
            raise

    def _work(self, pipeline: Pipeline) -> WindowReport | None:
        for kind in self._kinds:
            report = pipeline.run(kind, self._worker)
            if report is not None:
                return report
        return None

    def call_index(self, method: str, arguments: Sequence[Any]) -> Any:
        """A call to the index that this actor owns. What it gives one by one is sent as a whole."""
        answer = getattr(self._open().index, method)(*arguments)
        return list(answer) if isinstance(answer, Iterator) else answer

    def stop(self) -> None:
        """Flush the index and end the PDF child."""
        if self._pipeline is not None:
            self._pipeline.close()
