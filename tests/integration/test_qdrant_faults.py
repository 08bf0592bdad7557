"""`QdrantIndex` when the server is slow, gone, loses its answers or refuses the size; and how much two stages miss."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from qdrant_client import QdrantClient, models

from pipeline.domain import Floats, IndexPoint, IndexQuery, SparseVector
from pipeline.engines.lexical import DIM as LEXICAL_DIM
from pipeline.engines.lexical import LexicalEncoder
from pipeline.errors import ContractMismatch, IndexUnavailable
from pipeline.metadata import Scope
from pipeline.stores import qdrant_connection
from pipeline.stores.memory_index import MemoryIndex
from pipeline.stores.points import MAX_NUMBERS
from pipeline.stores.qdrant import QdrantIndex
from pipeline.stores.qdrant_options import QdrantOptions
from pipeline.stores.qdrant_points import indexed_fields
from tests.qdrant_server import ANY, Fault, QdrantServer

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")

PAGES = "pages"
DIM = 128
NO_TERMS = SparseVector(indices=(), values=())


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    started = QdrantServer()
    yield started
    started.stop()


@pytest.fixture
def index(server: QdrantServer) -> Iterator[QdrantIndex]:
    with contextlib.closing(QdrantIndex(server.options())) as made:
        made.create(PAGES, DIM)
        yield made


def an_id(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))


def a_page(number: int, *, n_tokens: int = 3, org: str = "acme", rows: Floats | None = None) -> IndexPoint:
    random = np.random.default_rng(number)
    drawn = random.normal(size=(n_tokens, DIM)).astype(np.float32)
    return IndexPoint(
        id=an_id(number),
        multivector=drawn / np.linalg.norm(drawn, axis=1, keepdims=True) if rows is None else rows,
        sparse=SparseVector(indices=(7,), values=(1.0,)),
        payload={"org": org, "document_id": "manual", "page_index": number, "page_label": "Ⅷ 第八页"},
    )


def a_question(rows: Floats, org: str = "acme") -> IndexQuery:
    return IndexQuery(scope=Scope(org=org), multivector=rows, sparse=NO_TERMS)


CALLS: dict[str, Callable[[QdrantIndex], Any]] = {
    "Upsert": lambda index: index.upsert(PAGES, [a_page(1)]),
    "Get": lambda index: index.inspect(PAGES, [an_id(1)]),
    "QueryBatch": lambda index: index.search(PAGES, a_question(a_page(1).multivector), 10),
    "SetPayload": lambda index: index.demote(PAGES, "manual", 1),
    "Delete": lambda index: index.delete(PAGES, [an_id(1)]),
    "Scroll": lambda index: list(index.point_ids(PAGES)),
    "CollectionExists": lambda index: index.create("others", DIM),
    "Create": lambda index: index.create("others", DIM),
    "CreateFieldIndex": lambda index: index.create("others", DIM),
}


# A server that does not answer


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.INTERNAL, Fault.LOST_REPLY])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_says_that_the_server_failed_and_succeeds_when_repeated(
    server: QdrantServer, index: QdrantIndex, call: str, fault: Fault
) -> None:
    server.fails(call, fault)

    with pytest.raises(IndexUnavailable, match=f"127.0.0.1:{server.port}"):
        CALLS[call](index)
    CALLS[call](index)


def test_an_answer_that_takes_too_long_is_unavailability(server: QdrantServer) -> None:
    with contextlib.closing(QdrantIndex(server.options(timeout_s=1))) as index:
        index.create(PAGES, DIM)
        server.fails("Upsert", Fault.SLOW)
        begun = time.monotonic()
        with pytest.raises(IndexUnavailable, match="no answer in 1 s"):
            index.upsert(PAGES, [a_page(1)])

        assert time.monotonic() - begun < server.delay_s
        index.upsert(PAGES, [a_page(1)])
        assert list(index.point_ids(PAGES)) == [an_id(1)]


def test_nobody_at_the_address_is_unavailability_that_says_what_to_check(server: QdrantServer) -> None:
    options = server.options(timeout_s=2)
    server.stop()

    with (
        contextlib.closing(QdrantIndex(options)) as index,
        pytest.raises(IndexUnavailable, match="url and grpc_port") as caught,
    ):
        index.create(PAGES, DIM)
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message


def test_a_write_whose_reply_is_lost_may_be_sent_again(server: QdrantServer, index: QdrantIndex) -> None:
    pages = [a_page(number) for number in range(5)]
    server.fails("Upsert", Fault.LOST_REPLY)
    with pytest.raises(IndexUnavailable):
        index.upsert(PAGES, pages)
    assert len(list(index.point_ids(PAGES))) == 5, "the work was done"
    once = index.inspect(PAGES, [page.id for page in pages])

    index.upsert(PAGES, pages)

    assert sorted(index.point_ids(PAGES)) == sorted(page.id for page in pages)
    assert index.inspect(PAGES, [page.id for page in pages]) == once


def test_a_promotion_whose_reply_is_lost_may_be_sent_again(server: QdrantServer, index: QdrantIndex) -> None:
    index.upsert(PAGES, [a_page(1), a_page(2)])
    server.fails("SetPayload", Fault.LOST_REPLY)
    with pytest.raises(IndexUnavailable):
        index.promote(PAGES, [an_id(1)], 3)

    index.promote(PAGES, [an_id(1)], 3)
    index.demote(PAGES, "manual", 3)

    payload = index.inspect(PAGES, [an_id(1)])[an_id(1)].payload
    assert (payload["live"], payload["live_generation"]) == (1, 3)


def test_a_lost_collection_is_made_again_by_the_next_write(server: QdrantServer, index: QdrantIndex) -> None:
    index.upsert(PAGES, [a_page(1)])
    server.client.delete_collection(PAGES)
    with pytest.raises(IndexUnavailable, match="collection is gone"):
        index.upsert(PAGES, [a_page(1)])

    index.create(PAGES, DIM)
    index.upsert(PAGES, [a_page(1)])

    assert list(index.point_ids(PAGES)) == [an_id(1)]


def test_a_write_that_is_only_queued_is_not_taken_for_done(server: QdrantServer, index: QdrantIndex) -> None:
    server.fails("Upsert", Fault.QUEUED)

    with pytest.raises(IndexUnavailable, match="not applied"):
        index.upsert(PAGES, [a_page(1)])


# Creation


def test_creation_that_somebody_else_wins_is_creation(server: QdrantServer) -> None:
    server.fails("Create", Fault.LOST_RACE)

    with contextlib.closing(QdrantIndex(server.options())) as index:
        index.create(PAGES, DIM)

        index.upsert(PAGES, [a_page(1)])
        assert len(server.bytes_of("CreateFieldIndex")) == len(indexed_fields())


def test_many_creators_at_once_all_succeed(server: QdrantServer) -> None:
    makers = [QdrantIndex(server.options()) for _ in range(8)]
    together = threading.Barrier(len(makers))

    def create(index: QdrantIndex) -> None:
        together.wait()
        index.create(PAGES, DIM)

    with ThreadPoolExecutor(len(makers)) as threads:
        list(threads.map(create, makers))

    makers[0].upsert(PAGES, [a_page(1)])
    assert list(makers[7].point_ids(PAGES)) == [an_id(1)]
    for maker in makers:
        maker.close()


def test_creating_what_is_known_asks_nobody(server: QdrantServer, index: QdrantIndex) -> None:
    before = len(server.calls)
    index.create(PAGES, DIM)

    assert len(server.calls) == before


def test_another_process_sees_the_dimension(server: QdrantServer, index: QdrantIndex) -> None:
    with contextlib.closing(QdrantIndex(server.options())) as other, pytest.raises(ContractMismatch):
        other.create(PAGES, DIM + 1)


def test_a_collection_of_somebody_else_is_refused(server: QdrantServer, index: QdrantIndex) -> None:
    server.client.create_collection("theirs", models.VectorParams(size=DIM, distance=models.Distance.DOT))

    with pytest.raises(ContractMismatch, match="theirs"):
        index.create("theirs", DIM)


# Sizes


def test_writes_are_cut_by_bytes_and_the_estimate_is_never_too_low(server: QdrantServer) -> None:
    options = server.options(request_bytes=200_000)
    with contextlib.closing(QdrantIndex(options)) as index:
        index.create(PAGES, DIM)
        index.upsert(PAGES, [a_page(number, n_tokens=1 + number % 60) for number in range(120)])

        sizes = server.bytes_of("Upsert")
        assert max(sizes) <= options.request_bytes
        assert len(sizes) <= 1.5 * sum(sizes) / options.request_bytes
        assert len(list(index.point_ids(PAGES))) == 120


def test_a_page_of_2_mb_and_the_largest_one_fit(server: QdrantServer, index: QdrantIndex) -> None:
    """4,096 x 128 numbers are 2.1 MB; the largest page that Qdrant takes is twice as large."""
    index.upsert(PAGES, [a_page(1, n_tokens=4_096), a_page(2, n_tokens=MAX_NUMBERS // DIM)])

    facts = index.inspect(PAGES, [an_id(1), an_id(2)])
    assert {fact.n_tokens for fact in facts.values()} == {4_096, MAX_NUMBERS // DIM}
    assert all(fact.sound for fact in facts.values())


def test_a_size_that_the_server_refuses_is_halved_until_it_fits() -> None:
    server = QdrantServer(most_bytes=300_000)
    with contextlib.closing(QdrantIndex(server.options())) as index:
        index.create(PAGES, DIM)
        index.upsert(PAGES, [a_page(number, n_tokens=100) for number in range(20)])

        assert len(list(index.point_ids(PAGES))) == 20
        assert max(server.bytes_of("Upsert")) <= 300_000
    server.stop()


def test_a_single_page_that_the_server_refuses_is_said_to_be_too_large_for_it() -> None:
    server = QdrantServer(most_bytes=50_000)
    with contextlib.closing(QdrantIndex(server.options())) as index:
        index.create(PAGES, DIM)
        with pytest.raises(IndexUnavailable, match="raise its request limit"):
            index.upsert(PAGES, [a_page(1), a_page(2, n_tokens=100)])
    server.stop()


def test_pages_are_read_back_in_bounded_answers(server: QdrantServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages first, so that the size of the large ones comes as a surprise and their answer has to be halved."""
    monkeypatch.setitem(qdrant_connection.CHANNEL, "grpc.max_receive_message_length", 1_000_000)
    small = [a_page(number, n_tokens=2) for number in range(20)]
    large = [a_page(100 + number, n_tokens=200) for number in range(20)]
    with contextlib.closing(QdrantIndex(server.options())) as index:
        index.create(PAGES, DIM)
        index.upsert(PAGES, [*small, *large])

        facts = index.inspect(PAGES, [page.id for page in (*small, *large)])

    expected = {page.id: len(page.multivector) for page in (*small, *large)}
    assert {id: fact.n_tokens for id, fact in facts.items()} == expected
    most_ids = max(server.bytes_of("Get")) // len(an_id(1))
    assert most_ids >= 32 and len(server.bytes_of("Get")) > 4, "8, then 32 of 3.1 MB, which were halved"


