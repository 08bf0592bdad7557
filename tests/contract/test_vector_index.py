"""The contract of `VectorIndex`. A later implementation is one more parameter of `index`."""

from __future__ import annotations

import contextlib
import datetime
import math
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient

from pipeline.domain import Floats, IndexPoint, IndexQuery, SparseVector
from pipeline.errors import (
    BadVectors,
    ContractMismatch,
    DiskFull,
    IndexBusy,
    IndexUnavailable,
    TooManyVectors,
)
from pipeline.metadata import DocumentMetadata, Scope
from pipeline.protocols import VectorIndex
from pipeline.stores import edge
from pipeline.stores.edge import EdgeIndex
from pipeline.stores.memory_index import MemoryIndex
from pipeline.stores.qdrant import QdrantIndex
from pipeline.stores.qdrant_options import QdrantOptions
from tests.qdrant_server import QdrantServer

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")

PAGES = "pages"
DIM = 4
NOWHERE = QdrantOptions(url="http://nowhere.invalid")
SERVER_URL = "PAGEGATE_TEST_QDRANT_URL"
NO_TERMS = SparseVector(indices=(), values=())
SPAWN = multiprocessing.get_context("spawn")
"""A fresh process: the engine's threads do not survive a fork."""

Orgs = st.sampled_from(("acme", "Acme", "acm", "globex"))


@pytest.fixture(params=["edge", "memory", "qdrant in memory", "qdrant over gRPC", "qdrant server"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorIndex]:
    """One index of each kind, with an empty collection."""
    openers: Mapping[str, Callable[[], contextlib.AbstractContextManager[VectorIndex]]] = {
        "edge": lambda: contextlib.closing(EdgeIndex(tmp_path / "index")),
        "memory": lambda: contextlib.closing(MemoryIndex()),
        "qdrant in memory": lambda: contextlib.closing(QdrantIndex(NOWHERE, QdrantClient(":memory:"))),
        "qdrant over gRPC": over_grpc,
        "qdrant server": on_a_server,
    }
    with openers[request.param]() as made:
        made.create(PAGES, DIM)
        yield made


@contextlib.contextmanager
def over_grpc() -> Iterator[QdrantIndex]:
    server = QdrantServer()
    with contextlib.closing(QdrantIndex(server.options())) as made:
        yield made
    server.stop()


@contextlib.contextmanager
def on_a_server() -> Iterator[QdrantIndex]:
    """A real one, from which the suite's own collections are removed before and after."""
    url = os.environ.get(SERVER_URL)
    if not url:
        pytest.skip(f"no real Qdrant server: {SERVER_URL} is not set")
    key = os.environ.get(f"{SERVER_URL}_API_KEY")
    options = QdrantOptions(url=url, grpc_port=int(os.environ.get(f"{SERVER_URL}_GRPC_PORT", "6334")), api_key=key)
    admin = QdrantClient(url=url, grpc_port=options.grpc_port, api_key=key, prefer_grpc=True)
    for name in (PAGES, "others"):
        admin.delete_collection(name)
    with contextlib.closing(QdrantIndex(options)) as made:
        yield made
    for name in (PAGES, "others"):
        admin.delete_collection(name)
    admin.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EdgeIndex]:
    made = EdgeIndex(tmp_path / "index")
    made.create(PAGES, DIM)
    yield made
    made.close()


ACME = Scope(org="acme")


def an_id(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))


def a_point(
    number: int,
    *,
    org: str = "acme",
    document: str = "manual",
    rows: Any = ((1.0, 0.0, 0.0, 0.0),),
    terms: Mapping[int, float] | None = None,
    **about: Any,
) -> IndexPoint:
    return IndexPoint(
        id=an_id(number),
        multivector=np.array(rows, dtype=np.float32),
        sparse=some_terms({7: 1.0} if terms is None else terms),
        payload={"org": org, "document_id": document, "page_index": number, **about},
    )


def some_terms(weights: Mapping[int, float]) -> SparseVector:
    return SparseVector(indices=sorted(weights), values=[weights[term] for term in sorted(weights)])


def a_question(
    *,
    scope: Scope = ACME,
    rows: Any = ((1.0, 0.0, 0.0, 0.0),),
    terms: Mapping[int, float] | None = None,
) -> IndexQuery:
    return IndexQuery(
        scope=scope,
        multivector=np.array(rows, dtype=np.float32),
        sparse=some_terms({7: 1.0} if terms is None else terms),
    )


