"""The loop of all stages: what becomes of each page's result, and of the window when something else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.domain import Outcome, PageResult, PageTask, StageName
from pipeline.errors import ArtifactLost, DiskFull, EngineUnavailable, LedgerUnavailable, PageBroken, ParserTimeout
from pipeline.run_stage import WindowReport, run_stage
from pipeline.settings import PoolSettings
from pipeline.stores.folder import FolderStore
from pipeline.stores.sql import SqlLedger
from tests import ledger_driver as driver
from tests.ledger_driver import WORKER

POOL = PoolSettings(window=8, lease_s=60)


class ScriptedStage:
    """A render stage that makes of each task what a test says."""

    name = StageName.RENDER

    def __init__(self, make: Callable[[PageTask], PageResult]) -> None:
        self._make = make

    def process(self, tasks: Sequence[PageTask]) -> Iterable[PageResult]:
        return (self._make(task) for task in tasks)


def rendered(task: PageTask) -> PageResult:
    artifacts = {"image": (b"image of %d" % task.page_index, ".jpg"), "evidence": (b"{}", ".json")}
    return PageResult(task=task, artifacts=artifacts, facts={"width": 1})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqlLedger]:
    opened = driver.open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    driver.submit(opened)
    driver.take_in(opened, pages=4)
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "objects")


def run(ledger: SqlLedger, store: FolderStore, make: Callable[[PageTask], PageResult]) -> WindowReport:
    report = run_stage(ScriptedStage(make), ledger, store, POOL, WORKER)
    assert report is not None
    return report


def states(ledger: SqlLedger) -> dict[str, int]:
    tasks = ledger.views.status(None).tasks
    return {state: count for (stage, state), count in tasks.items() if stage == "render"}


def test_what_a_stage_yields_is_stored_under_its_digest_and_settled(ledger: SqlLedger, store: FolderStore) -> None:
    report = run(ledger, store, rendered)
    assert (report.done, report.failed, report.deferred, report.lost) == (4, 0, 0, 0)
    assert states(ledger) == {"done": 4}
    assert sum("/image/" in key for key in store.keys()) == 4
    assert run_stage(ScriptedStage(rendered), ledger, store, POOL, WORKER) is None


def test_a_pages_failure_is_charged_to_that_page_alone(ledger: SqlLedger, store: FolderStore) -> None:
    def make(task: PageTask) -> PageResult:
        return PageResult(task=task, error=PageBroken("no such object")) if task.page_index == 2 else rendered(task)

    report = run(ledger, store, make)
    assert (report.done, report.failed, report.message) == (3, 1, "no such object")
    assert states(ledger) == {"done": 3, "failed": 1}


def test_a_failure_that_may_pass_is_tried_again_later(ledger: SqlLedger, store: FolderStore) -> None:
    run(ledger, store, lambda task: PageResult(task=task, error=ParserTimeout("hangs")))
    assert states(ledger) == {"pending": 4}
    assert not ledger.tasks.pending(StageName.RENDER)


def test_a_full_disk_puts_the_rest_of_the_window_off_and_charges_nobody(
    ledger: SqlLedger, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.put

    def put_until_full(key: str, content: bytes) -> object:
        if "/00002/" in key:
            raise DiskFull("/objects is full")
        return put(key, content)

    monkeypatch.setattr(store, "put", put_until_full)
    report = run(ledger, store, rendered)
    assert (report.done, report.deferred, report.message) == (2, 2, "/objects is full")
    assert [waiting.code for waiting in ledger.views.status(None).waiting] == ["disk_full"]


def test_an_input_that_is_gone_reopens_nothing_that_the_ledger_did_not_write(
    ledger: SqlLedger, store: FolderStore
) -> None:
    """The source was written by intake: no row to reopen, so its pages wait, say for what, and are not charged."""
    report = run(ledger, store, lambda task: PageResult(task=task, error=ArtifactLost("gone", key="source")))
    assert report.deferred == 4
    assert states(ledger) == {"pending": 4}
    assert not ledger.tasks.pending(StageName.RENDER)
    assert [(waiting.code, waiting.pages) for waiting in ledger.views.status(None).waiting] == [("artifact_lost", 4)]


def test_a_lease_that_was_taken_over_ends_the_window_without_a_word_in_the_ledger(
    ledger: SqlLedger, store: FolderStore
) -> None:
    def make(task: PageTask) -> PageResult:
        ledger.tasks.release(WORKER)
        return rendered(task)

    assert run(ledger, store, make).lost == 4
    assert states(ledger) == {"pending": 4}


def test_an_unexpected_exception_counts_like_the_death_of_the_worker(ledger: SqlLedger, store: FolderStore) -> None:
    def make(task: PageTask) -> PageResult:
        raise KeyError("a bug")

    for sizes in ([4], [2, 2], [1, 1, 1, 1]):
        for _ in sizes:
            with pytest.raises(KeyError):
                run_stage(ScriptedStage(make), ledger, store, POOL, WORKER)
        assert states(ledger) == {"pending": 4}
    assert not ledger.tasks.pending(StageName.RENDER)  # each was charged alone, and is tried again later


def test_a_wrong_configuration_is_raised_and_charges_nobody(ledger: SqlLedger, store: FolderStore) -> None:
    def make(task: PageTask) -> PageResult:
        return PageResult(task=task, error=EngineUnavailable("not installed"))

    with pytest.raises(EngineUnavailable):
        run_stage(ScriptedStage(make), ledger, store, POOL, WORKER)
    assert states(ledger) == {"pending": 4}
    assert ledger.tasks.pending(StageName.RENDER)


def test_finished_work_waits_for_a_ledger_that_is_away(
    ledger: SqlLedger, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, outage = ledger.tasks.settle, iter([LedgerUnavailable("away"), LedgerUnavailable("away")])

    def settle_later(token: str, outcomes: Sequence[Outcome]) -> int:
        for error in outage:
            raise error
        return settle(token, outcomes)

    monkeypatch.setattr(ledger.tasks, "settle", settle_later)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)
    assert run(ledger, store, rendered).done == 4
    assert states(ledger) == {"done": 4}
