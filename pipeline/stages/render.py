"""render: from one opened PDF, the page's image and the evidence of its native text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.domain import PageResult, PageTask, StageName
from pipeline.errors import ArtifactLost, PagegateError, StoreUnavailable
from pipeline.failpoints import reached
from pipeline.pdf import PdfReader, RenderedPage
from pipeline.protocols import ObjectStore
from pipeline.settings import RenderOptions


class RenderStage:
    name = StageName.RENDER

    def __init__(self, store: ObjectStore, reader: PdfReader) -> None:
        self._store = store
        self._reader = reader

    def process(self, tasks: Sequence[PageTask]) -> Iterable[PageResult]:
        """Pages of one source under the same options are read together, so a window opens each PDF once."""
        for _, group in itertools.groupby(tasks, key=_same_file):
            yield from self._read(list(group))

    def _read(self, tasks: Sequence[PageTask]) -> Iterator[PageResult]:
        try:
            path = self._store.fetch(tasks[0].inputs["source"])
        except (ArtifactLost, StoreUnavailable) as error:
            yield from (PageResult(task=task, error=error) for task in tasks)
            return
        reached("render.got")
        indices = [task.page_index for task in tasks]
        rendered = self._reader.pages(path, indices, _options(tasks[0].options))
        for task, page in zip(tasks, rendered, strict=True):
            yield _result(task, page)


def _same_file(task: PageTask) -> tuple[str, str]:
    return task.inputs["source"].key, str(sorted(task.options.items()))


def _options(options: Mapping[str, Any]) -> RenderOptions:
    return RenderOptions(**{name: value for name, value in options.items() if name != "version"})


def _result(task: PageTask, page: RenderedPage | PagegateError) -> PageResult:
    if isinstance(page, PagegateError):
        return PageResult(task=task, error=page)
    return PageResult(
        task=task,
        artifacts={"image": (page.image, page.image_suffix), "evidence": (page.evidence, ".json")},
        facts={"width": page.width, "height": page.height, "dpi": page.dpi},
    )