def found(index: VectorIndex, org: str = "acme", collection: str = PAGES, **scope: Any) -> set[str]:
    """What a tenant's question finds; its two rankings must agree where every point has the term."""
    candidates = index.search(collection, a_question(scope=Scope(org=org, **scope)), limit=1000)
    dense, sparse = ({id for id, _ in ranking} for ranking in (candidates.dense, candidates.sparse))
    assert dense == sparse
    return dense


# Writing and reading back


def test_a_point_is_read_back_as_it_was_written(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1, rows=np.eye(3, DIM), terms={3: 0.5, 2**32 - 1: 0.25})])

    facts = index.inspect(PAGES, [an_id(1)])[an_id(1)]

    assert facts.payload == {"org": "acme", "document_id": "manual", "page_index": 1}
    assert (facts.n_tokens, facts.dim, facts.sound, facts.sparse_terms) == (3, DIM, True, 2)


def test_a_page_without_text_is_a_point_without_terms(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1, terms={})])

    assert index.inspect(PAGES, [an_id(1)])[an_id(1)].sparse_terms == 0
    assert index.search(PAGES, a_question(), 10).sparse == []
    assert [id for id, _ in index.search(PAGES, a_question(), 10).dense] == [an_id(1)]


def test_many_points_are_read_back_in_any_order(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(number, rows=np.ones((1 + number % 5, DIM))) for number in range(100)])

    facts = index.inspect(PAGES, [an_id(number) for number in reversed(range(100))])

    assert {id: fact.n_tokens for id, fact in facts.items()} == {an_id(number): 1 + number % 5 for number in range(100)}


def test_absent_points_are_absent_from_the_answer(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])

    assert set(index.inspect(PAGES, [an_id(1), an_id(2)])) == {an_id(1)}
    assert index.inspect(PAGES, []) == {}


def test_the_last_write_of_an_id_wins(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1, rows=np.eye(3, DIM), terms={7: 1.0, 8: 1.0})])
    index.upsert(PAGES, [a_point(1, document="other", rows=np.eye(2, DIM), terms={9: 1.0})])

    facts = index.inspect(PAGES, [an_id(1)])[an_id(1)]

    assert (facts.payload["document_id"], facts.n_tokens, facts.sparse_terms) == ("other", 2, 1)
    assert index.search(PAGES, a_question(terms={7: 1.0}), 10).sparse == []
    assert len(index.search(PAGES, a_question(terms={9: 1.0}), 10).sparse) == 1


def test_a_written_point_no_longer_depends_on_the_callers_array(index: VectorIndex) -> None:
    point = a_point(1)
    index.upsert(PAGES, [point])
    point.multivector[:] = 0

    assert index.inspect(PAGES, [an_id(1)])[an_id(1)].sound


def test_the_ids_of_a_collection_are_listed(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(number) for number in range(2_500)])

    assert sorted(index.point_ids(PAGES)) == sorted(an_id(number) for number in range(2_500))


def test_a_deleted_point_is_gone_and_may_be_deleted_again(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1), a_point(2)])

    for _ in range(2):
        index.delete(PAGES, [an_id(1), an_id(3)])

    assert set(index.inspect(PAGES, [an_id(1), an_id(2)])) == {an_id(2)}
    assert list(index.point_ids(PAGES)) == [an_id(2)]
    assert found(index) == {an_id(2)}


def test_writing_nothing_is_allowed(index: VectorIndex) -> None:
    index.upsert(PAGES, [])
    index.promote(PAGES, [], 1)
    index.delete(PAGES, [])

    assert list(index.point_ids(PAGES)) == []


# Collections


def test_creating_again_keeps_what_is_there(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])
    index.create(PAGES, DIM)

    assert list(index.point_ids(PAGES)) == [an_id(1)]


def test_a_collection_keeps_its_dimension(index: VectorIndex) -> None:
    with pytest.raises(ContractMismatch):
        index.create(PAGES, DIM + 1)


def test_collections_do_not_share_points(index: VectorIndex) -> None:
    index.create("others", DIM)
    index.upsert(PAGES, [a_point(1)])
    index.upsert("others", [a_point(2)])

    assert (found(index), found(index, collection="others")) == ({an_id(1)}, {an_id(2)})


