"""The vector index on a Qdrant server, over gRPC.

Run so far: against qdrant-client's ``:memory:`` mode and a test gRPC server over it, never against a real server.
So these are coded from Qdrant's documentation and unproved: durability of ``wait=true`` writes (WAL), recall and
speed of the HNSW graph on `pooled`, float16 storage and vectors on disk, quantization (none is asked for), the
exact code and size at which a server refuses a request, its time-outs under load, shards and replicas, and creation
by two processes at once. ``PAGEGATE_TEST_QDRANT_URL`` runs the contract suite on a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse

from pipeline.batches import batches
from pipeline.domain import Candidates, IndexPoint, IndexQuery, PointFacts
from pipeline.errors import ContractMismatch, IndexUnavailable
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
)
from pipeline.stores.qdrant_connection import connect, explain, is_too_large
from pipeline.stores.qdrant_options import QdrantOptions
from pipeline.stores.qdrant_points import (
    FIRST_READ,
    by_meaning,
    by_terms,
    dim_of,
    indexed_fields,
    pages_within,
    requests,
    stored_facts,
    vectors_config,
)

IDS = 1_000
"""Ids in one request: 40 KB."""

EVERY_REPLICA = models.ReadConsistencyType.ALL
"""What is read back as proof has to be on all of them: a write waits for one only. Free without replicas."""

TAKEN = (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT)
"""Answers to a creation that came second; older servers give the second."""


class QdrantIndex:
    """`VectorIndex` on a server; a collection is a build.

    `page` holds the full multivectors, on disk and without a graph; `pooled` (`pipeline.pooling`) carries the graph
    that finds `prefetch_factor` candidates for each page asked for, and `page` re-scores them. So `search` is exact
    in its scores and approximate in its recall.

    A write waits until it is applied (``wait=true``), and one whose answer is lost may be sent again: same id, same
    content. Nothing is repeated here; `IndexUnavailable` says that the caller should. To be used by one thread.

    Connects at the first call, and again after `close`. `client`: used instead of connecting, and closed by `close`;
    for tests on ``QdrantClient(":memory:")``.
    """

    def __init__(self, options: QdrantOptions, client: QdrantClient | None = None) -> None:
        self._options = options
        self._opened = client
        self._dims: dict[str, int] = {}
        self._made: set[str] = set()

    def create(self, collection: str, dim: int) -> None:
        """Make the collection if it is not there; free of cost when this object has seen it.

        Two that create it at once both succeed, and what a creation cut off left undone is done by the next.
        Raises `ContractMismatch` if it has another dimension, or other vectors.
        """
        if collection not in self._made:
            self._make(collection, dim)
        if self._dims[collection] != dim:
            raise ContractMismatch(
                f"collection {collection} at {self._options.address} holds vectors of {self._dims[collection]} "
                f"numbers, not {dim}: give the new encoder a collection of its own"
            )

    def upsert(self, collection: str, points: Sequence[IndexPoint]) -> None:
        """In requests of at most `request_bytes`, or of one page. A failure may leave the first of them written."""
        dim = self._dim(collection)
        for point in points:
            check_point(point, dim)
        for request in requests(points, self._options.request_bytes):
            self._send(collection, request)

    def inspect(self, collection: str, point_ids: Sequence[str]) -> Mapping[str, PointFacts]:
        """`sound` is said of both multivectors: a point without `pooled` would never be found."""
        dim = self._dim(collection)
        facts: dict[str, PointFacts] = {}
        start, step = 0, FIRST_READ
        while start < len(point_ids):
            facts.update(self._read(collection, point_ids[start : start + step]))
            start += step
            step = pages_within(self._options.request_bytes, dim, facts)
        return facts

    def search(self, collection: str, query: IndexQuery, limit: int) -> Candidates:
        """Both rankings in one round trip."""
        visible = _inside(query.scope)
        check_query(query, self._dim(collection))
        asked: dict[str, models.QueryRequest] = {}
        if len(query.multivector):
            asked[PAGE_VECTOR] = by_meaning(query.multivector, visible, limit, self._options.prefetch_factor)
        if query.sparse.indices:
            asked[TEXT_VECTOR] = by_terms(query.sparse, visible, limit)
        found = dict(zip(asked, self._query(collection, list(asked.values())), strict=True))
        return Candidates(dense=found.get(PAGE_VECTOR, []), sparse=found.get(TEXT_VECTOR, []))

    def promote(self, collection: str, point_ids: Sequence[str], generation: int) -> None:
        """By filter, because setting the payload of an absent id is an error."""
        for ids in batches(point_ids, IDS):
            among = models.Filter(
                must=[models.HasIdCondition(has_id=list(ids))], must_not=[_promoted_after(generation)]
            )
            self._set(collection, among, {LIVE: 1, GENERATION: generation})

    def demote(self, collection: str, document_id: str, generation: int) -> None:
        older = models.FieldCondition(key=GENERATION, range=models.Range(lt=generation))
        self._set(collection, models.Filter(must=[_equals(DOCUMENT, document_id), older]), {LIVE: 0})

    def delete(self, collection: str, point_ids: Sequence[str]) -> None:
        self._dim(collection)
        for ids in batches(point_ids, IDS):
            self._remove(collection, models.FilterSelector(filter=_among(ids)))

    def point_ids(self, collection: str) -> Iterator[str]:
        self._dim(collection)
        offset = None
        while True:
            with self._calls(collection) as client:
                records, offset = client.scroll(
                    collection, limit=IDS, offset=offset, with_payload=False, with_vectors=False
                )
            yield from (str(record.id) for record in records)
            if offset is None:
                return

    def close(self) -> None:
        """Release the connection; nothing is left to flush."""
        client, self._opened = self._opened, None
        if client is not None:
            client.close()

    def _make(self, collection: str, dim: int) -> None:
        """Payload indexes before the first point: the graph is built with them. Making one again changes nothing."""
        with self._calls(collection) as client:
            if not client.collection_exists(collection):
                self._make_collection(client, collection, dim)
        if self._dim(collection) == dim:
            for field, schema in indexed_fields().items():
                self._index_field(collection, field, schema)
            self._made.add(collection)

    def _index_field(self, collection: str, field: str, schema: Any) -> None:
        self._write(collection, lambda client: client.create_payload_index(collection, field, schema, wait=True))

    def _make_collection(self, client: QdrantClient, collection: str, dim: int) -> None:
        try:
            client.create_collection(
                collection,
                vectors_config=vectors_config(dim),
                sparse_vectors_config={TEXT_VECTOR: models.SparseVectorParams(modifier=models.Modifier.IDF)},
                shard_number=self._options.shard_number,
                replication_factor=self._options.replication_factor,
            )
        except grpc.RpcError as error:
            if error.code() not in TAKEN or not client.collection_exists(collection):
                raise

    def _dim(self, collection: str) -> int:
        """Raises `IndexUnavailable` if there is no such collection."""
        if collection not in self._dims:
            place = f"collection {collection} at {self._options.address}"
            with self._calls(collection) as client:
                if not client.collection_exists(collection):
                    raise IndexUnavailable(f"no {place}: create its build first")
                self._dims[collection] = dim_of(client.get_collection(collection), place)
        return self._dims[collection]

    def _send(self, collection: str, points: Sequence[models.PointStruct]) -> None:
        """Write, in halves if the server refuses the size."""
        try:
            self._write(collection, lambda client: client.upsert(collection, list(points), wait=True))
            return
        except IndexUnavailable as error:
            if not is_too_large(error.__cause__) or len(points) == 1:
                raise
        half = len(points) // 2
        self._send(collection, points[:half])
        self._send(collection, points[half:])

    def _read(self, collection: str, ids: Sequence[str]) -> Mapping[str, PointFacts]:
        """Read back, in halves if the answer would be larger than the channel takes."""
        try:
            with self._calls(collection) as client:
                records = client.retrieve(
                    collection, list(ids), with_payload=True, with_vectors=True, consistency=EVERY_REPLICA
                )
            return {str(record.id): stored_facts(record) for record in records if str(record.id) in ids}
        except IndexUnavailable as error:
            if not is_too_large(error.__cause__) or len(ids) == 1:
                raise
        half = len(ids) // 2
        return {**self._read(collection, ids[:half]), **self._read(collection, ids[half:])}

    def _query(self, collection: str, asked: Sequence[models.QueryRequest]) -> list[list[tuple[str, float]]]:
        if not asked:
            return []
        with self._calls(collection) as client:
            answers = client.query_batch_points(collection, asked)
        return [[(str(point.id), point.score) for point in answer.points] for answer in answers]

    def _set(self, collection: str, among: models.Filter, payload: dict[str, Any]) -> None:
        self._dim(collection)
        chosen = models.FilterSelector(filter=among)
        self._write(collection, lambda client: client.set_payload(collection, payload, chosen, wait=True))

    def _remove(self, collection: str, chosen: models.FilterSelector) -> None:
        self._write(collection, lambda client: client.delete(collection, chosen, wait=True))

    def _write(self, collection: str, work: Callable[[QdrantClient], models.UpdateResult]) -> None:
        """Raises `IndexUnavailable` for a write that is only queued: it may not be seen by the next read."""
        with self._calls(collection) as client:
            status = work(client).status
        if status is not models.UpdateStatus.COMPLETED:
            raise IndexUnavailable(f"Qdrant at {self._options.address} has not applied a write yet ({status})")

    @contextlib.contextmanager
    def _calls(self, collection: str) -> Iterator[QdrantClient]:
        """The one place where the client's errors become ours."""
        if self._opened is None:
            self._opened = connect(self._options)
        try:
            yield self._opened
        except ResourceExhaustedResponse as error:
            raise IndexUnavailable(
                f"Qdrant at {self._options.address} asks for a pause of {error.retry_after_s} s: {error}"
            ) from error
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                self._dims.pop(collection, None)
                self._made.discard(collection)
            raise IndexUnavailable(explain(error, self._options), address=self._options.address) from error


def _inside(scope: Scope) -> models.Filter:
    """The one place that says what a question may find: its tenant's points, less those known not to be served."""
    must: list[Any] = [_equals(ORG, scope.org)]
    if scope.type:
        must.append(_equals(TYPE, scope.type))
    if scope.labels:
        must.append(models.FieldCondition(key=LABELS, match=models.MatchAny(any=list(scope.labels))))
    if scope.as_of is None:
        return models.Filter(must=must, must_not=[_equals(LIVE, 0)])
    day = scope.as_of.toordinal()
    must.append(models.FieldCondition(key=FROM, range=models.Range(lte=day)))
    must.append(models.FieldCondition(key=UNTIL, range=models.Range(gt=day)))
    return models.Filter(must=must)


def _promoted_after(generation: int) -> models.FieldCondition:
    return models.FieldCondition(key=GENERATION, range=models.Range(gt=generation))


def _equals(field: str, value: str | int) -> models.FieldCondition:
    return models.FieldCondition(key=field, match=models.MatchValue(value=value))


def _among(ids: Sequence[str]) -> models.Filter:
    return models.Filter(must=[models.HasIdCondition(has_id=list(ids))])
