"""Nobody is ever shown a page of another tenant, label or type, nor of a version that was not in force."""

from __future__ import annotations

import dataclasses
import datetime
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.domain import IndexPoint, PageTask, SparseVector, StageName, SubmissionState
from pipeline.identity import point_id
from pipeline.metadata import DocumentMetadata, Scope
from pipeline.page_text import PageText, TextSource, Verdict
from pipeline.search import Searcher
from pipeline.settings import SearchOptions
from pipeline.stores.edge import EdgeIndex
from pipeline.stores.sql import SqlLedger
from pipeline.wiring import Pipeline
from tests import ledger_driver as driver
from tests.pdfs import write_pdf
from tests.pipelines import ask, open_at
from tests.pipelines import ingest as ingest_files

DOCUMENTS = 1000
DAY_1 = datetime.date(2024, 1, 1)

days = st.dates(DAY_1, datetime.date(2024, 1, 20))
scopes = st.builds(
    Scope,
    org=st.sampled_from("ABC"),
    type=st.none() | st.sampled_from(["manual", "policy"]),
    labels=st.lists(st.sampled_from("wxyz"), unique=True, max_size=2).map(tuple),
    as_of=st.none() | days,
)


class AnyEncoder:
    """Every page is as near to every question as any other."""

    contract = driver.contract()
    options: Mapping[str, Any] = {}

    def encode_pages(self, contents: Sequence[bytes]) -> list[Any]:
        raise NotImplementedError

    def encode_queries(self, questions: Sequence[str]) -> list[Any]:
        return [np.ones((1, 4), dtype=np.float32) for _ in questions]

    def encode_page(self, text: str) -> SparseVector:
        raise NotImplementedError

    def encode_query(self, question: str) -> SparseVector:
        return SparseVector(indices=[1], values=[1.0])


@dataclasses.dataclass(frozen=True)
class Library:
    """Random documents of three tenants, and the scope's answer by looking at each of them."""

    searcher: Searcher
    documents: Mapping[str, tuple[str, DocumentMetadata]]

    def found(self, scope: Scope) -> set[str]:
        return {hit.source for hit in self.searcher.search(scope, "anything", DOCUMENTS)}

    def expected(self, scope: Scope) -> set[str]:
        return {uri for uri, (org, about) in self.documents.items() if org == scope.org and _fits(scope, about)}


def _fits(scope: Scope, about: DocumentMetadata) -> bool:
    if scope.type and about.type != scope.type:
        return False
    if scope.labels and not set(scope.labels) & set(about.labels):
        return False
    day = scope.as_of
    too_early = day and about.effective and day < about.effective
    too_late = day and about.expired and day >= about.expired
    return not too_early and not too_late


def _point(task: PageTask) -> IndexPoint:
    assert task.build
    return IndexPoint(
        id=point_id(task.build.id, task.version_id, task.page_index, task.fingerprint),
        multivector=np.ones((1, 4), dtype=np.float32),
        sparse=SparseVector(indices=[1], values=[1.0]),
        payload={"org": task.org, "document_id": task.document_id, "live": 1, **task.about},
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    home = tmp_path_factory.mktemp("library")
    ledger = driver.open_ledger(f"sqlite:///{home / 'ledger.sqlite'}")
    index = EdgeIndex(home / "index")
    documents = {}
    for number, (org, about) in enumerate(_random_documents()):
        uri = f"file:///{number}.pdf"
        documents[uri] = (org, about)
        driver.submit(ledger, uri, org, about)
    _process(ledger, index)
    text = PageText(
        verdict=Verdict.GOOD,
        source=TextSource.NATIVE,
        score=1.0,
        reasons=(),
        label="",
        width=1,
        height=1,
        blocks=(),
        text="some text",
    ).dump()
    store: Any = SimpleNamespace(get=lambda _ref: text)
    searcher = Searcher(
        ledger=ledger, store=store, index=index, encoder=AnyEncoder(), sparse=AnyEncoder(), options=SearchOptions()
    )
    yield Library(searcher, documents)
    index.close()
    ledger.close()


def _random_documents() -> Sequence[tuple[str, DocumentMetadata]]:
    """The same in every run."""
    rng = random.Random(20240101)

    def day(first: int, last: int) -> datetime.date | None:
        return None if rng.random() < 0.4 else DAY_1 + datetime.timedelta(days=rng.randint(first, last))

    return [
        (
            rng.choice("ABC"),
            DocumentMetadata(
                type=rng.choice([None, "manual", "policy"]),
                labels=tuple(rng.sample("wxyz", rng.randint(0, 3))),
                effective=day(0, 9),
                expired=day(10, 19),
            ),
        )
        for _ in range(DOCUMENTS)
    ]


def _process(ledger: SqlLedger, index: EdgeIndex) -> None:
    build = ledger.registry.active_build()
    assert build
    index.create(build.collection, build.contract.dim)
    for number in range(DOCUMENTS):
        driver.take_in(ledger, str(number), pages=1)
    while any(ledger.tasks.pending(stage) for stage in StageName):
        for stage in StageName:
            window = ledger.tasks.claim(stage, 256, driver.LEASE_S, driver.WORKER)
            if window and stage == StageName.INDEX:
                index.upsert(build.collection, [_point(task) for task in window.tasks])
            if window:
                driver.finish(ledger, window)
    while ledger.gates.pending():
        driver.pass_gate(ledger)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scope=scopes)
def test_a_question_is_answered_with_what_its_scope_admits_and_nothing_else(library: Library, scope: Scope) -> None:
    assert library.found(scope) == library.expected(scope)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    opened = open_at(tmp_path / "home")
    yield opened
    opened.close()


def test_a_day_is_answered_from_the_pages_that_were_in_force_then(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "standard.pdf"
    periods = [("2018", "alpha"), ("2020", "beta"), ("2023", "gamma")]
    for year, word in periods:
        write_pdf(path, [f"torque limit {word}", f"second page {word}"])
        ends = {"expired": datetime.date(2025, 1, 1)} if year == "2023" else {}
        metadata = DocumentMetadata(effective=datetime.date(int(year), 5, 1), **ends)
        (ended,) = ingest_files(pipeline, path, metadata=metadata)
        assert ended.state == SubmissionState.SEARCHABLE

    def words(day: str | None) -> set[str]:
        as_of = datetime.date.fromisoformat(day) if day else None
        return {hit.snippet.split()[-1] for hit in ask(pipeline, "torque limit second page", as_of=as_of)}

    assert words("2018-04-30") == set()
    assert words("2018-05-01") == words("2020-04-30") == {"alpha"}
    assert words("2020-05-01") == words("2023-04-30") == {"beta"}
    assert words("2023-05-01") == words("2024-12-31") == words(None) == {"gamma"}
    assert words("2025-01-01") == set(), "what was replaced does not come back"


def test_new_labels_on_the_same_file_hide_it_from_the_old_ones(pipeline: Pipeline, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "doc.pdf", ["alpha torque"])
    ingest_files(pipeline, path, metadata=DocumentMetadata(labels=("press",)))
    assert len(ask(pipeline, "alpha", labels=("press",))) == 1
    ingest_files(pipeline, path, metadata=DocumentMetadata(labels=("lathe",)))
    assert ask(pipeline, "alpha", labels=("press",)) == []
    assert len(ask(pipeline, "alpha", labels=("lathe",))) == len(ask(pipeline, "alpha")) == 1
