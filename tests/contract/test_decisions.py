"""The contract of `Decisions`: to delete, to try again, to do without a page."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from pipeline.domain import (
    EventKind,
    Failed,
    GateVerdict,
    StageName,
    Submission,
    SubmissionState,
    TaskState,
)
from pipeline.errors import ConfigurationError, NotFound
from pipeline.metadata import Scope
from pipeline.stores.sql import SqlLedger
from pipeline.stores.sql.tables import page_tasks
from tests import ledger_driver as driver
from tests.ledger_driver import LEASE_S, WORKER, Clock

URI = "file:///a.pdf"


def states(ledger: SqlLedger) -> set[str]:
    return set(ledger.database.read(lambda c: c.execute(select(page_tasks.c.state)).scalars()))


def served(ledger: SqlLedger, submission: Submission) -> set[int]:
    build = ledger.registry.active_build()
    assert build and submission.version_id
    points = [point for _, point, _, _ in ledger.views.manifest(submission.version_id, build.id)]
    return {page.page_index for page in ledger.views.served(build, Scope(org="acme"), points).values()}


def get(ledger: SqlLedger, submission: Submission) -> Submission:
    found = ledger.submissions.get(submission.id)
    assert found
    return found


def reject(ledger: SqlLedger, page: int = 1) -> Submission:
    """A version of three pages, one of which cannot be rendered."""
    submission = driver.submit(ledger)
    driver.take_in(ledger)
    window = driver.claim(ledger, StageName.RENDER)
    bad = window.tasks[page]
    failed = Failed(task_id=bad.id, code="page_broken", message="no", retryable=False, seconds=0.1)
    ledger.tasks.settle(window.token, [failed, *(driver.done(task) for task in window.tasks if task is not bad)])
    driver.run_stages(ledger)
    assert driver.pass_gate(ledger) == GateVerdict.REJECTED
    return get(ledger, submission)


# Deleting


def test_a_deleted_document_is_gone_from_search_at_once(ledger: SqlLedger) -> None:
    submission = driver.publish(ledger)
    assert served(ledger, submission) == {0, 1, 2}
    assert ledger.decisions.delete("acme", URI) == [submission.document_id]
    assert served(ledger, submission) == set()
    status = ledger.views.status("acme")
    assert (status.documents_searchable, ledger.views.idle()) == (0, True)


def test_nothing_is_done_any_more_for_a_deleted_document(ledger: SqlLedger) -> None:
    submission = driver.submit(ledger)
    driver.take_in(ledger)
    driver.finish(ledger, driver.claim(ledger, StageName.RENDER))
    ledger.decisions.delete("acme", submission.id)
    assert not any(ledger.tasks.pending(stage) for stage in StageName)
    assert states(ledger) == {TaskState.DONE, TaskState.SUPERSEDED}
    ended = get(ledger, submission)
    assert (ended.state, ended.error_code) == (SubmissionState.FAILED, "deleted")
    assert [event.kind for event in ledger.outbox.claim(9, 0)] == [EventKind.REGISTERED, EventKind.FAILED]
    assert ledger.sweep() == 0


def test_a_worker_that_was_at_it_cannot_complete_anything(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    window = driver.claim(ledger, StageName.RENDER)
    ledger.decisions.delete("acme", URI)
    assert driver.finish(ledger, window) == 0
    assert not ledger.tasks.renew(window.token, LEASE_S)
    assert states(ledger) == {TaskState.SUPERSEDED}


def test_a_gate_that_was_at_it_promotes_nothing(ledger: SqlLedger) -> None:
    submission = driver.submit(ledger)
    driver.take_in(ledger)
    driver.run_stages(ledger)
    work = ledger.gates.claim(LEASE_S, WORKER)
    assert work
    ledger.decisions.delete("acme", URI)
    assert ledger.gates.settle(work, driver.report_on(work)) == GateVerdict.STALE
    assert served(ledger, get(ledger, submission)) == set()
    assert ledger.gates.claim(LEASE_S, WORKER) is None


def test_a_gate_that_outlasts_the_rows_of_its_deleted_document_promotes_nothing(ledger: SqlLedger) -> None:
    submission = driver.submit(ledger)
    driver.take_in(ledger)
    driver.run_stages(ledger)
    work = ledger.gates.claim(LEASE_S, WORKER)
    assert work
    ledger.decisions.delete("acme", URI)
    ledger.audits.forget(submission.document_id)
    assert ledger.gates.settle(work, driver.report_on(work)) == GateVerdict.STALE


def test_intake_that_was_at_it_makes_no_version(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed
    ledger.decisions.delete("acme", URI)
    ledger.submissions.accept(claimed[0], driver.draft_of(claimed[1], "A", 3))
    assert states(ledger) == set()


def test_a_deleted_document_that_is_submitted_again_is_a_new_one(ledger: SqlLedger) -> None:
    first = driver.publish(ledger, "A")
    ledger.decisions.delete("acme", URI)
    second = driver.publish(ledger, "A")
    assert second.document_id != first.document_id
    assert second.revision == 1
    assert (served(ledger, first), served(ledger, second)) == (set(), {0, 1, 2})
    assert ledger.submissions.document_of("acme", URI) == second.document_id


def test_nobody_deletes_the_document_of_another_tenant_or_a_deleted_one(ledger: SqlLedger) -> None:
    submission = driver.publish(ledger)
    for name in (URI, submission.id, submission.document_id, str(submission.version_id)):
        with pytest.raises(NotFound):
            ledger.decisions.delete("other", name)
    ledger.decisions.delete("acme", submission.document_id)
    with pytest.raises(NotFound):
        ledger.decisions.delete("acme", submission.document_id)


# Trying again


def test_a_page_that_was_given_up_is_put_back_with_all_its_attempts(ledger: SqlLedger) -> None:
    submission = reject(ledger)
    (given_up,) = ledger.views.status("acme").quarantined
    assert (given_up.stage, given_up.code, given_up.pages) == ("render", "page_broken", 1)
    assert list(ledger.views.status("other").quarantined) == []
    assert ledger.decisions.retry("acme", submission.id) == 1
    assert list(ledger.views.status("acme").quarantined) == []
    assert get(ledger, submission).state == SubmissionState.PROCESSING
    counts = driver.run_stages(ledger)
    assert counts[StageName.RENDER] == counts[StageName.INDEX] == 1
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED
    assert get(ledger, submission).state == SubmissionState.SEARCHABLE
    assert served(ledger, submission) == {0, 1, 2}
    kinds = [event.kind for event in ledger.outbox.claim(9, 0)]
    assert kinds == [EventKind.REGISTERED, EventKind.REJECTED, EventKind.SEARCHABLE]


def test_a_source_that_could_not_be_read_is_taken_in_again(ledger: SqlLedger) -> None:
    submission = driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed
    ledger.submissions.fail(claimed[0], "source_missing", "no such file")
    assert ledger.decisions.retry("acme", URI) == 1
    again = get(ledger, submission)
    assert (again.state, again.error_code, again.seconds) == (SubmissionState.QUEUED, None, None)
    driver.take_in(ledger)
    driver.run_stages(ledger)
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED


def test_what_is_well_is_not_touched_by_another_try(ledger: SqlLedger) -> None:
    submission = driver.publish(ledger)
    assert ledger.decisions.retry("acme", submission.document_id) == 0
    assert (get(ledger, submission), ledger.views.idle()) == (submission, True)


def test_another_try_is_of_this_tenants_documents_alone(ledger: SqlLedger) -> None:
    """Two tenants may submit the same URI."""
    theirs = driver.submit(ledger, URI, "other")
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed
    ledger.submissions.fail(claimed[0], "source_missing", "no such file")
    driver.publish(ledger)
    assert ledger.decisions.retry("acme", URI) == 0
    assert get(ledger, theirs).state == SubmissionState.FAILED


def test_another_try_does_not_wake_a_deleted_incarnation(ledger: SqlLedger) -> None:
    first = driver.submit(ledger)
    ledger.decisions.delete("acme", URI)
    driver.publish(ledger)
    assert ledger.decisions.retry("acme", URI) == 0
    assert (get(ledger, first).state, ledger.views.idle()) == (SubmissionState.FAILED, True)


def test_a_page_whose_neighbours_document_was_deleted_is_not_charged_as_if_leased_alone(
    ledger: SqlLedger, clock: Clock
) -> None:
    for name in "ab":
        driver.submit(ledger, f"file:///{name}.pdf")
        driver.take_in(ledger, name, pages=1)
    assert len(driver.claim(ledger, StageName.RENDER).tasks) == 2
    ledger.decisions.delete("acme", "file:///b.pdf")
    clock.pass_seconds(LEASE_S + 1)
    ledger.sweep()
    (task,) = driver.claim(ledger, StageName.RENDER).tasks
    assert task.attempts == 0


# Going back to earlier options


def adopt(ledger: SqlLedger, dpi: int) -> None:
    ledger.registry.adopt(driver.options(render={"dpi": dpi}))
    while ledger.sweep():
        pass
    driver.run_stages(ledger)
    while ledger.gates.pending():
        driver.pass_gate(ledger)


def test_options_that_come_back_are_served_again_though_nothing_is_to_be_done(ledger: SqlLedger) -> None:
    ledger.registry.adopt(driver.options(render={"dpi": 100}))
    submission = driver.publish(ledger)
    build = ledger.registry.active_build()
    assert build and submission.version_id
    before = ledger.views.manifest(submission.version_id, build.id)
    adopt(ledger, 200)
    assert ledger.views.manifest(submission.version_id, build.id) != before
    adopt(ledger, 100)
    assert ledger.views.manifest(submission.version_id, build.id) == before


def test_options_that_change_nothing_for_a_version_do_not_open_its_gate(ledger: SqlLedger) -> None:
    driver.publish(ledger)
    ledger.registry.adopt(driver.options(ocr={"min_confidence": 0.9}))
    ledger.sweep()
    assert not ledger.gates.pending()


def test_what_is_served_is_made_again_though_the_options_in_force_want_something_else(ledger: SqlLedger) -> None:
    submission = driver.publish(ledger)
    ledger.registry.adopt(driver.options(render={"dpi": 200}))
    while ledger.sweep():
        pass
    window = driver.claim(ledger, StageName.RENDER)
    failed = [
        Failed(task_id=task.id, code="page_broken", message="no", retryable=False, seconds=0.1) for task in window.tasks
    ]
    ledger.tasks.settle(window.token, failed)
    assert driver.pass_gate(ledger) == GateVerdict.REJECTED
    assert served(ledger, submission) == {0, 1, 2}, "the old pages stay"
    _, points = ledger.audits.expected(str(submission.version_id))
    lost = next(point for point in points if point.served)
    assert ledger.audits.reopen([lost.task_id]) == 1
    driver.run_stages(ledger)
    _, again = ledger.audits.expected(str(submission.version_id))
    assert lost.point_id in {point.point_id for point in again}


# Doing without a page


def test_a_version_passes_without_a_page_that_somebody_waived(ledger: SqlLedger) -> None:
    submission = reject(ledger)
    waiver = ledger.decisions.waive("acme", submission.id, 1, "eva", "a blank divider sheet, torn")
    assert (waiver.page_index, waiver.stage, waiver.error_code) == (1, "render", "page_broken")
    work = ledger.gates.claim(LEASE_S, WORKER)
    assert work
    assert [page.failure.waived for page in work.pages if page.failure] == [True]
    assert ledger.gates.settle(work, driver.report_on(work)) == GateVerdict.PROMOTED
    assert served(ledger, submission) == {0, 2}
    build = ledger.registry.active_build()
    assert build and submission.version_id
    points = [point for _, point, _, _ in ledger.views.manifest(submission.version_id, build.id)]
    pages = ledger.views.served(build, Scope(org="acme"), points).values()
    assert {tuple(page.missing_pages) for page in pages} == {(1,)}
    assert get(ledger, submission).state == SubmissionState.SEARCHABLE


def test_the_missing_page_is_told_as_long_as_the_pages_of_then_are_served(ledger: SqlLedger) -> None:
    submission = reject(ledger)
    ledger.decisions.waive("acme", submission.id, 1, "eva", "torn")
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED
    ledger.registry.adopt(driver.options(render={"dpi": 200}))
    while ledger.sweep():
        pass
    window = driver.claim(ledger, StageName.RENDER)
    other = [
        Failed(task_id=task.id, code="page_size", message="no", retryable=False, seconds=0.1) for task in window.tasks
    ]
    ledger.tasks.settle(window.token, other)
    assert driver.pass_gate(ledger) == GateVerdict.REJECTED
    build = ledger.registry.active_build()
    assert build and submission.version_id
    points = [point for _, point, _, _ in ledger.views.manifest(submission.version_id, build.id)]
    pages = ledger.views.served(build, Scope(org="acme"), points).values()
    assert [tuple(page.missing_pages) for page in pages] == [(1,), (1,)]


def test_the_same_decision_twice_is_one(ledger: SqlLedger) -> None:
    submission = reject(ledger)
    first = ledger.decisions.waive("acme", submission.id, 1, "eva", "torn")
    assert ledger.decisions.waive("acme", submission.id, 1, "eva", "torn") == first
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED


def test_a_page_of_another_tenants_document_of_the_same_name_is_not_waived(ledger: SqlLedger) -> None:
    reject(ledger)
    driver.submit(ledger, URI, "other")
    driver.take_in(ledger)
    driver.run_stages(ledger)
    while ledger.gates.pending():
        driver.pass_gate(ledger)
    with pytest.raises(ConfigurationError, match="has not failed"):
        ledger.decisions.waive("other", URI, 1, "eva", "not mine")


def test_a_waiver_is_for_one_failure_of_one_page(ledger: SqlLedger) -> None:
    submission = reject(ledger, page=1)
    ledger.decisions.waive("acme", submission.id, 1, "eva", "torn")
    ledger.decisions.retry("acme", submission.id)
    window = driver.claim(ledger, StageName.RENDER)
    failed = Failed(task_id=window.tasks[0].id, code="page_size", message="no", retryable=False, seconds=0.1)
    ledger.tasks.settle(window.token, [failed])
    assert driver.pass_gate(ledger) == GateVerdict.REJECTED, "it now fails for another reason"


@pytest.mark.parametrize("page", [0, 7])
def test_only_a_page_that_failed_can_be_waived(ledger: SqlLedger, page: int) -> None:
    submission = reject(ledger)
    with pytest.raises(ConfigurationError, match="has not failed"):
        ledger.decisions.waive("acme", submission.id, page, "eva", "why not")
    with pytest.raises(NotFound):
        ledger.decisions.waive("other", submission.id, 1, "eva", "of another tenant")
