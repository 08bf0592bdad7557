"""encode: a page's image or final text becomes its multivector, under a build's contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipeline.domain import Floats, PageResult, PageTask, StageName
from pipeline.errors import EncodeFailed, PagegateError
from pipeline.failpoints import reached
from pipeline.protocols import ObjectStore, PageEncoder
from pipeline.vectors import check_vectors, dump_vectors


class EncodeStage:
    name = StageName.ENCODE

    def __init__(self, store: ObjectStore, encoder: PageEncoder) -> None:
        self._store = store
        self._encoder = encoder

    def process(self, tasks: Sequence[PageTask]) -> Iterable[PageResult]:
        """The window is one batch; where it fails, each page is tried alone, so that only the bad one is charged."""
        contents: dict[int, bytes] = {}
        for task in tasks:
            try:
                contents[task.id] = self._store.get(task.inputs[self._encoder.contract.reads])
            except PagegateError as error:
                yield PageResult(task=task, error=error)
        reached("encode.got")
        readable = [task for task in tasks if task.id in contents]
        yield from self._encode(readable, [contents[task.id] for task in readable])

    def _encode(self, tasks: Sequence[PageTask], contents: Sequence[bytes]) -> Iterator[PageResult]:
        try:
            multivectors = self._encoder.encode_pages(contents)
        except EncodeFailed as error:
            if len(tasks) == 1:
                yield PageResult(task=tasks[0], error=error)
                return
            for task, content in zip(tasks, contents, strict=True):
                yield from self._encode([task], [content])
            return
        for task, multivector in zip(tasks, multivectors, strict=True):
            yield self._result(task, multivector)

    def _result(self, task: PageTask, multivector: Floats) -> PageResult:
        try:
            check_vectors(multivector, self._encoder.contract.dim, task.where)
        except PagegateError as error:
            return PageResult(task=task, error=error)
        artifacts = {"vectors": (dump_vectors(multivector), ".safetensors")}
        return PageResult(task=task, artifacts=artifacts, facts={"n_tokens": multivector.shape[0]})