def test_a_page_without_its_pooled_vector_is_not_sound(server: QdrantServer, index: QdrantIndex) -> None:
    index.upsert(PAGES, [a_page(1)])
    server.client.delete_vectors(PAGES, ["pooled"], [an_id(1)])

    assert not index.inspect(PAGES, [an_id(1)])[an_id(1)].sound


# Secrets


def test_the_key_is_sent_and_never_shown(server: QdrantServer) -> None:
    options = server.options(api_key="s3cret-key")
    with (
        pytest.warns(UserWarning, match="insecure connection"),
        contextlib.closing(QdrantIndex(options)) as index,
    ):
        index.create(PAGES, DIM)
        assert server.headers["api-key"] == "s3cret-key"
        server.fails(ANY, Fault.UNAVAILABLE)
        with pytest.raises(IndexUnavailable) as caught:
            index.upsert(PAGES, [a_page(1)])

    shown = (repr(options), options.model_dump_json(), repr(index), repr(caught.value), str(caught.value.__cause__))
    assert not any("s3cret" in text for text in shown)
    assert "s3cret" not in str(caught.value.context)


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "http://user:pass@host", "http://host/?api_key=1", "http://"])
def test_a_url_is_scheme_and_host_and_nothing_secret(url: str) -> None:
    with pytest.raises(ValidationError):
        QdrantOptions(url=url)


