"""One class hosts any stage: an actor is a pipeline that does one window a call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from actors.home import Home
from pipeline.run_stage import WindowReport
from pipeline.settings import load_settings
from pipeline.wiring import Pipeline, kinds_of


@ray.remote
class StageActor:
    """Holds what its pool's stages need (a PDF child, OCR models, an encoder, the index) from window to window.

    It reads its settings itself, so that no credential travels as a task argument, which Ray's dashboard shows.
    """

    def __init__(self, pool: str, worker: str, config: Path | None, home: Path) -> None:
        self._kinds = kinds_of(pool)
        self._worker = worker
        Home(home).enlist()
        self._pipeline = Pipeline(load_settings(config, home=home)).open()

    def ready(self) -> str:
        """Returns once the actor is constructed."""
        return self._worker

    def work(self) -> WindowReport | None:
        """Do one window of the first kind of work that this pool has; None if there is none."""
        for kind in self._kinds:
            report = self._pipeline.run(kind, self._worker)
            if report is not None:
                return report
        return None

    def call_index(self, method: str, arguments: Sequence[Any]) -> Any:
        """A call to the index that this actor owns."""
        return getattr(self._pipeline.index, method)(*arguments)

    def stop(self) -> None:
        """Flush the index and end the PDF child."""
        self._pipeline.close()
