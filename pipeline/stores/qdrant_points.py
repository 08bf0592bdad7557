"""How a page is stored on a Qdrant server and asked for: its vectors, its indexed payload, its weight on the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from qdrant_client import models

from pipeline.domain import Floats, IndexPoint, PointFacts, SparseVector
from pipeline.errors import ContractMismatch
from pipeline.pooling import pool_rows
from pipeline.stores.points import (
    DOCUMENT,
    FROM,
    GENERATION,
    LABELS,
    LIVE,
    ORG,
    PAGE_VECTOR,
    POOLED_VECTOR,
    TEXT_VECTOR,
    TYPE,
    UNTIL,
    VERSION,
    facts_of,
    is_sound,
)

NUMBER_BYTES = 4
"""A number is a float32 on the wire, whatever it is stored as."""

ROW_BYTES = 8
"""Around a row on the wire: a tag and a length, for it and for its numbers."""

TERM_BYTES = 9
"""A sparse term: at most 5 bytes of id (protobuf's varint of 32 bits) and 4 of weight."""

POINT_BYTES = 200
"""Around a point: its id as text, the names of its vectors, tags and lengths."""

FIRST_READ, MOST_READ = 8, 64
"""Points read back at once: before the size of a page is known, and at most afterwards. As Python floats they are
eight times as large as on the wire."""


def vectors_config(dim: int) -> dict[str, models.VectorParams]:
    """Dot product: a question's rows carry weights as their length, a page's rows are of unit length."""
    common: dict[str, Any] = {
        "size": dim,
        "distance": models.Distance.DOT,
        "multivector_config": models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
        "datatype": models.Datatype.FLOAT16,
    }
    return {
        PAGE_VECTOR: models.VectorParams(**common, on_disk=True, hnsw_config=models.HnswConfigDiff(m=0)),
        POOLED_VECTOR: models.VectorParams(**common, hnsw_config=models.HnswConfigDiff(m=16, ef_construct=100)),
    }


def indexed_fields() -> Mapping[str, Any]:
    return {
        ORG: models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
        DOCUMENT: models.PayloadSchemaType.KEYWORD,
        VERSION: models.PayloadSchemaType.KEYWORD,
        LIVE: models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=True, range=False),
        GENERATION: models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=False, range=True),
        TYPE: models.PayloadSchemaType.KEYWORD,
        LABELS: models.PayloadSchemaType.KEYWORD,
        FROM: models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=False, range=True),
        UNTIL: models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=False, range=True),
    }


def dim_of(found: models.CollectionInfo, place: str) -> int:
    """Raises `ContractMismatch` if the collection is not one of ours."""
    vectors = found.config.params.vectors
    if not isinstance(vectors, dict) or not {PAGE_VECTOR, POOLED_VECTOR} <= vectors.keys():
        raise ContractMismatch(f"{place} has no vectors {PAGE_VECTOR} and {POOLED_VECTOR}: choose another name")
    return vectors[PAGE_VECTOR].size


def requests(points: Sequence[IndexPoint], most: int) -> Iterator[list[models.PointStruct]]:
    """The points in order, in requests of at most `most` bytes on the wire, or of one point."""
    request: list[models.PointStruct] = []
    size = 0
    for point in points:
        pooled = pool_rows(point.multivector)
        added = _wire_bytes(point, pooled)
        if request and size + added > most:
            yield request
            request, size = [], 0
        request.append(_to_client(point, pooled))
        size += added
    if request:
        yield request


def _wire_bytes(point: IndexPoint, pooled: Floats) -> int:
    """An upper bound, from the arrays' sizes; the payload's is taken twice for protobuf's tags and lengths."""
    rows = point.multivector
    numbers = (rows.size + pooled.size) * NUMBER_BYTES + (len(rows) + len(pooled)) * ROW_BYTES
    payload = 2 * len(str(dict(point.payload)).encode())
    return POINT_BYTES + numbers + len(point.sparse.indices) * TERM_BYTES + payload


def _to_client(point: IndexPoint, pooled: Floats) -> models.PointStruct:
    """Without terms there is no sparse vector, so that IDF counts only the points that have some."""
    vectors: dict[str, Any] = {PAGE_VECTOR: point.multivector.tolist(), POOLED_VECTOR: pooled.tolist()}
    if point.sparse.indices:
        vectors[TEXT_VECTOR] = terms(point.sparse)
    return models.PointStruct(id=point.id, vector=vectors, payload=dict(point.payload))


def stored_facts(record: models.Record) -> PointFacts:
    vectors: Any = record.vector or {}
    text = vectors.get(TEXT_VECTOR)
    facts = facts_of(record.payload or {}, _rows(vectors, PAGE_VECTOR), len(text.indices) if text else 0)
    return dataclasses.replace(facts, sound=facts.sound and is_sound(_rows(vectors, POOLED_VECTOR)))


def _rows(vectors: Mapping[str, Any], name: str) -> Floats:
    return np.asarray(vectors.get(name, ()), dtype=np.float32)


def pages_within(most: int, dim: int, read: Mapping[str, PointFacts]) -> int:
    """How many more points to read at once, if they are like the largest so far; `pooled` is at most as large."""
    rows = max((facts.n_tokens for facts in read.values()), default=0)
    return min(MOST_READ, max(1, most // (2 * NUMBER_BYTES * dim * max(rows, 1))))


def by_meaning(rows: Floats, visible: models.Filter, limit: int, factor: int) -> models.QueryRequest:
    """Candidates by `pooled`, scored by `page`; the filter is in the first step, where it decides what is seen."""
    question = rows.tolist()
    candidates = models.Prefetch(query=question, using=POOLED_VECTOR, filter=visible, limit=limit * factor)
    return models.QueryRequest(prefetch=candidates, query=question, using=PAGE_VECTOR, filter=visible, limit=limit)


def by_terms(sparse: SparseVector, visible: models.Filter, limit: int) -> models.QueryRequest:
    return models.QueryRequest(query=terms(sparse), using=TEXT_VECTOR, filter=visible, limit=limit)


def terms(sparse: SparseVector) -> models.SparseVector:
    return models.SparseVector(indices=list(sparse.indices), values=list(sparse.values))
