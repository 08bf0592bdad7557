"""The embedded vector index: qdrant-edge, Qdrant's engine inside the process that owns the folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import qdrant_edge as engine

from pipeline.domain import Candidates, IndexPoint, IndexQuery, PointFacts, SparseVector
from pipeline.errors import ContractMismatch, DiskFull, IndexBusy, IndexUnavailable
from pipeline.metadata import Scope
from pipeline.stores.points import (
    DOCUMENT,
    FROM,
    GENERATION,
    LABELS,
    LIVE,
    ORG,
    PAGE_VECTOR,
    TEXT_VECTOR,
    TYPE,
    UNTIL,
    check_point,
    check_query,
    facts_of,
)

COLLECTION = re.compile(r"[A-Za-z0-9_-]{1,200}")
"""Names that are folder names anywhere; the dot is left for our own files beside the shards."""

READ_BATCH = 32
"""Points read back at once: 32 pages of 750 x 128 are 12 MB in the engine, 3 MB a page as Python floats."""

SCROLL_BATCH = 1_000

RESERVE_BYTES = 256 * 1024**2
"""Room that has to be left before a write. The engine writes through memory maps, each grown by 32 MiB, and a
full disk kills the process with SIGBUS instead of raising."""

POLL_S = 0.05


class EdgeIndex:
    """`VectorIndex` of one process: a collection is a shard folder under `root`.

    Every shard has one owner, its opener, until `close` or the owner's death; anyone else gets `IndexBusy`
    after waiting `wait_s` seconds. To be used by one thread.

    Search is exact: no graph (``m=0``), every visible page is scored (3,000 pages of 250 x 128: 100 ms).
    Vectors are float16 on disk, 57 % of the space of float32.

    A write is flushed before it returns: the engine's log alone survives ``kill -9`` but not a power loss,
    and only a flush shortens it (3,000 pages unflushed: 650 MB instead of 235). That costs 0.4 ms a page in
    windows of 32. Optimising does not make queries faster; it gives the space of deleted points back, so
    `close` does it after deletions only (the engine itself: from 1,000 points and a fifth of them deleted).

    IDF counts the points that have terms, over all tenants, and deleted ones until the shard is opened again
    (qdrant/qdrant#6735). The engine keeps no checksum of vectors: damage to them need not show.
    """

    def __init__(self, root: Path, *, wait_s: float = 0.0) -> None:
        self._root = root.absolute()
        self._wait_s = wait_s
        self._shards: dict[str, _Shard] = {}

    def create(self, collection: str, dim: int) -> None:
        """Make the collection if it is not there. Raises `ContractMismatch` if it has another dimension."""
        shard = self._shards.get(collection) or self._own(collection, dim)
        if shard.dim != dim:
            raise ContractMismatch(
                f"collection {collection} in {self._root} holds vectors of {shard.dim} numbers, not {dim}: "
                "give the new encoder a collection of its own"
            )

    def upsert(self, collection: str, points: Sequence[IndexPoint]) -> None:
        shard = self._open(collection)
        for point in points:
            check_point(point, shard.dim)
        self._check_room(points)
        if points:
            _write(shard, engine.UpdateOperation.upsert_points([_to_engine(point) for point in points]))

    def inspect(self, collection: str, point_ids: Sequence[str]) -> Mapping[str, PointFacts]:
        """0.7 s for 1,000 pages of 250 x 128, most of it spent on making Python floats and unmaking them."""
        shard = self._open(collection)
        facts = {}
        for start in range(0, len(point_ids), READ_BATCH):
            with _translated(shard.folder):
                records = shard.engine.retrieve(list(point_ids[start : start + READ_BATCH]), True, True)
            facts.update({str(record.id): _facts(record) for record in records})
        return facts

    def search(self, collection: str, query: IndexQuery, limit: int) -> Candidates:
        """Two queries: one batch of both measured the same."""
        visible = _inside(query.scope)
        shard = self._open(collection)
        check_query(query, shard.dim)
        rows = query.multivector
        return Candidates(
            dense=_nearest(shard, PAGE_VECTOR, rows, visible, limit) if len(rows) else [],
            sparse=_nearest(shard, TEXT_VECTOR, _terms(query.sparse), visible, limit),
        )

    def promote(self, collection: str, point_ids: Sequence[str], generation: int) -> None:
        """By filter, because setting the payload of an absent id is an error that stops half-way."""
        later = engine.FieldCondition(GENERATION, range=engine.RangeFloat(gt=float(generation)))
        among = engine.Filter(must=[engine.HasIdCondition(set(point_ids))], must_not=[later])
        self._set(collection, among, {LIVE: 1, GENERATION: generation})

    def demote(self, collection: str, document_id: str, generation: int) -> None:
        older = engine.Filter(
            must=[
                _equals(DOCUMENT, document_id),
                engine.FieldCondition(GENERATION, range=engine.RangeFloat(lt=float(generation))),
            ]
        )
        self._set(collection, older, {LIVE: 0})

    def delete(self, collection: str, point_ids: Sequence[str]) -> None:
        shard = self._open(collection)
        _write(shard, engine.UpdateOperation.delete_points(list(point_ids)))
        shard.deleted_from = True

    def point_ids(self, collection: str) -> Iterator[str]:
        shard = self._open(collection)
        offset = None
        while True:
            with _translated(shard.folder):
                records, offset = shard.engine.scroll(engine.ScrollRequest(offset=offset, limit=SCROLL_BATCH))
            yield from (str(record.id) for record in records)
            if offset is None:
                return

    def close(self) -> None:
        """Flush and release every shard; those that points were deleted from give their space back first."""
        while self._shards:
            _, shard = self._shards.popitem()
            with shard.lock, _translated(shard.folder):
                if shard.deleted_from and _may_be_copied(shard.folder):
                    shard.engine.optimize()
                shard.engine.flush()
                shard.engine.close()

    def _open(self, collection: str) -> _Shard:
        return self._shards.get(collection) or self._own(collection, dim=None)

    def _own(self, collection: str, dim: int | None) -> _Shard:
        """Take the shard's lock and load it; make it first if `dim` says how."""
        folder = self._folder(collection)
        with _translated(folder), contextlib.ExitStack() as undo:
            if dim is None and not folder.is_dir():
                raise IndexUnavailable(f"no collection {collection} in {self._root}: create its build first")
            self._root.mkdir(parents=True, exist_ok=True)
            lock = undo.enter_context(_acquire(folder, self._wait_s))
            if dim is not None and not folder.is_dir():
                self._check_room(())
                _make(folder, dim)
            shard = _load(folder, lock)
            undo.pop_all()
        self._shards[collection] = shard
        return shard

    def _folder(self, collection: str) -> Path:
        if not COLLECTION.fullmatch(collection):
            raise ValueError(f"{collection!r} is no name of a collection: use letters, digits, _ and -")
        return self._root / collection

    def _set(self, collection: str, among: engine.Filter, payload: dict[str, Any]) -> None:
        _write(self._open(collection), engine.UpdateOperation.set_payload_by_filter(among, payload))

    def _check_room(self, points: Sequence[IndexPoint]) -> None:
        """A point is written twice: float32 into the log, float16 into the segment."""
        needed = RESERVE_BYTES + sum(point.multivector.size * (4 + 2) for point in points)
        free = shutil.disk_usage(self._root).free
        if free < needed:
            raise DiskFull(
                f"{free >> 20} MiB free for the index in {self._root}, {needed >> 20} needed: make room",
                path=str(self._root),
            )


@dataclasses.dataclass(kw_only=True, slots=True)
class _Shard:
    """An open shard. Whoever holds `lock` owns the folder."""

    engine: engine.EdgeShard
    folder: Path
    dim: int
    lock: TextIO
    deleted_from: bool = False


def _inside(scope: Scope) -> engine.Filter:
    """The one place that says what a question may find: its tenant's points, less those known not to be served."""
    must: list[Any] = [_equals(ORG, scope.org)]
    if scope.type:
        must.append(_equals(TYPE, scope.type))
    if scope.labels:
        must.append(engine.FieldCondition(LABELS, match=engine.MatchAny(list(scope.labels))))
    if scope.as_of is None:
        return engine.Filter(must=must, must_not=[_equals(LIVE, 0)])
    day = float(scope.as_of.toordinal())
    must.append(engine.FieldCondition(FROM, range=engine.RangeFloat(lte=day)))
    must.append(engine.FieldCondition(UNTIL, range=engine.RangeFloat(gt=day)))
    return engine.Filter(must=must)


def _equals(field: str, value: str | int) -> engine.FieldCondition:
    return engine.FieldCondition(field, match=engine.MatchValue(value))


def _nearest(shard: _Shard, using: str, vector: Any, visible: engine.Filter, limit: int) -> Sequence[tuple[str, float]]:
    request = engine.QueryRequest(
        limit=limit,
        query=engine.Query.Nearest(vector, using=using),
        filter=visible,
        params=engine.SearchParams(exact=True),
    )
    with _translated(shard.folder):
        return [(str(found.id), found.score) for found in shard.engine.query(request)]


def _write(shard: _Shard, operation: engine.UpdateOperation) -> None:
    with _translated(shard.folder):
        shard.engine.update(operation)
        shard.engine.flush()


def _to_engine(point: IndexPoint) -> engine.Point:
    vectors: Any = {PAGE_VECTOR: point.multivector, TEXT_VECTOR: _terms(point.sparse)}
    return engine.Point(point.id, vectors, dict(point.payload))


def _terms(sparse: SparseVector) -> engine.SparseVector:
    return engine.SparseVector(list(sparse.indices), list(sparse.values))


def _facts(record: engine.Record) -> PointFacts:
    vectors: Any = record.vector or {}
    text = vectors.get(TEXT_VECTOR)
    rows = np.asarray(vectors.get(PAGE_VECTOR, ()), dtype=np.float32)
    return facts_of(record.payload or {}, rows, len(text.indices) if text else 0)


def _make(folder: Path, dim: int) -> None:
    """Build the shard beside its place and move it there whole, so that no half-made one is ever opened."""
    unfinished = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    shard = engine.EdgeShard.create(str(unfinished), _config(dim))
    for field, schema in _indexed_fields().items():
        shard.update(engine.UpdateOperation.create_field_index(field, schema))
    shard.close()
    unfinished.rename(folder)


def _config(dim: int) -> engine.EdgeConfig:
    """Dot product: a question's rows carry weights as their length, a page's rows are of unit length."""
    page = engine.EdgeVectorParams(
        size=dim,
        distance=engine.Distance.Dot,
        multivector_config=engine.MultiVectorConfig(engine.MultiVectorComparator.MaxSim),
        datatype=engine.VectorStorageDatatype.Float16,
        hnsw_config=engine.HnswIndexConfig(m=0, ef_construct=16, full_scan_threshold=10_000),
        memory=engine.Memory.Cold,
    )
    text = engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf)
    return engine.EdgeConfig(vectors={PAGE_VECTOR: page}, sparse_vectors={TEXT_VECTOR: text})


