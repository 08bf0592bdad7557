"""A question becomes evidence pages, each of them checked in the ledger before it is shown."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from pipeline.domain import Candidates, Hit, IndexBuild, IndexQuery, ServedPage
from pipeline.errors import ContractMismatch
from pipeline.identity import describe_changes, digest
from pipeline.metadata import Scope
from pipeline.page_text import PageText, load_page_text
from pipeline.protocols import Ledger, ObjectStore, PageEncoder, SparseEncoder, VectorIndex
from pipeline.settings import SearchOptions

FIRST_LIMIT = 100
"""Candidates asked for by each ranking at first; four times as many while too few of them are served."""
SCORE_LABEL = "rrf"
SNIPPET_CHARS = 200

Ranked = tuple[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Searcher:
    """Answers questions of one tenant at a time, from the active build."""

    ledger: Ledger
    store: ObjectStore
    index: VectorIndex
    encoder: PageEncoder
    sparse: SparseEncoder
    options: SearchOptions

    def search(self, scope: Scope, question: str, k: int) -> list[Hit]:
        """The best `k` pages inside `scope`, fewer only if there are no more.

        Both rankings (late interaction, BM25) are fused by reciprocal rank; equal scores are ordered by document
        and page, so that the same question always gets the same answer. Raises `ContractMismatch` if the encoder
        is not the active build's.
        """
        build = self.ledger.registry.active_build()
        if build is None or not question.strip():
            return []
        check_contract(build, self.encoder)
        query = self._query(scope, question)
        self.index.create(build.collection, build.contract.dim)  # before its first page is indexed it is not there
        ranked, served = self._served(build, query, k)
        found = sorted(
            ((score, served[point]) for point, score in ranked if point in served),
            key=lambda pair: (-pair[0], pair[1].document_id, pair[1].page_index),
        )
        return [self._hit(rank, score, page, question) for rank, (score, page) in enumerate(found[:k], start=1)]

    def _query(self, scope: Scope, question: str) -> IndexQuery:
        multivector = self.encoder.encode_queries([question])[0]
        return IndexQuery(scope=scope, multivector=multivector, sparse=self.sparse.encode_query(question))

    def _served(self, build: IndexBuild, query: IndexQuery, k: int) -> tuple[list[Ranked], Mapping[str, ServedPage]]:
        """Candidates until `k` of them stand in the manifest, or there are no more."""
        limit = max(FIRST_LIMIT, k)
        while True:
            candidates = self.index.search(build.collection, query, limit)
            ranked = fuse(candidates, self.options)
            served = self.ledger.views.served(build, query.scope, [point for point, _ in ranked])
            exhausted = len(candidates.dense) < limit and len(candidates.sparse) < limit
            if len(served) >= k or exhausted:
                return ranked, served
            limit *= 4

    def _hit(self, rank: int, score: float, page: ServedPage, question: str) -> Hit:
        record = load_page_text(self.store.get(page.text))
        return Hit(
            rank=rank,
            score=round(score, 6),
            score_label=SCORE_LABEL,
            document_id=page.document_id,
            version_id=page.version_id,
            source=page.source_uri,
            title=page.title,
            page_index=page.page_index,
            page_label=page.page_label,
            text_source=record.source.value,
            snippet=snippet(record, question),
            image_key=page.image.key,
            missing_pages=page.missing_pages,
        )


def check_contract(build: IndexBuild, encoder: PageEncoder) -> None:
    """Pages and queries meet only inside one contract. Raises `ContractMismatch`."""
    wanted = dataclasses.asdict(encoder.contract)
    if digest(wanted) != build.contract_digest:
        made_with = dataclasses.asdict(build.contract)
        raise ContractMismatch(
            f"the settings' encoder is not the one that the active build was made with: "
            f"{describe_changes({'encoder': made_with}, {'encoder': wanted})}. "
            "Set the encoder back, or re-index with the new one"
        )


def fuse(candidates: Candidates, options: SearchOptions) -> list[Ranked]:
    """Reciprocal rank fusion: the sum over rankings of weight / (k + rank), rank from 1; best first."""
    scores: dict[str, float] = {}
    for ranking, weight in (
        (candidates.dense, options.dense_weight),
        (candidates.sparse, options.sparse_weight),
    ):
        for rank, (point, _) in enumerate(ranking, start=1):
            scores[point] = scores.get(point, 0.0) + weight / (options.rrf_k + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def snippet(record: PageText, question: str) -> str:
    """The stretch of the page that shares most with the question, on one line."""
    text = re.sub(r"\s+", " ", record.text).strip()
    if len(text) <= SNIPPET_CHARS:
        return text
    grams = _grams(question)
    step = SNIPPET_CHARS // 4
    starts = range(0, len(text) - SNIPPET_CHARS + step, step)
    best = max(starts, key=lambda start: len(grams & _grams(text[start : start + SNIPPET_CHARS])))
    return _cut(text, best)


def _grams(text: str) -> set[str]:
    """Pairs of neighbouring characters: they serve Chinese and English alike."""
    folded = text.casefold()
    return {folded[i : i + 2] for i in range(len(folded) - 1) if not folded[i : i + 2].isspace()}


def _cut(text: str, start: int) -> str:
    end = min(start + SNIPPET_CHARS, len(text))
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")


def ranked_pages(hits: Sequence[Hit]) -> list[tuple[str, int]]:
    """Source and page index of each hit, best first: what an evaluation compares."""
    return [(hit.source, hit.page_index) for hit in hits]