def test_a_missing_certificate_is_found_before_anything_is_begun(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        QdrantOptions(url="https://host", ca_file=tmp_path / "absent.pem")


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.pem"
    certificate.touch()
    with pytest.raises(ValidationError, match="belong together"):
        QdrantOptions(url="https://host", cert_file=certificate)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make a certificate with")
def test_tls_trusts_the_named_authority_and_no_other(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    self_signed = "req -x509 -nodes -newkey rsa:2048 -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run(
        ["openssl", *self_signed.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    server = QdrantServer(
        credentials=grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())]),
    )
    options = {"url": "https://localhost", "grpc_port": server.port, "timeout_s": 2, "api_key": "s3cret-key"}

    with contextlib.closing(QdrantIndex(QdrantOptions(**options, ca_file=certificate))) as trusting:
        trusting.create(PAGES, DIM)
    with contextlib.closing(QdrantIndex(QdrantOptions(**options))) as wary, pytest.raises(IndexUnavailable) as caught:
        wary.create(PAGES, DIM)

    assert server.headers["api-key"] == "s3cret-key"
    assert "s3cret" not in caught.value.message
    server.stop()


# Tenants


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    orgs=st.lists(st.sampled_from(("acme", "Acme", "acme ", "globex", "*")), min_size=1, max_size=40),
    asking=st.sampled_from(("acme", "Acme", "acme ", "globex", "*", "nobody")),
    limit=st.integers(1, 5),
)
def test_other_tenants_neither_appear_nor_crowd_out_candidates(
    index: QdrantIndex, orgs: Sequence[str], asking: str, limit: int
) -> None:
    """The pages are alike: if the first stage saw others' too, they would fill it up."""
    rows = a_page(1).multivector
    index.delete(PAGES, list(index.point_ids(PAGES)))
    index.upsert(PAGES, [a_page(number, org=org, rows=rows) for number, org in enumerate(orgs)])

    query = IndexQuery(scope=Scope(org=asking), multivector=rows, sparse=SparseVector(indices=(7,), values=(1.0,)))
    candidates = index.search(PAGES, query, limit)

    own = {an_id(number) for number, org in enumerate(orgs) if org == asking}
    for ranking in (candidates.dense, candidates.sparse):
        assert {id for id, _ in ranking} <= own
        assert len(ranking) == min(limit, len(own))