def test_a_collection_that_was_never_made_is_unavailable(index: VectorIndex) -> None:
    with pytest.raises(IndexUnavailable):
        index.search("never", a_question(), 10)
    with pytest.raises(IndexUnavailable):
        index.upsert("never", [a_point(1)])


# What is refused


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((0, DIM)),
        np.ones((2, DIM - 1)),
        np.ones((2, DIM + 1)),
        np.ones(DIM),
        np.ones((1, 1, DIM)),
        [[1.0] * DIM, [0.0] * DIM],
        [[1.0] * DIM, [math.nan] + [1.0] * (DIM - 1)],
        [[1.0] * DIM, [math.inf] + [1.0] * (DIM - 1)],
    ],
    ids=["no rows", "too narrow", "too wide", "a vector", "a cube", "a zero row", "NaN", "infinite"],
)
def test_unsound_vectors_are_refused_and_nothing_is_written(index: VectorIndex, rows: Any) -> None:
    with pytest.raises(BadVectors):
        index.upsert(PAGES, [a_point(1), a_point(2, rows=rows)])

    assert list(index.point_ids(PAGES)) == []


@pytest.mark.parametrize("rows", [np.full((1, DIM), 1e5), np.full((1, DIM), 1e-9)], ids=["over", "under"])
def test_rows_that_half_precision_cannot_hold_are_refused(index: VectorIndex, rows: Floats) -> None:
    with pytest.raises(BadVectors):
        index.upsert(PAGES, [a_point(1, rows=rows)])


