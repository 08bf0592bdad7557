"""The contract of `Outbox`: what is told is written with what it tells of, and is told until it is confirmed."""

from __future__ import annotations

import pytest

from pipeline.domain import EventKind, Failed, StageName, SubmissionState
from pipeline.metadata import DocumentMetadata
from pipeline.stores.sql import SqlLedger
from tests import ledger_driver as driver
from tests.ledger_driver import LEASE_S, WORKER, Clock


def kinds(ledger: SqlLedger) -> list[EventKind]:
    return [event.kind for event in ledger.outbox.claim(100, 0)]


def test_a_submission_is_told_of_when_it_is_registered_and_when_it_is_searchable(ledger: SqlLedger) -> None:
    submission = driver.publish(ledger)
    registered, searchable = ledger.outbox.claim(100, 60)
    assert (registered.kind, searchable.kind) == (EventKind.REGISTERED, EventKind.SEARCHABLE)
    assert registered.submission.id == searchable.submission.id == submission.id
    assert registered.submission.state == SubmissionState.QUEUED
    assert searchable.submission.version_id == submission.version_id


def test_the_same_submission_again_is_told_of_once(ledger: SqlLedger) -> None:
    for _ in range(2):
        ledger.submissions.submit("acme", "file:///a.pdf", DocumentMetadata(), submission_id="7" * 36)
    assert kinds(ledger) == [EventKind.REGISTERED]


def test_who_heard_of_a_submission_by_a_message_does_not_announce_it(ledger: SqlLedger) -> None:
    ledger.submissions.submit("acme", "file:///a.pdf", DocumentMetadata(), announce=False)
    assert kinds(ledger) == []


def test_a_failed_source_is_told_of_with_its_reason(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed is not None
    ledger.submissions.fail(claimed[0], "not_a_pdf", "it begins with <html>")
    _, failed = ledger.outbox.claim(100, 60)
    assert failed.kind == EventKind.FAILED
    assert (failed.submission.error_code, failed.submission.error_stage) == ("not_a_pdf", "intake")


def test_a_rejected_version_is_told_of_once_with_its_page(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    window = driver.claim(ledger, StageName.RENDER)
    broken = window.tasks[1]
    outcomes = [driver.done(task) for task in window.tasks if task is not broken]
    failure = Failed(task_id=broken.id, code="page_broken", message="no", retryable=False, seconds=0.1)
    ledger.tasks.settle(window.token, [*outcomes, failure])
    driver.run_stages(ledger)
    driver.pass_gate(ledger)
    events = ledger.outbox.claim(100, 60)
    assert [event.kind for event in events] == [EventKind.REGISTERED, EventKind.REJECTED]
    assert (events[1].submission.error_code, events[1].submission.error_page) == ("page_broken", 1)


def test_every_submission_of_a_version_is_told_of_when_it_ends(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.submit(ledger)
    for _ in range(2):
        driver.take_in(ledger, "A")
    driver.run_stages(ledger)
    driver.pass_gate(ledger)
    assert sorted(kinds(ledger)) == [EventKind.REGISTERED] * 2 + [EventKind.SEARCHABLE] * 2


def test_an_event_says_what_was_then_and_not_what_is_now(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed is not None
    ledger.submissions.fail(claimed[0], "not_a_pdf", "it begins with <html>")
    registered, _ = ledger.outbox.claim(100, 60)
    assert (registered.submission.state, registered.submission.error_code) == (SubmissionState.QUEUED, None)


def test_what_one_relay_holds_the_other_does_not_see_until_its_time_is_up(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    assert len(ledger.outbox.claim(100, hold_s=60)) == 1
    assert ledger.outbox.claim(100, 60) == []
    clock.pass_seconds(61)
    assert len(ledger.outbox.claim(100, 60)) == 1


def test_what_is_confirmed_is_not_told_again(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    (event,) = ledger.outbox.claim(100, 60)
    ledger.outbox.published([event.id])
    clock.pass_seconds(3600)
    assert (ledger.outbox.claim(100, 60), ledger.outbox.waiting()) == ([], 0)


def test_what_waits_for_the_broker_is_shown_until_it_is_told(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    (event,) = ledger.outbox.claim(100, 60)
    ledger.outbox.defer([event.id], "broker_unavailable", "no answer from 127.0.0.1:5672", 5)
    (waiting,) = ledger.views.status(None).waiting
    assert (waiting.stage, waiting.code, waiting.pages) == ("outbox", "broker_unavailable", 1)
    assert ledger.outbox.claim(100, 60) == []
    clock.pass_seconds(6)
    (again,) = ledger.outbox.claim(100, 60)
    ledger.outbox.published([again.id])
    assert (again, list(ledger.views.status(None).waiting)) == (event, [])


def test_the_oldest_are_told_first_and_no_more_than_asked_for(ledger: SqlLedger) -> None:
    submitted = [driver.submit(ledger, f"file:///{number}.pdf").id for number in range(5)]
    first, second = ledger.outbox.claim(3, 60), ledger.outbox.claim(3, 60)
    assert [event.submission.id for event in [*first, *second]] == submitted
    assert len(first) == 3


def test_published_events_are_forgotten_after_a_while_and_no_others(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger, "file:///a.pdf")
    (event,) = ledger.outbox.claim(100, 0)
    ledger.outbox.published([event.id])
    driver.submit(ledger, "file:///b.pdf")
    assert ledger.outbox.prune(60) == 0
    clock.pass_seconds(61)
    assert (ledger.outbox.prune(60), ledger.outbox.waiting()) == (1, 1)


@pytest.mark.parametrize("fails_at", ["submissions", "outbox"])
def test_a_submission_and_its_event_are_written_together_or_not_at_all(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    from pipeline.stores.sql import submissions

    def fail(*_: object) -> None:
        raise ConnectionError(fails_at)

    monkeypatch.setattr(submissions, "tell" if fails_at == "outbox" else "_document", fail)
    with pytest.raises(ConnectionError):
        driver.submit(ledger)
    monkeypatch.undo()
    assert (ledger.outbox.waiting(), ledger.views.status(None).submissions) == (0, {})
