"""index: a page's vectors and final text become its point in a build's collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.domain import IndexBuild, IndexPoint, PageResult, PageTask, StageName
from pipeline.errors import PageError, PagegateError
from pipeline.failpoints import reached
from pipeline.identity import point_id
from pipeline.page_text import load_page_text
from pipeline.payload import payload_of
from pipeline.protocols import ObjectStore, SparseEncoder, VectorIndex
from pipeline.vectors import load_vectors


class IndexStage:
    name = StageName.INDEX

    def __init__(self, store: ObjectStore, index: VectorIndex, sparse: SparseEncoder) -> None:
        self._store = store
        self._index = index
        self._sparse = sparse

    def process(self, tasks: Sequence[PageTask]) -> Iterable[PageResult]:
        """Points of one build are written together; if one of them is refused, each is tried alone."""
        points: dict[int, IndexPoint] = {}
        for task in tasks:
            try:
                points[task.id] = self._point(task, build_of(task))
            except PagegateError as error:
                yield PageResult(task=task, error=error)
        reached("index.got")
        readable = [task for task in tasks if task.id in points]
        for build in {build_of(task).id: build_of(task) for task in readable}.values():
            mine = [task for task in readable if build_of(task).id == build.id]
            yield from self._write(build, mine, [points[task.id] for task in mine])

    def _write(
        self, build: IndexBuild, tasks: Sequence[PageTask], points: Sequence[IndexPoint]
    ) -> Iterable[PageResult]:
        try:
            self._index.create(build.collection, build.contract.dim)
            reached("index.sending")
            self._index.upsert(build.collection, points)
            reached("index.upserted")
        except PageError as error:
            if len(tasks) == 1:
                return [PageResult(task=tasks[0], error=error)]
            pairs = zip(tasks, points, strict=True)
            return [result for task, point in pairs for result in self._write(build, [task], [point])]
        pairs = zip(tasks, points, strict=True)
        return [PageResult(task=task, facts={"n_tokens": point.multivector.shape[0]}) for task, point in pairs]

    def _point(self, task: PageTask, build: IndexBuild) -> IndexPoint:
        record = load_page_text(self._store.get(task.inputs["text"]))
        return IndexPoint(
            id=point_id(build.id, task.version_id, task.page_index, task.fingerprint),
            multivector=load_vectors(self._store.get(task.inputs["vectors"])),
            sparse=self._sparse.encode_page(record.text),
            payload={
                "live": 1,
                **payload_of(
                    org=task.org,
                    document_id=task.document_id,
                    version_id=task.version_id,
                    page_index=task.page_index,
                    page_label=task.page_label,
                    build=build,
                    about=task.about,
                ),
            },
        )


def build_of(task: PageTask) -> IndexBuild:
    """A task of `encode` and `index` always has one; the ledger made it so."""
    if task.build is None:
        raise ValueError(f"{task.where} has no build in stage {task.stage}")
    return task.build