def test_the_largest_multivector_is_taken_and_a_larger_one_refused(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1, rows=np.ones((1_048_576 // DIM, DIM)))])

    with pytest.raises(TooManyVectors):
        index.upsert(PAGES, [a_point(2), a_point(3, rows=np.ones((1_048_576 // DIM + 1, DIM)))])
    assert list(index.point_ids(PAGES)) == [an_id(1)]


@pytest.mark.parametrize(
    "sparse",
    [
        SparseVector(indices=(1, 2), values=(1.0,)),
        SparseVector(indices=(1, 1), values=(1.0, 2.0)),
        SparseVector(indices=(1,), values=(math.nan,)),
    ],
    ids=["unpaired", "repeated", "NaN"],
)
def test_unsound_terms_are_refused_and_nothing_is_written(index: VectorIndex, sparse: SparseVector) -> None:
    bad = IndexPoint(id=an_id(2), multivector=a_point(2).multivector, sparse=sparse, payload={"org": "acme"})
    with pytest.raises(BadVectors):
        index.upsert(PAGES, [a_point(1), bad])

    assert list(index.point_ids(PAGES)) == []


def test_nothing_is_written_or_asked_without_a_tenant(index: VectorIndex) -> None:
    with pytest.raises(ValueError, match="org"):
        index.upsert(PAGES, [a_point(1), a_point(2, org="")])
    with pytest.raises(ValueError, match="org"):
        index.search(PAGES, a_question(scope=Scope(org="")), 10)

    assert list(index.point_ids(PAGES)) == []


@pytest.mark.parametrize("rows", [np.ones((1, DIM + 1)), np.full((1, DIM), math.nan)], ids=["wide", "NaN"])
def test_a_question_of_another_encoder_is_refused(index: VectorIndex, rows: Floats) -> None:
    with pytest.raises(BadVectors):
        index.search(PAGES, a_question(rows=rows), 10)


# Search


def test_maxsim_ranks_like_a_computation_by_hand(index: VectorIndex) -> None:
    random = np.random.default_rng(1)
    pages = {number: eighths(random, int(random.integers(1, 6))) for number in range(40)}
    question = eighths(random, 3)
    index.upsert(PAGES, [a_point(number, rows=rows) for number, rows in pages.items()])

    expected = {an_id(number): max_sim(question.tolist(), rows.tolist()) for number, rows in pages.items()}
    dense = index.search(PAGES, a_question(rows=question), 40).dense

    assert dict(dense) == expected
    assert [score for _, score in dense] == sorted(expected.values(), reverse=True)


def eighths(random: np.random.Generator, n_tokens: int) -> Floats:
    """Rows that half precision holds exactly, so that scores can be compared without a tolerance."""
    rows = random.integers(-8, 9, (n_tokens, DIM)) / 8
    return np.where(rows.any(axis=1, keepdims=True), rows, 1.0).astype(np.float32)


def max_sim(question: Sequence[Sequence[float]], page: Sequence[Sequence[float]]) -> float:
    return sum(max(sum(a * b for a, b in zip(q, p, strict=True)) for p in page) for q in question)


def test_the_length_of_a_questions_row_is_its_weight(index: VectorIndex) -> None:
    left, right = (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0)
    index.upsert(PAGES, [a_point(1, rows=[left]), a_point(2, rows=[right])])

    heavy_left = np.array([left, right], dtype=np.float32) * [[2.0], [0.5]]

    assert index.search(PAGES, a_question(rows=heavy_left), 10).dense == [(an_id(1), 2.0), (an_id(2), 0.5)]


def test_bm25_ranks_like_a_computation_by_hand(index: VectorIndex) -> None:
    random = np.random.default_rng(2)
    pages = {number: random_terms(random, int(random.integers(0, 6))) for number in range(40)}
    question = {1: 1.0, 3: 2.0, 5: 1.0, 99: 1.0}
    index.upsert(PAGES, [a_point(number, terms=terms) for number, terms in pages.items()])

    with_terms = [terms for terms in pages.values() if terms]
    expected = {
        an_id(number): sum(question[term] * terms[term] * idf(term, with_terms) for term in question if term in terms)
        for number, terms in pages.items()
        if question.keys() & terms.keys()
    }
    sparse = index.search(PAGES, a_question(terms=question), 40).sparse

    assert dict(sparse) == pytest.approx(expected, rel=1e-4)
    assert [score for _, score in sparse] == pytest.approx(sorted(expected.values(), reverse=True), rel=1e-4)


def random_terms(random: np.random.Generator, n: int) -> dict[int, float]:
    return {int(term): float(random.uniform(0.1, 2)) for term in random.choice(9, n, replace=False)}


def idf(term: int, pages: Sequence[Mapping[int, float]]) -> float:
    """Robertson and Spärck Jones's weight, plus one inside the logarithm as Lucene has it."""
    n = sum(term in terms for terms in pages)
    return math.log(1 + (len(pages) - n + 0.5) / (n + 0.5))


def test_a_rare_term_outweighs_a_common_one(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(number, terms={1: 1.0}) for number in range(9)])
    index.upsert(PAGES, [a_point(9, terms={2: 1.0})])

    assert index.search(PAGES, a_question(terms={1: 1.0, 2: 1.0}), 1).sparse[0][0] == an_id(9)


def test_no_more_than_the_limit_is_found(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(number, rows=[[1 + number, 0, 0, 0]]) for number in range(9)])

    candidates = index.search(PAGES, a_question(), 3)

    assert [id for id, _ in candidates.dense] == [an_id(8), an_id(7), an_id(6)]
    assert len(candidates.sparse) == 3


def test_an_empty_question_finds_nothing(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])

    candidates = index.search(PAGES, a_question(rows=np.zeros((0, DIM)), terms={}), 10)

    assert (list(candidates.dense), list(candidates.sparse)) == ([], [])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(orgs=st.lists(Orgs, min_size=1, max_size=30), asking=Orgs)
def test_a_tenant_finds_its_own_points_and_no_others(index: VectorIndex, orgs: Sequence[str], asking: str) -> None:
    index.delete(PAGES, list(index.point_ids(PAGES)))
    index.upsert(PAGES, [a_point(number, org=org) for number, org in enumerate(orgs)])

    assert found(index, asking) == {an_id(number) for number, org in enumerate(orgs) if org == asking}


Scopes = st.builds(
    Scope,
    org=st.sampled_from("AB"),
    type=st.none() | st.sampled_from(["manual", "policy"]),
    labels=st.lists(st.sampled_from("xyz"), unique=True, max_size=2).map(tuple),
    as_of=st.none() | st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 9)),
)
Described = st.builds(
    DocumentMetadata,
    type=st.none() | st.sampled_from(["manual", "policy"]),
    labels=st.lists(st.sampled_from("xyz"), max_size=3).map(tuple),
    effective=st.none() | st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 4)),
    expired=st.none() | st.dates(datetime.date(2020, 1, 5), datetime.date(2020, 1, 9)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(described=st.lists(st.tuples(st.sampled_from("AB"), Described), min_size=1, max_size=25), scope=Scopes)
def test_a_question_finds_what_its_scope_admits_and_nothing_else(
    index: VectorIndex, described: Sequence[tuple[str, DocumentMetadata]], scope: Scope
) -> None:
    index.delete(PAGES, list(index.point_ids(PAGES)))
    index.upsert(PAGES, [a_point(n, org=org, **about.about("t")) for n, (org, about) in enumerate(described)])

    def admitted(org: str, about: DocumentMetadata) -> bool:
        begun = about.effective is None or scope.as_of is None or about.effective <= scope.as_of
        ended = about.expired is not None and scope.as_of is not None and scope.as_of >= about.expired
        fits = not scope.labels or set(scope.labels) & set(about.labels)
        return org == scope.org and scope.type in (None, about.type) and bool(fits) and begun and not ended

    expected = {an_id(n) for n, (org, about) in enumerate(described) if admitted(org, about)}
    candidates = index.search(PAGES, a_question(scope=scope), limit=1000)
    assert {id for id, _ in candidates.dense} == {id for id, _ in candidates.sparse} == expected


def test_a_day_asks_for_demoted_points_too(index: VectorIndex) -> None:
    always = DocumentMetadata().about("t")
    index.upsert(PAGES, [a_point(1, **always), a_point(2, **always)])
    index.promote(PAGES, [an_id(1)], 1)
    index.demote(PAGES, "manual", 2)

    assert found(index) == {an_id(2)}
    assert found(index, as_of=datetime.date(2026, 1, 1)) == {an_id(1), an_id(2)}


# Hints about what is served


def test_a_point_is_visible_unless_it_was_demoted(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1), a_point(2), a_point(3, document="another")])
    index.promote(PAGES, [an_id(1), an_id(3)], 1)

    index.demote(PAGES, "manual", 2)

    assert found(index) == {an_id(2), an_id(3)}, "2 was never promoted, 3 is of another document"


def test_a_promotion_that_comes_late_does_not_undo_a_later_one(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])
    index.promote(PAGES, [an_id(1)], 3)

    index.promote(PAGES, [an_id(1)], 1)
    index.demote(PAGES, "manual", 2)

    assert found(index) == {an_id(1)}