def _indexed_fields() -> Mapping[str, Any]:
    return {
        ORG: engine.KeywordIndexParams(is_tenant=True),
        DOCUMENT: engine.PayloadSchemaType.Keyword,
        LIVE: engine.IntegerIndexParams(lookup=True, range=False),
        GENERATION: engine.IntegerIndexParams(lookup=False, range=True),
        TYPE: engine.PayloadSchemaType.Keyword,
        LABELS: engine.PayloadSchemaType.Keyword,
        FROM: engine.IntegerIndexParams(lookup=False, range=True),
        UNTIL: engine.IntegerIndexParams(lookup=False, range=True),
    }


def _may_be_copied(folder: Path) -> bool:
    """Optimising writes the shard anew beside the old one, and would die of a full disk like any write."""
    size = sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))
    return shutil.disk_usage(folder).free > size + RESERVE_BYTES


def _load(folder: Path, lock: TextIO) -> _Shard:
    """The dimension is the shard's own; the engine tells it only through its configuration file."""
    shard = engine.EdgeShard.load(str(folder))
    config = json.loads((folder / "edge_config.json").read_text())
    return _Shard(engine=shard, folder=folder, dim=config["vectors"][PAGE_VECTOR]["size"], lock=lock)


def _acquire(folder: Path, wait_s: float) -> TextIO:
    """The lock beside a shard, freed by the kernel when its holder dies. Raises `IndexBusy`.

    The engine locks its log too, but tells so only in words.
    """
    lock = folder.with_name(f"{folder.name}.lock").open("a+")
    deadline = time.monotonic() + wait_s
    while not _try_lock(lock):
        if time.monotonic() >= deadline:
            with lock:
                raise IndexBusy(_who_owns(folder, lock), path=str(folder))
        time.sleep(POLL_S)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _try_lock(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who_owns(folder: Path, lock: TextIO) -> str:
    lock.seek(0)
    return (
        f"the index in {folder} is open in process {lock.read() or 'unknown'}: "
        "let that worker do the work, or stop it and try again"
    )


@contextlib.contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """The one place where the engine's errors, and those of the files beside it, become ours."""
    try:
        yield
    except BaseException as error:
        if not (_is_of_engine(error) or isinstance(error, OSError)):
            raise
        raise IndexUnavailable(
            f"the index in {folder} failed: {error}; open it again, and rebuild it if that fails too",
            path=str(folder),
        ) from error


def _is_of_engine(error: BaseException) -> bool:
    """The engine raises `Exception` itself, no subclass, and where its Rust code panics a `BaseException`
    that cannot be imported. Others (a `ValueError` for an id that is no UUID, an interrupt) are the caller's.
    """
    return type(error) is Exception or type(error).__name__ == "PanicException"
