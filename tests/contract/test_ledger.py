"""The contract of the ledger, on every database it runs on."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import select, update

from pipeline.domain import (
    Deferred,
    Failed,
    GateReport,
    GateVerdict,
    InputLost,
    StageName,
    SubmissionState,
    TaskState,
    Window,
)
from pipeline.errors import LeaseLost
from pipeline.metadata import DocumentMetadata, Scope
from pipeline.stages import CODE_VERSIONS
from pipeline.stores.sql import SqlLedger, gates
from pipeline.stores.sql.tables import builds, documents, metadata, page_tasks, submissions
from tests import ledger_driver as driver
from tests.ledger_driver import LEASE_S, WORKER, Clock


def task_states(ledger: SqlLedger, stage: StageName) -> list[str]:
    query = select(page_tasks.c.state).where(page_tasks.c.stage == stage).order_by(page_tasks.c.id)
    return ledger.database.read(lambda connection: list(connection.execute(query).scalars()))


def attempts(ledger: SqlLedger, stage: StageName) -> list[int]:
    query = select(page_tasks.c.attempts).where(page_tasks.c.stage == stage).order_by(page_tasks.c.id)
    return ledger.database.read(lambda connection: list(connection.execute(query).scalars()))


# The schema


def test_the_migrations_make_the_schema_that_the_tables_describe(ledger: SqlLedger) -> None:
    with ledger.database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        assert compare_metadata(context, metadata) == []


def test_migrating_again_changes_nothing(ledger: SqlLedger) -> None:
    driver.publish(ledger)
    ledger.migrate()
    assert ledger.views.status("acme").documents_searchable == 1


def test_the_databases_own_clock_counts_microseconds_since_the_epoch(url: str) -> None:
    ledger = driver.open_ledger(url)
    now = ledger.database.read(ledger.database.now)
    assert abs(now / 1e6 - time.time()) < 5
    ledger.close()


def test_orgs_that_differ_only_in_case_or_trailing_space_are_different_tenants(ledger: SqlLedger) -> None:
    ids = {driver.submit(ledger, org=org).document_id for org in ("acme", "ACME", "acme ", "ácme")}
    assert len(ids) == 4
    stored = ledger.database.read(lambda c: set(c.execute(select(documents.c.org)).scalars()))
    assert stored == {"acme", "ACME", "acme ", "ácme"}


# Submissions


def test_revisions_of_a_document_count_up(ledger: SqlLedger) -> None:
    assert [driver.submit(ledger).revision for _ in range(3)] == [1, 2, 3]


def test_the_same_submission_delivered_twice_is_registered_once(ledger: SqlLedger) -> None:
    first = ledger.submissions.submit("acme", "file:///a.pdf", DocumentMetadata(), submission_id="7" * 36)
    again = ledger.submissions.submit("acme", "file:///a.pdf", DocumentMetadata(), submission_id="7" * 36)
    assert (first.revision, again.revision) == (1, 1)


def test_a_leased_submission_is_not_claimed_again(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    assert ledger.submissions.claim(LEASE_S, "one") is not None
    assert ledger.submissions.claim(LEASE_S, "two") is None


def test_a_submission_whose_worker_dies_each_time_is_given_up(ledger: SqlLedger, clock: Clock) -> None:
    submission = driver.submit(ledger)
    for _ in range(3):
        assert ledger.submissions.claim(LEASE_S, WORKER) is not None
        clock.pass_seconds(LEASE_S + 1)
        ledger.sweep()
    ended = ledger.submissions.get(submission.id)
    assert ended is not None
    assert (ended.state, ended.error_code) == (SubmissionState.FAILED, "worker_crashed")


def test_a_late_intake_cannot_accept_what_another_took_over(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, "late")
    assert claimed is not None
    clock.pass_seconds(LEASE_S + 1)
    ledger.sweep()
    driver.take_in(ledger)
    with pytest.raises(LeaseLost):
        ledger.submissions.accept(claimed[0], driver.draft_of(claimed[1], "A", 3))


def test_a_deferred_submission_comes_again_later_and_says_why_it_waits(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed is not None
    ledger.submissions.defer(claimed[0], "store_unavailable", "the disk is away", 30)
    assert not ledger.submissions.pending()
    assert [waiting.code for waiting in ledger.views.status("acme").waiting] == ["store_unavailable"]
    clock.pass_seconds(31)
    assert ledger.submissions.pending()


def test_a_failed_submission_carries_its_reason(ledger: SqlLedger) -> None:
    submission = driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed is not None
    ledger.submissions.fail(claimed[0], "not_a_pdf", "HTML")
    ended = ledger.submissions.get(submission.id)
    assert ended is not None
    assert (ended.state, ended.error_code, ended.error_message) == (SubmissionState.FAILED, "not_a_pdf", "HTML")
    assert ledger.views.idle()


# Tasks


def test_pages_go_through_the_stages_in_order_and_become_searchable(ledger: SqlLedger) -> None:
    ended = driver.publish(ledger)
    assert ended.state == SubmissionState.SEARCHABLE
    assert ledger.views.status("acme").pages_searchable == 3
    assert ledger.views.idle()


def test_only_pages_whose_text_is_not_good_enough_are_read_by_ocr(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    counts = driver.run_stages(ledger, ocr_pages=[1])
    assert counts == {"render": 3, "text": 3, "ocr": 1, "encode": 3, "index": 3}


def test_a_window_is_claimed_in_the_order_of_the_pages(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=20)
    window = driver.claim(ledger, StageName.RENDER, limit=16)
    assert [task.page_index for task in window.tasks] == list(range(16))


def test_a_small_document_comes_in_among_the_pages_of_a_big_one(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger, "file:///big.pdf")
    driver.take_in(ledger, pages=1000)
    driver.finish(ledger, driver.claim(ledger, StageName.RENDER))
    clock.pass_seconds(1)
    driver.submit(ledger, "file:///small.pdf")
    small = driver.take_in(ledger, pages=1)
    claimed = [driver.claim(ledger, StageName.RENDER) for _ in range(3)]
    assert small in {task.version_id for window in claimed for task in window.tasks}


def test_a_claim_without_pending_rows_returns_nothing(ledger: SqlLedger) -> None:
    assert ledger.tasks.claim(StageName.RENDER, 16, LEASE_S, WORKER) is None


def test_a_worker_whose_lease_was_taken_over_cannot_complete_anything(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=1)
    late = driver.claim(ledger, StageName.RENDER)
    clock.pass_seconds(LEASE_S + 1)
    ledger.sweep()
    clock.pass_seconds(10)
    winner = driver.claim(ledger, StageName.RENDER, worker="worker-2")
    assert driver.finish(ledger, late) == 0
    assert task_states(ledger, StageName.RENDER) == [TaskState.LEASED]
    assert not ledger.tasks.renew(late.token, LEASE_S)
    assert driver.finish(ledger, winner) == 1


def test_a_late_worker_cannot_complete_while_the_row_waits_for_the_next_one(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=1)
    late = driver.claim(ledger, StageName.RENDER)
    clock.pass_seconds(LEASE_S + 1)
    ledger.sweep()
    assert driver.finish(ledger, late) == 0
    assert task_states(ledger, StageName.RENDER) == [TaskState.PENDING]


def test_settling_twice_changes_nothing(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    window = driver.claim(ledger, StageName.RENDER)
    assert (driver.finish(ledger, window), driver.finish(ledger, window)) == (3, 0)
    assert len(task_states(ledger, StageName.TEXT)) == 3


def test_a_renewed_lease_outlives_its_first_end(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    window = driver.claim(ledger, StageName.RENDER)
    clock.pass_seconds(LEASE_S - 1)
    assert ledger.tasks.renew(window.token, LEASE_S)
    clock.pass_seconds(LEASE_S - 1)
    assert ledger.sweep() == 0
    assert driver.finish(ledger, window) == 3


def test_a_lost_window_is_halved_until_the_page_at_fault_stands_alone(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=8)
    sizes = []
    while sizes[-1:] != [1]:
        sizes.append(len(driver.claim(ledger, StageName.RENDER, limit=8).tasks))
        clock.pass_seconds(LEASE_S + 1)
        ledger.sweep()
    assert sizes == [8, 4, 2, 1]
    assert attempts(ledger, StageName.RENDER) == [1] + [0] * 7  # its neighbours are never charged


def test_a_page_that_kills_its_worker_three_times_fails_and_its_neighbours_go_on(
    ledger: SqlLedger, clock: Clock
) -> None:
    submission = driver.submit(ledger)
    driver.take_in(ledger, pages=2)
    for _ in range(20):
        window = ledger.tasks.claim(StageName.RENDER, 2, LEASE_S, WORKER)
        if window and any(task.page_index == 1 for task in window.tasks):
            clock.pass_seconds(LEASE_S + 1)
        elif window:
            driver.finish(ledger, window)
        ledger.sweep()
        clock.pass_seconds(10)
    driver.run_stages(ledger)
    assert driver.pass_gate(ledger) == GateVerdict.REJECTED
    ended = ledger.submissions.get(submission.id)
    assert ended is not None
    assert (ended.state, ended.error_code, ended.error_page) == (SubmissionState.REJECTED, "worker_crashed", 1)
    assert sorted(task_states(ledger, StageName.RENDER)) == [TaskState.DONE, TaskState.FAILED]


def test_what_a_stopped_worker_held_goes_back_uncharged(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=1)
    driver.claim(ledger, StageName.RENDER)
    assert ledger.release(WORKER) == 1
    assert attempts(ledger, StageName.RENDER) == [0]
    assert ledger.tasks.pending(StageName.RENDER)


def test_a_dead_workers_rows_are_taken_back_at_once_and_no_others(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=4)
    driver.claim(ledger, StageName.RENDER, limit=2, worker="dead")
    driver.claim(ledger, StageName.RENDER, limit=2, worker="alive")
    assert ledger.abandon("dead") == 2
    assert task_states(ledger, StageName.RENDER) == ["pending", "pending", "leased", "leased"]


def test_a_failure_is_tried_again_until_its_attempts_are_used_up(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=1)
    for expected in (TaskState.PENDING, TaskState.PENDING, TaskState.FAILED):
        window = driver.claim(ledger, StageName.RENDER)
        task = window.tasks[0].id
        failed = Failed(task_id=task, code="parser_timeout", message="hangs", retryable=True, seconds=20)
        ledger.tasks.settle(window.token, [failed])
        assert task_states(ledger, StageName.RENDER) == [expected]
        clock.pass_seconds(60)
    assert attempts(ledger, StageName.RENDER) == [3]


def test_a_failure_that_will_not_go_away_is_final_at_once(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=1)
    window = driver.claim(ledger, StageName.RENDER)
    broken = Failed(
        task_id=window.tasks[0].id, code="page_broken", message="no such object", retryable=False, seconds=0.1
    )
    ledger.tasks.settle(window.token, [broken])
    assert task_states(ledger, StageName.RENDER) == [TaskState.FAILED]


def test_an_infrastructure_fault_is_never_charged(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=1)
    for _ in range(10):
        window = driver.claim(ledger, StageName.RENDER)
        waits = Deferred(task_id=window.tasks[0].id, code="disk_full", message="/data is full", delay_s=5)
        ledger.tasks.settle(window.token, [waits])
        assert not ledger.tasks.pending(StageName.RENDER)
        assert [waiting.code for waiting in ledger.views.status("acme").waiting] == ["disk_full"]
        clock.pass_seconds(6)
    assert attempts(ledger, StageName.RENDER) == [0]


def test_a_lost_input_reopens_the_row_that_wrote_it_and_only_that(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger, pages=2)
    driver.finish(ledger, driver.claim(ledger, StageName.RENDER))
    window = driver.claim(ledger, StageName.TEXT)
    lost = window.tasks[0]
    outcomes = [InputLost(task_id=lost.id, key=lost.inputs["evidence"].key), driver.done(window.tasks[1])]
    ledger.tasks.settle(window.token, outcomes)
    assert task_states(ledger, StageName.RENDER) == [TaskState.PENDING, TaskState.DONE]
    counts = driver.run_stages(ledger)
    assert (counts["render"], counts["text"], counts["index"]) == (1, 1, 2)


def test_two_stages_of_one_page_that_complete_at_the_same_moment_both_count(url: str) -> None:
    """The lost join: without the lock on the page row each sees the other's row unfinished, and index never comes."""
    ledger = driver.open_ledger(url)
    for turn in range(10):
        driver.submit(ledger, f"file:///{turn}.pdf")
        driver.take_in(ledger, content=f"image-{turn}", pages=2)
    _use_an_encoder_of_images(ledger)
    while ledger.tasks.pending(StageName.RENDER):
        driver.finish(ledger, driver.claim(ledger, StageName.RENDER))
    windows = []
    while ledger.tasks.pending(StageName.TEXT):
        windows.append((driver.claim(ledger, StageName.TEXT, limit=2), driver.claim(ledger, StageName.ENCODE, limit=2)))
    for text, encode in windows:
        barrier = threading.Barrier(2)

        def settle(window: Window, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return driver.finish(ledger, window)

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(settle, (text, encode))) == [2, 2]
    assert task_states(ledger, StageName.INDEX) == [TaskState.PENDING] * 20
    ledger.close()


