"""An exact vector index in memory, for tests: short enough to be seen to be right."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

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
    TYPE,
    UNTIL,
    check_point,
    check_query,
    facts_of,
)


class MemoryIndex:
    """`VectorIndex` by brute force. Nothing outlives the object."""

    def __init__(self) -> None:
        self._points: dict[str, dict[str, IndexPoint]] = {}
        self._dims: dict[str, int] = {}

    def create(self, collection: str, dim: int) -> None:
        if self._dims.setdefault(collection, dim) != dim:
            raise ContractMismatch(f"collection {collection} has another dimension than {dim}")
        self._points.setdefault(collection, {})

    def upsert(self, collection: str, points: Sequence[IndexPoint]) -> None:
        stored = self._of(collection)
        for point in points:
            check_point(point, self._dims[collection])
        stored.update({point.id: _copy(point) for point in points})

    def inspect(self, collection: str, point_ids: Sequence[str]) -> Mapping[str, PointFacts]:
        stored = self._of(collection)
        return {
            id: facts_of(stored[id].payload, stored[id].multivector, len(stored[id].sparse.indices))
            for id in point_ids
            if id in stored
        }

    def search(self, collection: str, query: IndexQuery, limit: int) -> Candidates:
        stored = self._of(collection)
        check_query(query, self._dims[collection])
        visible = _inside(query.scope, stored.values())
        idf = _idf(list(stored.values()))
        alike = visible if len(query.multivector) else []
        sharing = [point for point in visible if set(point.sparse.indices) & set(query.sparse.indices)]
        return Candidates(
            dense=_best(alike, lambda point: _max_sim(query, point), limit),
            sparse=_best(sharing, lambda point: _bm25(query, point, idf), limit),
        )

    def promote(self, collection: str, point_ids: Sequence[str], generation: int) -> None:
        stored = self._of(collection)
        for id in set(point_ids) & set(stored):
            if stored[id].payload.get(GENERATION, generation) <= generation:
                stored[id] = _copy(stored[id], {LIVE: 1, GENERATION: generation})

    def demote(self, collection: str, document_id: str, generation: int) -> None:
        stored = self._of(collection)
        for id, point in stored.items():
            of_document = point.payload.get(DOCUMENT) == document_id
            if of_document and point.payload.get(GENERATION, generation) < generation:
                stored[id] = _copy(point, {LIVE: 0})

    def delete(self, collection: str, point_ids: Sequence[str]) -> None:
        for id in point_ids:
            self._of(collection).pop(id, None)

    def point_ids(self, collection: str) -> Iterator[str]:
        return iter(list(self._of(collection)))

    def close(self) -> None:
        pass

    def _of(self, collection: str) -> dict[str, IndexPoint]:
        if collection not in self._points:
            raise IndexUnavailable(f"no collection {collection}: create its index build first")
        return self._points[collection]


def _copy(point: IndexPoint, payload: Mapping[str, int] | None = None) -> IndexPoint:
    """Later changes by the caller must not reach the index."""
    return dataclasses.replace(
        point, multivector=point.multivector.copy(), payload={**point.payload, **(payload or {})}
    )


def _inside(scope: Scope, points: Iterable[IndexPoint]) -> Sequence[IndexPoint]:
    return [point for point in points if _is_inside(scope, point.payload)]


def _is_inside(scope: Scope, payload: Mapping[str, Any]) -> bool:
    if payload[ORG] != scope.org or scope.type not in (None, payload.get(TYPE)):
        return False
    if scope.labels and set(scope.labels).isdisjoint(payload.get(LABELS, ())):
        return False
    if scope.as_of is None:
        return payload.get(LIVE) != 0
    return FROM in payload and payload[FROM] <= scope.as_of.toordinal() < payload[UNTIL]


def _best(
    points: Sequence[IndexPoint], score: Callable[[IndexPoint], float], limit: int
) -> Sequence[tuple[str, float]]:
    scored = [(point.id, score(point)) for point in points]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:limit]


def _max_sim(query: IndexQuery, point: IndexPoint) -> float:
    """Sum over the question's rows of the best dot product with any of the page's (ColBERT, SIGIR 2020)."""
    return float((query.multivector @ point.multivector.T).max(axis=1).sum())


def _idf(points: Sequence[IndexPoint]) -> Callable[[int], float]:
    """ln((N - n + 0.5) / (n + 0.5) + 1), Qdrant's IDF modifier; N counts the points that have terms."""
    terms = [set(point.sparse.indices) for point in points if point.sparse.indices]

    def idf(term: int) -> float:
        n = sum(term in of_point for of_point in terms)
        return math.log((len(terms) - n + 0.5) / (n + 0.5) + 1)

    return idf


def _bm25(query: IndexQuery, point: IndexPoint, idf: Callable[[int], float]) -> float:
    weights = dict(zip(point.sparse.indices, point.sparse.values, strict=True))
    pairs = zip(query.sparse.indices, query.sparse.values, strict=True)
    return sum(weight * weights.get(term, 0.0) * idf(term) for term, weight in pairs)
