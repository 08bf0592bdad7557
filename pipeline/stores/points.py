"""What every vector index holds of a page: the names of vectors and payload fields, limits and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.domain import Floats, IndexPoint, IndexQuery, PointFacts, SparseVector
from pipeline.errors import BadVectors, TooManyVectors

PAGE_VECTOR = "page"
"""The page's multivector, by which it is scored."""
POOLED_VECTOR = "pooled"
"""Fewer rows of the same page, for an index that looks for candidates in a graph (`pipeline.pooling`)."""
TEXT_VECTOR = "text"
"""The page's term weights, for BM25."""

ORG = "org"
DOCUMENT = "document_id"
VERSION = "version_id"
LIVE = "live"
"""Served or not, as 1 or 0: qdrant-edge-py 0.9.0 turns ``MatchValue(False)`` into the integer 0, which
matches no bool, and reports no error."""
GENERATION = "live_generation"
TYPE = "type"
LABELS = "labels"
FROM, UNTIL = "in_force_from", "in_force_until"
"""First day in force and first day no longer, as `date.toordinal` counts."""

MAX_NUMBERS = 1_048_576
"""Most numbers in one multivector. Qdrant's server refuses more (qdrant/qdrant#5925). The embedded engine
takes them, but a page that only one of the two can hold could never move to a cluster."""


def check_point(point: IndexPoint, dim: int) -> None:
    """Raises `BadVectors`, `TooManyVectors`, or `ValueError` for a point without a tenant.

    The embedded engine takes NaN and zero rows without a word, and a sparse vector of unequal lengths goes into
    its log and makes the shard panic whenever it is opened again. Soundness is judged in float16, as stored.
    """
    if not point.payload.get(ORG):
        raise ValueError(f"point {point.id} has no {ORG}: nothing is stored without a tenant")
    _check_shape(point.multivector, dim, f"point {point.id}")
    if len(point.multivector) == 0:
        raise BadVectors(f"point {point.id} has no rows: encode the page again")
    if point.multivector.size > MAX_NUMBERS:
        raise TooManyVectors(
            f"point {point.id} has {point.multivector.size} numbers, more than {MAX_NUMBERS}: "
            "lower the encoder's pixel limit"
        )
    if not is_sound(_as_stored(point.multivector)):
        raise BadVectors(f"point {point.id} has a row that is zero, NaN or infinite: encode the page again")
    _check_sparse(point.sparse, f"point {point.id}")


def check_query(query: IndexQuery, dim: int) -> None:
    """Raises `BadVectors` for another dimension or rows that are not finite. Rows may be zero, or none."""
    _check_shape(query.multivector, dim, "the question")
    if not np.isfinite(query.multivector).all():
        raise BadVectors("the question has a row that is NaN or infinite: check its encoder")
    _check_sparse(query.sparse, "the question")


def is_sound(rows: Floats) -> bool:
    """There are rows, every one finite and not zero. `rows`: ``(n_tokens, dim)``."""
    return len(rows) > 0 and bool(np.isfinite(rows).all() and rows.any(axis=1).all())


def facts_of(payload: Mapping[str, Any], rows: Floats, sparse_terms: int) -> PointFacts:
    """What a point that was read back shows. `rows`: its page vector, empty if it has none."""
    return PointFacts(
        payload=dict(payload),
        n_tokens=len(rows),
        dim=rows.shape[1] if rows.ndim == 2 else 0,
        sound=is_sound(rows),
        sparse_terms=sparse_terms,
    )


def _check_shape(rows: Floats, dim: int, whose: str) -> None:
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise BadVectors(f"{whose} has vectors of shape {rows.shape}, not (n, {dim}): check the encoder")


def _check_sparse(sparse: SparseVector, whose: str) -> None:
    paired = len(sparse.indices) == len(sparse.values) == len(set(sparse.indices))
    if not paired or not np.isfinite(np.asarray(sparse.values, dtype=np.float32)).all():
        raise BadVectors(f"{whose} has unpaired, repeated or infinite terms: check the sparse encoder")


def _as_stored(rows: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return rows.astype(np.float16).astype(np.float32)