def _use_an_encoder_of_images(ledger: SqlLedger) -> None:
    """So that encode and text run side by side."""
    reads_images = dataclasses.asdict(driver.contract()) | {"reads": "image"}
    ledger.database.write(lambda connection: connection.execute(update(builds).values(contract=reads_images)))


def test_no_page_is_claimed_twice_by_workers_that_claim_at_the_same_time(url: str) -> None:
    ledger = driver.open_ledger(url)
    driver.submit(ledger)
    driver.take_in(ledger, pages=200)

    def work(worker: str) -> list[int]:
        claimed = []
        while window := ledger.tasks.claim(StageName.RENDER, 8, LEASE_S, worker):
            claimed += [task.page_index for task in window.tasks]
        return claimed

    with ThreadPoolExecutor(4) as threads:
        claimed = [page for pages in threads.map(work, "abcd") for page in pages]
    assert sorted(claimed) == list(range(200))
    ledger.close()


# The gate


def test_nothing_is_served_before_the_gate_has_passed(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    driver.run_stages(ledger)
    build = ledger.registry.active_build()
    work = ledger.gates.claim(LEASE_S, WORKER)
    assert build is not None
    assert work is not None
    points = [page.point_id for page in work.pages if page.point_id]
    assert len(points) == 3
    assert ledger.views.served(build, Scope(org="acme"), points) == {}
    assert ledger.gates.settle(work, driver.report_on(work)) == GateVerdict.PROMOTED
    assert set(ledger.views.served(build, Scope(org="acme"), points)) == set(points)
    assert ledger.views.served(build, Scope(org="other"), points) == {}
    with pytest.raises(ValueError, match="no tenant"):
        ledger.views.served(build, Scope(org=""), points)


def test_a_version_with_unfinished_pages_is_not_ready_for_its_gate(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    driver.finish(ledger, driver.claim(ledger, StageName.RENDER))
    assert not ledger.gates.pending()


def test_a_gate_whose_epoch_no_longer_stands_writes_nothing(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    driver.run_stages(ledger)
    work = ledger.gates.claim(LEASE_S, WORKER)
    assert work is not None
    ledger.registry.adopt(driver.options(render={"dpi": 200}))
    ledger.sweep()
    assert ledger.gates.settle(work, driver.report_on(work)) == GateVerdict.STALE
    assert ledger.views.manifest(work.version_id, work.build.id) == []


def test_a_gate_that_was_taken_over_writes_nothing(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    driver.run_stages(ledger)
    late = ledger.gates.claim(LEASE_S, "late")
    assert late is not None
    clock.pass_seconds(LEASE_S + 1)
    ledger.sweep()
    assert ledger.gates.settle(late, driver.report_on(late)) == GateVerdict.STALE
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED


def test_what_the_gate_cannot_read_back_is_done_again_before_anything_is_served(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    driver.run_stages(ledger)
    work = ledger.gates.claim(LEASE_S, WORKER)
    assert work is not None
    gone = [work.pages[1].task_ids["point"], work.pages[2].task_ids["image"]]
    report = GateReport(pages=3, verdicts={}, failures=[], missing=["a point", "an image"], reopen=gone)
    assert ledger.gates.settle(work, report) == GateVerdict.REOPENED
    counts = driver.run_stages(ledger)
    assert (counts["render"], counts["index"]) == (1, 1)
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED


def test_versions_submitted_in_turn_a_b_a_end_at_the_last_without_computing_anything_again(
    ledger: SqlLedger,
) -> None:
    first = driver.publish(ledger, "A")
    assert driver.current_content(ledger, first.document_id) == "A"
    driver.publish(ledger, "B")
    assert driver.current_content(ledger, first.document_id) == "B"
    driver.submit(ledger)
    driver.take_in(ledger, "A")
    assert sum(driver.run_stages(ledger).values()) == 0
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED
    assert driver.current_content(ledger, first.document_id) == "A"


def test_a_submission_delivered_late_does_not_become_current(ledger: SqlLedger) -> None:
    driver.publish(ledger, "A")
    late, last = driver.submit(ledger), driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, "slow")
    assert claimed is not None
    assert claimed[1].id == late.id
    driver.take_in(ledger, "C")
    driver.run_stages(ledger)
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED
    ledger.submissions.accept(claimed[0], driver.draft_of(claimed[1], "B", 3))
    driver.run_stages(ledger)
    assert driver.pass_gate(ledger) == GateVerdict.ACCEPTED
    assert driver.current_content(ledger, last.document_id) == "C"
    ended = ledger.submissions.get(late.id)
    assert ended is not None
    assert (ended.state, ended.superseded_by) == (SubmissionState.SEARCHABLE, 3)


def test_the_same_bytes_again_are_searchable_at_once(ledger: SqlLedger) -> None:
    driver.publish(ledger, "A")
    again = driver.submit(ledger)
    driver.take_in(ledger, "A")
    ended = ledger.submissions.get(again.id)
    assert ended is not None
    assert ended.state == SubmissionState.SEARCHABLE
    assert ledger.views.idle()


def test_a_rejected_new_version_leaves_the_old_one_searchable(ledger: SqlLedger) -> None:
    first = driver.publish(ledger, "A")
    second = driver.submit(ledger)
    driver.take_in(ledger, "B")
    window = driver.claim(ledger, StageName.RENDER)
    broken = Failed(task_id=window.tasks[1].id, code="page_broken", message="bad", retryable=False, seconds=0)
    ledger.tasks.settle(window.token, [driver.done(window.tasks[0]), broken, driver.done(window.tasks[2])])
    driver.run_stages(ledger)
    assert driver.pass_gate(ledger) == GateVerdict.REJECTED
    ended = ledger.submissions.get(second.id)
    assert ended is not None
    assert (ended.state, ended.error_page, ended.error_stage) == (SubmissionState.REJECTED, 1, "render")
    assert driver.current_content(ledger, first.document_id) == "A"


# Profiles


def test_an_adopted_option_redoes_its_stage_and_what_follows_while_the_old_pages_stay_served(
    ledger: SqlLedger,
) -> None:
    submission = driver.publish(ledger, "A", ocr_pages=[0])
    build, version = ledger.registry.active_build(), submission.version_id
    assert build is not None
    assert version is not None
    before = ledger.views.manifest(version, build.id)
    ledger.registry.adopt(driver.options(ocr={"min_confidence": 0.9}))
    assert ledger.sweep() == 1
    assert ledger.views.manifest(version, build.id) == before
    counts = driver.run_stages(ledger, ocr_pages=[0])
    assert counts == {"render": 0, "text": 0, "ocr": 1, "encode": 1, "index": 1}
    assert ledger.views.manifest(version, build.id) == before
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED
    after = ledger.views.manifest(version, build.id)
    assert [page[1] != old[1] for page, old in zip(after, before, strict=True)] == [True, False, False]


def test_rows_of_a_profile_that_is_no_longer_in_force_are_not_begun(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    ledger.registry.adopt(driver.options(render={"dpi": 200}))
    ledger.sweep()
    assert sorted(task_states(ledger, StageName.RENDER)) == ["pending"] * 3 + ["superseded"] * 3
    ledger.registry.adopt(driver.options())
    ledger.sweep()
    assert driver.run_stages(ledger)["render"] == 3
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED


def test_adopting_the_options_in_force_makes_no_new_revision(ledger: SqlLedger) -> None:
    assert ledger.registry.adopt(driver.options()).revision == 1


def test_a_step_that_was_lost_is_found_again(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    driver.take_in(ledger)
    driver.finish(ledger, driver.claim(ledger, StageName.RENDER))
    lost = page_tasks.delete().where(page_tasks.c.stage == StageName.TEXT)
    ledger.database.write(lambda connection: connection.execute(lost))
    assert ledger.gates.claim(LEASE_S, WORKER) is None
    assert len(task_states(ledger, StageName.TEXT)) == 3


def test_ended_submissions_never_change_again(ledger: SqlLedger) -> None:
    driver.publish(ledger, "A")
    query = select(submissions.c.ended_at).order_by(submissions.c.revision)
    before = ledger.database.read(lambda c: list(c.execute(query).scalars()))
    driver.publish(ledger, "A")
    after = ledger.database.read(lambda c: list(c.execute(query).scalars()))
    assert after[:1] == before


def test_two_that_submit_the_first_revision_of_a_document_at_the_same_moment_get_one_each(url: str) -> None:
    ledger = driver.open_ledger(url)
    for turn in range(5):
        barrier = threading.Barrier(4)

        def register(_: int, uri: str = f"file:///{turn}.pdf", barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            return ledger.submissions.submit("acme", uri, DocumentMetadata()).revision

        with ThreadPoolExecutor(4) as threads:
            assert sorted(threads.map(register, range(4))) == [1, 2, 3, 4]
    ledger.close()


def test_two_that_open_an_empty_ledger_at_the_same_moment_agree_on_profile_and_build(url: str) -> None:
    first = SqlLedger(url, CODE_VERSIONS)
    first.migrate()
    barrier = threading.Barrier(3)

    def found(_: int) -> None:
        ledger = SqlLedger(url, CODE_VERSIONS)
        barrier.wait()
        ledger.registry.found(driver.options(), driver.contract())
        ledger.close()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(found, range(3)))
    profile = first.registry.profile()
    assert profile is not None
    assert (profile.revision, len(first.registry.builds())) == (1, 1)
    first.close()


def test_more_ids_than_one_statement_can_hold_are_asked_for_in_pieces(ledger: SqlLedger) -> None:
    submission = driver.publish(ledger)
    build = ledger.registry.active_build()
    assert build is not None
    assert submission.version_id is not None
    points = [point for _, point, _, _ in ledger.views.manifest(submission.version_id, build.id)]
    strangers = [str(number) for number in range(70_000)]
    assert set(ledger.views.served(build, Scope(org="acme"), strangers + points)) == set(points)
    assert ledger.views.progress([*strangers, submission.version_id])["index", "done"] == 3


def test_a_very_long_printed_label_is_cut(ledger: SqlLedger) -> None:
    driver.submit(ledger)
    claimed = ledger.submissions.claim(LEASE_S, WORKER)
    assert claimed is not None
    draft = dataclasses.replace(driver.draft_of(claimed[1], "A", 1), page_labels=["頁" * 1000])
    ledger.submissions.accept(claimed[0], draft)
    assert driver.claim(ledger, StageName.RENDER).tasks[0].page_label == "頁" * 255


def test_a_version_is_proved_some_pages_at_a_time(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "PAGES_AT_ONCE", 2)
    for count in (1, 2, 3, 5):
        submission = driver.submit(ledger, f"file:///{count}.pdf")
        driver.take_in(ledger, "A", pages=count)
        driver.run_stages(ledger)
        work = ledger.gates.claim(LEASE_S, WORKER)
        assert work is not None
        assert work.document_id == submission.document_id
        assert [page.page_index for page in work.pages] == list(range(count))
        assert ledger.gates.settle(work, driver.report_on(work)) == GateVerdict.PROMOTED


# Waiting


def put_off(ledger: SqlLedger) -> None:
    window = driver.claim(ledger, StageName.RENDER)
    away = [Deferred(task_id=task.id, code="store_unavailable", message="away", delay_s=5) for task in window.tasks]
    ledger.tasks.settle(window.token, away)


def test_what_waits_is_told_with_since_when_and_stalls_after_a_while(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    version = driver.take_in(ledger)
    for _ in range(3):
        put_off(ledger)
        clock.pass_seconds(200)
    (waiting,) = ledger.views.status("acme").waiting
    assert (waiting.stage, waiting.code, waiting.pages) == ("render", "store_unavailable", 3)
    assert (waiting.seconds, waiting.stalled) == (600, True)
    assert ledger.views.waiting(version) == [waiting]
    assert list(ledger.views.status("other").waiting) == []
    driver.finish(ledger, driver.claim(ledger, StageName.RENDER))
    assert list(ledger.views.status(None).waiting) == ledger.views.waiting(version) == []
    assert attempts(ledger, StageName.RENDER) == [0, 0, 0]


def test_a_source_that_waits_is_told_with_since_when(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)
    for _ in range(2):
        claimed = ledger.submissions.claim(LEASE_S, WORKER)
        assert claimed is not None
        ledger.submissions.defer(claimed[0], "store_unavailable", "away", 5)
        clock.pass_seconds(100)
    (waiting,) = ledger.views.status(None).waiting
    assert (waiting.stage, waiting.seconds, waiting.stalled) == ("intake", 200, False)
    driver.take_in(ledger)
    assert list(ledger.views.status(None).waiting) == []
