"""Follows submissions until they have ended, and shows how far the stages are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pipeline.domain import StageName, Submission, TaskState
from pipeline.protocols import Ledger

LOOK_S = 0.5
"""How often the ledger is asked; never more than a twentieth of the time goes into asking."""
PLAIN_S = 10.0
"""Without a terminal, how often a line is printed."""


class Watch:
    """Asks the ledger now and then. `on_end` is told of each submission once, when it has ended."""

    def __init__(self, ledger: Ledger, ids: Sequence[str], on_end: Callable[[Submission], None]) -> None:
        self._ledger = ledger
        self._open = dict.fromkeys(ids)
        self._versions: dict[str, None] = {}
        self._on_end = on_end
        self._next_look = 0.0
        self.total = len(self._open)
        self.ended: list[Submission] = []
        self.tasks: Mapping[tuple[str, str], int] = {}

    def finished(self) -> bool:
        """Whether all have ended; asks the ledger if it is time to."""
        if self._open and time.monotonic() >= self._next_look:
            self.look()
        return not self._open

    def look(self) -> None:
        begun = time.monotonic()
        for submission in self._ledger.views.submissions(list(self._open)):
            if submission.version_id:
                self._versions[submission.version_id] = None
            if submission.state.ended:
                del self._open[submission.id]
                self.ended.append(submission)
                self._on_end(submission)
        self.tasks = self._ledger.views.progress(list(self._versions))
        took = time.monotonic() - begun
        self._next_look = begun + max(LOOK_S, 20 * took)


class StageBars:
    """Bars on stderr: one a stage, one for documents. Without a terminal, a line now and then."""

    def __init__(self, watch: Watch, console: Console) -> None:
        self._watch = watch
        self._console = console
        columns = TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._bars: dict[str, TaskID] = {}
        self._next_line = time.monotonic() + PLAIN_S

    def __enter__(self) -> StageBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.look()
        self.update()
        self._progress.stop()

    def update(self) -> None:
        rows = self._rows()
        for name, (done, total) in rows.items():
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name, total=total)
            self._progress.update(self._bars[name], completed=done, total=total)
        if not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_S
            self._console.print("  ".join(f"{name} {done}/{total}" for name, (done, total) in rows.items()))

    def _rows(self) -> dict[str, tuple[int, int]]:
        rows = {}
        for stage in StageName:
            counts = {state: self._watch.tasks.get((stage, state), 0) for state in TaskState}
            total = sum(counts.values()) - counts[TaskState.SUPERSEDED]
            if total:
                rows[stage.value] = (counts[TaskState.DONE] + counts[TaskState.FAILED], total)
        return rows | {"documents": (len(self._watch.ended), self._watch.total)}
