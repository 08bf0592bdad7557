"""Search: fusion, paging until enough hits are served, and what is shown of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.domain import (
    ArtifactRef,
    BuildState,
    Candidates,
    EncoderContract,
    IndexBuild,
    IndexQuery,
    ServedPage,
    SparseVector,
    TextSource,
    Verdict,
)
from pipeline.errors import ContractMismatch
from pipeline.identity import digest
from pipeline.metadata import Scope
from pipeline.page_text import PageText
from pipeline.search import SNIPPET_CHARS, Searcher, fuse, snippet
from pipeline.settings import SearchOptions

CONTRACT = EncoderContract(name="tiny", version=1, dim=2, reads="text", options={})
EVEN = SearchOptions(rrf_k=60, dense_weight=1.0, sparse_weight=1.0)


def record(text: str) -> PageText:
    return PageText(
        verdict=Verdict.GOOD,
        source=TextSource.NATIVE,
        score=1.0,
        reasons=(),
        label="iv",
        width=1,
        height=1,
        blocks=(),
        text=text,
    )


class TinyEncoder:
    contract = CONTRACT

    def encode_pages(self, contents: Sequence[bytes]) -> list[Any]:
        raise NotImplementedError

    def encode_queries(self, questions: Sequence[str]) -> list[Any]:
        return [np.ones((1, 2), dtype=np.float32) for _ in questions]


class TinySparse:
    options: Mapping[str, Any] = {}

    def encode_page(self, text: str) -> SparseVector:
        raise NotImplementedError

    def encode_query(self, question: str) -> SparseVector:
        return SparseVector(indices=[1], values=[1.0])


class RankedIndex:
    """Ranks points 0, 1, 2 … the same in both rankings, and notes how many were asked for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.limits: list[int] = []

    def create(self, collection: str, dim: int) -> None: ...

    def search(self, collection: str, query: IndexQuery, limit: int) -> Candidates:
        self.limits.append(limit)
        ranking = [(str(point), 1.0 / (point + 1)) for point in range(min(limit, self.size))]
        return Candidates(dense=ranking, sparse=ranking)


def served_page(point: str) -> ServedPage:
    ref = ArtifactRef(key=f"key-{point}", sha256="0" * 64, size=1)
    return ServedPage(
        point_id=point,
        org="acme",
        document_id="d",
        version_id="v",
        source_uri="file:///a.pdf",
        title="A",
        page_index=int(point),
        page_label="iv",
        image=ref,
        text=ref,
    )


def searcher(index: RankedIndex, served: range, contract_digest: str | None = None) -> Searcher:
    import dataclasses

    build = IndexBuild(
        id="b",
        collection="c",
        contract=CONTRACT,
        contract_digest=contract_digest or digest(dataclasses.asdict(CONTRACT)),
        state=BuildState.ACTIVE,
    )
    views = SimpleNamespace(served=lambda _build, _org, points: {p: served_page(p) for p in points if int(p) in served})
    ledger = SimpleNamespace(registry=SimpleNamespace(active_build=lambda: build), views=views)
    store = SimpleNamespace(get=lambda _ref: record("some text").dump())
    return Searcher(
        ledger=ledger,  # type: ignore[arg-type]
        store=store,  # type: ignore[arg-type]
        index=index,  # type: ignore[arg-type]
        encoder=TinyEncoder(),
        sparse=TinySparse(),
        options=EVEN,
    )


def test_fusion_adds_the_reciprocal_ranks_of_both_rankings() -> None:
    candidates = Candidates(dense=[("a", 9.0), ("b", 8.0)], sparse=[("b", 5.0), ("c", 1.0)])
    fused = fuse(candidates, EVEN)
    assert [point for point, _ in fused] == ["b", "a", "c"]
    assert dict(fused)["b"] == pytest.approx(1 / 62 + 1 / 61)
    assert dict(fused)["a"] == pytest.approx(1 / 61)


def test_a_ranking_of_weight_zero_changes_no_order() -> None:
    candidates = Candidates(dense=[("a", 9.0), ("b", 8.0)], sparse=[("b", 5.0), ("c", 1.0)])
    only_sparse = SearchOptions(rrf_k=60, dense_weight=0.0, sparse_weight=1.0)
    assert [point for point, score in fuse(candidates, only_sparse) if score > 0] == ["b", "c"]


def test_search_pages_on_until_enough_hits_are_served() -> None:
    index = RankedIndex(size=5000)
    hits = searcher(index, served=range(900, 2000)).search(Scope(org="acme"), "torque", 3)
    assert [hit.page_index for hit in hits] == [900, 901, 902]
    assert index.limits == [100, 400, 1600]


def test_search_ends_when_there_are_no_more_candidates() -> None:
    index = RankedIndex(size=150)
    hits = searcher(index, served=range(149, 200)).search(Scope(org="acme"), "torque", 3)
    assert [hit.page_index for hit in hits] == [149]
    assert index.limits == [100, 400]


def test_hits_say_what_kind_of_number_their_score_is() -> None:
    (hit,) = searcher(RankedIndex(size=1), served=range(1)).search(Scope(org="acme"), "torque", 3)
    assert (hit.rank, hit.score_label, hit.page_label, hit.text_source) == (1, "rrf", "iv", "native")
    assert hit.score == pytest.approx(2 / 61, abs=1e-6)


def test_an_empty_question_finds_nothing() -> None:
    assert searcher(RankedIndex(size=5), served=range(5)).search(Scope(org="acme"), "  ", 3) == []


def test_an_encoder_of_another_contract_is_refused() -> None:
    with pytest.raises(ContractMismatch, match="re-index"):
        searcher(RankedIndex(size=5), served=range(5), contract_digest="other").search(Scope(org="acme"), "torque", 3)


def test_a_snippet_is_the_stretch_that_shares_most_with_the_question() -> None:
    text = "nothing here. " * 40 + "The drive wheel hub is tightened to 195 N m. " + "nothing here. " * 40
    found = snippet(record(text), "tightening torque of the drive wheel hub")
    assert "195" in found
    assert found.startswith("…")
    assert found.endswith("…")
    assert len(found) <= SNIPPET_CHARS + 2


def test_a_snippet_of_a_chinese_page_shows_the_answer() -> None:
    text = "概述。" * 200 + "新机床运行 300 小时后第一次换油。" + "概述。" * 200
    assert "300 小时" in snippet(record(text), "第一次换油是什么时候？")


def test_a_snippet_is_one_line() -> None:
    assert snippet(record("one\ntwo\t three"), "two") == "one two three"
