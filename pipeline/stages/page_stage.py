"""The base of stages that look at one page at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from pipeline.domain import PageResult, PageTask
from pipeline.errors import PagegateError


class PageStage(ABC):
    """Owns the loop; a stage decides about one page, and says so by raising when it cannot."""

    def process(self, tasks: Sequence[PageTask]) -> Iterable[PageResult]:
        for task in tasks:
            yield self._attempt(task)

    @abstractmethod
    def process_page(self, task: PageTask) -> PageResult:
        """What this stage makes of `task`. Raises a `PagegateError` of the kind that says what is to happen."""

    def _attempt(self, task: PageTask) -> PageResult:
        try:
            return self.process_page(task)
        except PagegateError as error:
            return PageResult(task=task, error=error)
