"""BM25 as two sparse vectors: the page's side here, the inverse document frequency in the index."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from pipeline.domain import SparseVector
from pipeline.engines.terms import TERMS_VERSION, is_stop_word, terms

_NO_TERM = "\x00"
"""Stands for a text without any term; no term has a control character in it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bm25Options:
    """Constants of Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009)."""

    k1: float = 1.2
    """How soon repeating a term stops to count."""
    b: float = 0.75
    """How much a page's length counts: 0 not at all, 1 in full."""
    average_terms: float = 400.0
    """Terms on a page of ordinary length. A constant, so that a page's vector depends on that page alone."""


class Bm25Encoder:
    """A `SparseEncoder`.

    Score of a page = sum over the question's terms of idf(term) x page value x question value, with
    idf = ln((N - n + 0.5) / (n + 0.5) + 1) put in by the index.
    """

    def __init__(self, options: Bm25Options | None = None) -> None:
        self._bm25 = options or Bm25Options()
        self.options: Mapping[str, Any] = {
            "name": "bm25",
            "version": 1,
            "terms": TERMS_VERSION,
            **dataclasses.asdict(self._bm25),
        }

    def encode_page(self, text: str) -> SparseVector:
        """Saturated term frequencies of a page; a page without terms gets one marker term."""
        counts = Counter(terms(text)) or Counter([_NO_TERM])
        norm = self._length_norm(counts.total())
        gain = self._bm25.k1 + 1
        return _sparse({term: count * gain / (count + norm) for term, count in counts.items()})

    def encode_query(self, question: str) -> SparseVector:
        """1 for every distinct term; stop words only where there is nothing else."""
        found = set(terms(question))
        telling = {term for term in found if not is_stop_word(term)}
        return _sparse(dict.fromkeys(telling or found or {_NO_TERM}, 1.0))

    def _length_norm(self, length: int) -> float:
        options = self._bm25
        return options.k1 * (1 - options.b + options.b * length / options.average_terms)


def term_id(term: str) -> int:
    """An unsigned 32-bit id that is the same everywhere: the first bytes of BLAKE2b, little-endian."""
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=4).digest(), "little")


def _sparse(weights: Mapping[str, float]) -> SparseVector:
    """Ascending distinct ids; the weights of colliding terms add up, in the terms' order."""
    by_id: defaultdict[int, float] = defaultdict(float)
    for term in sorted(weights):
        by_id[term_id(term)] += weights[term]
    indices = sorted(by_id)
    return SparseVector(indices=indices, values=[by_id[index] for index in indices])