def test_a_demoted_point_that_is_promoted_again_is_visible(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])
    index.promote(PAGES, [an_id(1)], 1)
    index.demote(PAGES, "manual", 2)
    assert found(index) == set()

    index.promote(PAGES, [an_id(1)], 3)

    assert found(index) == {an_id(1)}


def test_a_late_demotion_harms_nothing(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1), a_point(2)])
    index.promote(PAGES, [an_id(1)], 1)
    index.promote(PAGES, [an_id(2)], 2)

    index.demote(PAGES, "manual", 2)
    index.demote(PAGES, "manual", 1)

    assert found(index) == {an_id(2)}


def test_hints_are_added_to_the_payload(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])
    index.promote(PAGES, [an_id(1)], 4)

    payload = index.inspect(PAGES, [an_id(1)])[an_id(1)].payload

    assert payload == {**a_point(1).payload, "live": True, "live_generation": 4}


def test_promoting_an_absent_point_makes_none(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])
    index.promote(PAGES, [an_id(2), an_id(1), an_id(3)], 1)

    assert list(index.point_ids(PAGES)) == [an_id(1)]
    assert index.inspect(PAGES, [an_id(1)])[an_id(1)].payload["live_generation"] == 1


def test_a_point_written_again_after_its_promotion_stays_visible(index: VectorIndex) -> None:
    index.upsert(PAGES, [a_point(1)])
    index.promote(PAGES, [an_id(1)], 1)
    index.upsert(PAGES, [a_point(1)])

    assert found(index) == {an_id(1)}