def test_the_tenant_is_named_in_every_stage_of_both_rankings(server: QdrantServer, index: QdrantIndex) -> None:
    """A server hands the outer filter down to the prefetch (so does the memory mode); we do not lean on it."""
    query = IndexQuery(
        scope=Scope(org="acme"), multivector=a_page(1).multivector, sparse=SparseVector(indices=(7,), values=(1.0,))
    )
    index.search(PAGES, query, 10)

    dense, sparse = server.last["QueryBatch"].query_points
    for stage in (dense, sparse, *dense.prefetch):
        assert [condition.field.match.keyword for condition in stage.filter.must] == ["acme"]
        assert [condition.field.match.integer for condition in stage.filter.must_not] == [0]
    assert [stage.using for stage in (dense, *dense.prefetch, sparse)] == ["page", "pooled", "text"]
    assert (dense.limit, dense.prefetch[0].limit, sparse.limit) == (10, 40, 10)


# Two stages against one


def test_two_stages_find_nearly_all_that_scoring_every_page_finds() -> None:
    """Recall@10 is 0.997, without a graph's own losses, which only a real server has.

    1,000 pages of 80 to 250 words drawn as words are (Zipf), 40 questions of 4 words of a page; 100 pages are asked
    for, as `Searcher` does, so 400 are candidates.
    """
    random = np.random.default_rng(7)
    words = np.array(["".join(random.choice(SYLLABLES, 4)) for _ in range(20_000)])
    pages = [" ".join(words[random.zipf(1.3, int(random.integers(80, 250))) % len(words)]) for _ in range(1_000)]
    questions = [" ".join(random.choice(pages[int(page)].split(), 4)) for page in random.integers(0, len(pages), 40)]
    encoder = LexicalEncoder()
    points = [
        IndexPoint(id=an_id(number), multivector=rows, sparse=NO_TERMS, payload={"org": "acme"})
        for number, rows in enumerate(encoder.encode_pages([json.dumps({"text": page}).encode() for page in pages]))
    ]
    two_stages = QdrantIndex(QdrantOptions(url="http://nowhere.invalid"), QdrantClient(":memory:"))
    brute_force = MemoryIndex()
    for index in (two_stages, brute_force):
        index.create(PAGES, LEXICAL_DIM)
        index.upsert(PAGES, points)

    asked = [a_question(rows) for rows in encoder.encode_queries(questions)]
    recalls = [recall(two_stages, brute_force, question) for question in asked]

    assert np.mean(recalls) >= 0.99
    assert min(recalls) >= 0.8


SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def recall(found: QdrantIndex, exact: MemoryIndex, question: IndexQuery) -> float:
    """Share of our ten best that score no less than the exact tenth best: equal words are equally good."""
    worst_of_the_best = exact.search(PAGES, question, 10).dense[-1][1]
    scores = [score for _, score in found.search(PAGES, question, 100).dense[:10]]
    return sum(score >= worst_of_the_best - 1e-4 for score in scores) / len(scores)
