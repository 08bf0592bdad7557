"""The gate serves nothing that it has not read back: each way in which a page can be wrong is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.domain import ArtifactRef, GateVerdict, PageProof, PointFacts
from pipeline.errors import ArtifactLost
from pipeline.gate import run_gate
from pipeline.stores.sql import SqlLedger
from tests import ledger_driver as driver
from tests.ledger_driver import LEASE_S, WORKER

Spoil = Callable[[PointFacts], PointFacts | None]


class ReadBack:
    """An index and an object store that hold exactly what the ledger says, except where a test spoils it."""

    def __init__(self, work: Callable[[], Sequence[PageProof]], spoil: Spoil, page: int) -> None:
        self._proofs = work
        self._spoil = spoil
        self._page = page
        self.calls: list[str] = []
        self.lost: set[str] = set()

    def create(self, collection: str, dim: int) -> None: ...

    def inspect(self, collection: str, point_ids: Sequence[str]) -> Mapping[str, PointFacts]:
        self.calls.append("inspect")
        found = {}
        for proof in self._proofs():
            facts = self._facts(proof)
            spoiled = self._spoil(facts) if proof.page_index == self._page else facts
            if spoiled and proof.point_id in point_ids:
                found[proof.point_id] = spoiled
        return found

    def promote(self, collection: str, point_ids: Sequence[str], generation: int) -> None:
        self.calls.append(f"promote {generation}")

    def demote(self, collection: str, document_id: str, generation: int) -> None:
        self.calls.append(f"demote {generation}")

    def get(self, ref: ArtifactRef) -> bytes:
        if ref.key in self.lost:
            raise ArtifactLost(f"{ref.key} is not there", key=ref.key)
        return b""

    def _facts(self, proof: PageProof) -> PointFacts:
        payload = {**self.payload, "page_index": proof.page_index, "page_label": proof.page_label}
        return PointFacts(payload=payload, n_tokens=2, dim=4, sound=True, sparse_terms=1)

    payload: Mapping[str, Any] = {}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqlLedger]:
    opened = driver.open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    driver.submit(opened)
    driver.take_in(opened)
    driver.run_stages(opened)
    yield opened
    opened.close()


def read_back(ledger: SqlLedger, spoil: Spoil = lambda facts: facts, page: int = 1) -> ReadBack:
    """Take a look at the gate's work, give it back, and hold what it says."""
    work = ledger.gates.claim(LEASE_S, "spy")
    assert work is not None
    ledger.gates.release("spy")
    held = ReadBack(lambda: work.pages, spoil, page)
    held.payload = {
        "org": work.org,
        "document_id": work.document_id,
        "version_id": work.version_id,
        "build": work.build.id,
        "contract": work.build.contract_digest,
        "title": "A manual",
        "labels": [],
        "in_force_from": 0,
        "in_force_until": 3_652_060,
    }
    return held


def gate(ledger: SqlLedger, held: ReadBack) -> GateVerdict | None:
    return run_gate(ledger, held, held, LEASE_S, WORKER)  # type: ignore[arg-type]


def other(name: str, value: object) -> Spoil:
    return lambda facts: dataclasses.replace(facts, payload={**facts.payload, name: value})


def test_a_version_that_is_all_there_is_promoted_with_its_hints_around_the_commit(ledger: SqlLedger) -> None:
    held = read_back(ledger)
    assert gate(ledger, held) == GateVerdict.PROMOTED
    assert held.calls == ["inspect", "promote 1", "demote 1"]
    assert gate(ledger, held) is None


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda facts: None, id="absent"),
        pytest.param(other("org", "somebody else"), id="org"),
        pytest.param(other("document_id", "x"), id="document"),
        pytest.param(other("version_id", "x"), id="version"),
        pytest.param(other("page_index", 2), id="page index"),
        pytest.param(other("page_label", "x"), id="page label"),
        pytest.param(other("build", "x"), id="build"),
        pytest.param(other("contract", "x"), id="contract"),
        pytest.param(lambda facts: dataclasses.replace(facts, n_tokens=1), id="token count"),
        pytest.param(lambda facts: dataclasses.replace(facts, dim=3), id="dimension"),
        pytest.param(lambda facts: dataclasses.replace(facts, sound=False), id="NaN or zero rows"),
        pytest.param(lambda facts: dataclasses.replace(facts, sparse_terms=0), id="no sparse vector"),
    ],
)
def test_a_point_that_is_not_what_it_should_be_is_written_again_and_nothing_is_served(
    ledger: SqlLedger, spoil: Spoil
) -> None:
    held = read_back(ledger, spoil)
    assert gate(ledger, held) == GateVerdict.REOPENED
    assert held.calls == ["inspect"]
    assert ledger.views.status(None).pages_searchable == 0
    assert driver.run_stages(ledger)["index"] == 1


@pytest.mark.parametrize(("role", "stage"), [("image", "render"), ("text", "text")])
def test_an_artifact_that_is_gone_is_made_again_and_nothing_is_served(ledger: SqlLedger, role: str, stage: str) -> None:
    held = read_back(ledger)
    held.lost = {held._proofs()[2].artifacts[role].key}
    assert gate(ledger, held) == GateVerdict.REOPENED
    assert ledger.views.status(None).pages_searchable == 0
    counts = driver.run_stages(ledger)
    assert counts[next(name for name in counts if name == stage)] == 1


def test_a_page_that_the_version_should_have_and_has_not_is_a_failure(ledger: SqlLedger) -> None:
    from pipeline.stores.sql.tables import pages

    held = read_back(ledger)
    gone = pages.delete().where(pages.c.page_index == 2)
    ledger.database.write(lambda connection: connection.execute(gone))
    assert gate(ledger, held) == GateVerdict.REJECTED
    (submission,) = ledger.views.submissions_of(held.payload["document_id"], None)
    assert (submission.error_code, submission.error_page) == ("page_missing", 2)