Numbers = st.integers(0, 5)
Generations = st.integers(1, 4)
Steps = st.one_of(
    st.tuples(st.just("upsert"), Numbers, st.sampled_from("ab")),
    st.tuples(st.just("promote"), Numbers, Generations),
    st.tuples(st.just("demote"), st.sampled_from("ab"), Generations),
    st.tuples(st.just("delete"), Numbers, st.none()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(Steps, max_size=20))
def test_after_any_history_the_served_points_are_found_and_no_others(
    index: VectorIndex, steps: Sequence[tuple[str, Any, Any]]
) -> None:
    index.delete(PAGES, list(index.point_ids(PAGES)))
    served: dict[int, tuple[str, int | None, bool]] = {}
    for step in steps:
        carry_out(index, step)
        served = remember(served, step)
        assert found(index) == {an_id(number) for number, (_, _, live) in served.items() if live}


def carry_out(index: VectorIndex, step: tuple[str, Any, Any]) -> None:
    match step:
        case ("upsert", number, document):
            index.upsert(PAGES, [a_point(number, document=document)])
        case ("promote", number, generation):
            index.promote(PAGES, [an_id(number)], generation)
        case ("demote", document, generation):
            index.demote(PAGES, document, generation)
        case ("delete", number, _):
            index.delete(PAGES, [an_id(number)])


def remember(
    served: Mapping[int, tuple[str, int | None, bool]], step: tuple[str, Any, Any]
) -> dict[int, tuple[str, int | None, bool]]:
    """What the contract says of a step: number → document, generation, live."""
    match step:
        case ("upsert", number, document):
            return {**served, number: (document, None, True)}
        case ("promote", number, generation) if number in served:
            return {**served, number: (served[number][0], generation, True)}
        case ("demote", document, generation):
            return {
                number: (
                    of,
                    since,
                    live and not (of == document and since is not None and since < generation),
                )
                for number, (of, since, live) in served.items()
            }
        case ("delete", number, _):
            return {other: state for other, state in served.items() if other != number}
    return dict(served)


# The embedded index: one owner, nothing lost


def test_reopening_keeps_everything(tmp_path: Path) -> None:
    first = EdgeIndex(tmp_path)
    first.create(PAGES, DIM)
    first.upsert(PAGES, [a_point(1), a_point(2), a_point(3)])
    first.promote(PAGES, [an_id(1)], 1)
    first.demote(PAGES, "manual", 2)
    first.delete(PAGES, [an_id(3)])
    first.close()

    second = EdgeIndex(tmp_path)

    assert set(second.inspect(PAGES, [an_id(number) for number in (1, 2, 3)])) == {an_id(1), an_id(2)}
    assert found(second) == {an_id(2)}
    with pytest.raises(BadVectors):
        second.upsert(PAGES, [a_point(4, rows=np.ones((1, DIM + 1)))])
    second.close()


def test_a_closed_index_opens_again_when_it_is_used(embedded: EdgeIndex) -> None:
    embedded.upsert(PAGES, [a_point(1)])
    embedded.close()
    embedded.close()

    assert found(embedded) == {an_id(1)}


def test_deleting_gives_the_space_back_at_the_latest_when_closing(tmp_path: Path) -> None:
    index = EdgeIndex(tmp_path)
    index.create("wide", 128)
    pages = [a_point(number, rows=np.ones((64, 128))) for number in range(1_500)]
    for start in range(0, len(pages), 100):
        index.upsert("wide", pages[start : start + 100])
    index.close()
    full = bytes_on_disk(tmp_path)

    index.delete("wide", [page.id for page in pages[100:]])
    index.close()

    deleted = 1_400 * 64 * 128 * 2
    assert bytes_on_disk(tmp_path) < full - deleted / 2
    assert set(index.point_ids("wide")) == {page.id for page in pages[:100]}
    index.close()


def test_without_room_for_a_copy_closing_after_a_deletion_leaves_the_shard_as_it_is(
    embedded: EdgeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.upsert(PAGES, [a_point(1), a_point(2)])
    embedded.delete(PAGES, [an_id(1)])
    monkeypatch.setattr(edge, "RESERVE_BYTES", 1 << 60)

    embedded.close()

    assert list(embedded.point_ids(PAGES)) == [an_id(2)]


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


def test_a_write_is_there_after_its_process_was_killed(tmp_path: Path) -> None:
    writer = SPAWN.Process(target=_write_and_die, args=(tmp_path,))
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL

    index = EdgeIndex(tmp_path)
    facts = index.inspect(PAGES, [an_id(number) for number in range(50)])

    assert len(facts) == 50
    assert all(fact.sound and fact.payload["live_generation"] == 1 for fact in facts.values())
    assert len(found(index)) == 50
    index.close()


def _write_and_die(root: Path) -> None:
    index = EdgeIndex(root)
    index.create(PAGES, DIM)
    index.upsert(PAGES, [a_point(number, rows=np.ones((300, DIM))) for number in range(50)])
    index.promote(PAGES, [an_id(number) for number in range(50)], 1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_second_owner_is_refused_and_told_who_the_first_is(embedded: EdgeIndex, tmp_path: Path) -> None:
    ours, theirs = SPAWN.Pipe()
    second = SPAWN.Process(target=_try_to_open, args=(tmp_path / "index", theirs))
    second.start()
    refusal = ours.recv()
    second.join()

    assert type(refusal) is IndexBusy
    assert str(tmp_path / "index" / PAGES) in refusal.message
    assert str(os.getpid()) in refusal.message


def _try_to_open(root: Path, answer: Connection) -> None:
    try:
        EdgeIndex(root).search(PAGES, a_question(), 1)
    except IndexUnavailable as error:
        answer.send(error)


def test_an_owner_that_closes_makes_room_for_the_next(embedded: EdgeIndex, tmp_path: Path) -> None:
    embedded.close()
    next_owner = EdgeIndex(tmp_path / "index")

    assert found(next_owner) == set()
    with pytest.raises(IndexBusy):
        found(embedded)
    next_owner.close()


def test_a_patient_opener_outlives_a_dying_owner(tmp_path: Path) -> None:
    opened = SPAWN.Event()
    owner = SPAWN.Process(target=_own_for_a_moment, args=(tmp_path, opened))
    owner.start()
    assert opened.wait(60)

    patient = EdgeIndex(tmp_path, wait_s=60)

    assert list(patient.point_ids(PAGES)) == []
    patient.close()
    owner.join()


def _own_for_a_moment(root: Path, opened: Event) -> None:
    EdgeIndex(root).create(PAGES, DIM)
    opened.set()
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)


def test_patience_ends(embedded: EdgeIndex, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(IndexBusy):
        found(EdgeIndex(tmp_path / "index", wait_s=0.2))

    assert time.monotonic() - begun >= 0.2


def test_a_shard_whose_making_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / f"{PAGES}.new" / "segments").mkdir(parents=True)
    (tmp_path / f"{PAGES}.new" / "edge_config.json").write_text("{")

    index = EdgeIndex(tmp_path)
    index.create(PAGES, DIM)

    assert list(index.point_ids(PAGES)) == []
    index.close()


@pytest.mark.parametrize("damage", ["{", ""], ids=["cut", "empty"])
def test_a_damaged_shard_is_unavailable_and_not_left_locked(embedded: EdgeIndex, tmp_path: Path, damage: str) -> None:
    embedded.close()
    config = tmp_path / "index" / PAGES / "edge_config.json"
    sound = config.read_text()
    config.write_text(damage)

    with pytest.raises(IndexUnavailable, match=PAGES) as caught:
        found(embedded)
    assert not isinstance(caught.value, IndexBusy)

    config.write_text(sound)
    assert found(embedded) == set()


def test_a_panic_of_the_engine_is_unavailability(embedded: EdgeIndex, tmp_path: Path) -> None:
    embedded.upsert(PAGES, [a_point(1)])
    embedded.close()
    for status in (tmp_path / "index" / PAGES).rglob("vector_storage-page/deleted/status.dat"):
        status.write_bytes(status.read_bytes()[: status.stat().st_size // 2])

    with pytest.raises(IndexUnavailable, match=PAGES):
        found(embedded)


def test_a_nearly_full_disk_is_refused_before_the_engine_dies_of_it(
    embedded: EdgeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "RESERVE_BYTES", 1 << 60)

    with pytest.raises(DiskFull):
        embedded.upsert(PAGES, [a_point(1)])
    assert list(embedded.point_ids(PAGES)) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "a.b", "a\0"])
def test_a_collection_cannot_be_named_out_of_its_folder(embedded: EdgeIndex, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        embedded.create(name, DIM)


def test_the_hint_is_stored_as_a_number_because_the_engine_cannot_match_a_bool(embedded: EdgeIndex) -> None:
    """When this fails, the engine has learnt to: `points.LIVE` may be a bool."""
    import qdrant_edge

    assert type(qdrant_edge.MatchValue(False).value) is int
