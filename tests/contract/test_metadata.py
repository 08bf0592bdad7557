"""What the business knows of a document, in the ledger: who may see it, and which version was in force when."""

from __future__ import annotations

import datetime
from typing import Any

from pipeline.domain import GateVerdict, StageName, Submission, SubmissionState
from pipeline.metadata import DocumentMetadata, Scope
from pipeline.stores.sql import SqlLedger
from tests import ledger_driver as driver


def day(text: str) -> datetime.date:
    return datetime.date.fromisoformat(text)


def publish(ledger: SqlLedger, content: str, **metadata: Any) -> Submission:
    submission = driver.submit(ledger, metadata=DocumentMetadata(**metadata))
    driver.take_in(ledger, content)
    driver.run_stages(ledger)
    while ledger.gates.pending():
        driver.pass_gate(ledger)
    ended = ledger.submissions.get(submission.id)
    assert ended is not None
    assert ended.state == SubmissionState.SEARCHABLE
    return ended


def points_of(ledger: SqlLedger, submission: Submission) -> list[str]:
    build = ledger.registry.active_build()
    assert build is not None and submission.version_id
    return [point for _, point, _, _ in ledger.views.manifest(submission.version_id, build.id)]


def answering(ledger: SqlLedger, *candidates: str, **scope: Any) -> set[str]:
    """The versions that a search of this scope answers from, if the index proposes all of these points."""
    build = ledger.registry.active_build()
    assert build is not None
    served = ledger.views.served(build, Scope(org="acme", **scope), candidates)
    return {page.version_id for page in served.values()}


def test_metadata_are_kept_on_the_submission_and_on_the_version(ledger: SqlLedger) -> None:
    given = {"type": "standard", "effective": day("2020-05-01"), "labels": ("b", "a"), "attributes": {"no": "GB 1"}}
    submission = publish(ledger, "A", title="Presses", **given)
    view = ledger.views.version(submission.id, None)
    assert view is not None
    assert view.metadata == submission.metadata == DocumentMetadata(title="Presses", **given)
    assert view.title == "Presses"


def test_the_index_is_told_what_the_payload_has_to_say(ledger: SqlLedger) -> None:
    driver.submit(ledger, metadata=DocumentMetadata(labels=("a",), type="manual"))
    driver.take_in(ledger)
    for stage in (StageName.RENDER, StageName.TEXT, StageName.ENCODE):
        driver.finish(ledger, driver.claim(ledger, stage))
    abouts = [task.about for task in driver.claim(ledger, StageName.INDEX).tasks]
    assert abouts == [DocumentMetadata(labels=("a",), type="manual").about("A manual")] * 3


def test_other_labels_on_the_same_content_make_new_points_and_nothing_else(ledger: SqlLedger) -> None:
    first = publish(ledger, "A", labels=("a",))
    old = points_of(ledger, first)
    driver.submit(ledger, metadata=DocumentMetadata(labels=("b",)))
    driver.take_in(ledger, "A")
    assert answering(ledger, *old, labels=("a",)) == {first.version_id}, "the old labels hold until the gate"
    counts = driver.run_stages(ledger)
    assert {stage: count for stage, count in counts.items() if count} == {StageName.INDEX: 3}
    assert driver.pass_gate(ledger) == GateVerdict.PROMOTED
    new = points_of(ledger, first)
    assert not set(new) & set(old)
    assert answering(ledger, *old, *new, labels=("a",)) == set()
    assert answering(ledger, *old, *new, labels=("b",)) == {first.version_id}


def test_labels_that_come_back_are_proved_again_with_the_points_of_then(ledger: SqlLedger) -> None:
    first = publish(ledger, "A", labels=("a",))
    old = points_of(ledger, first)
    publish(ledger, "A", labels=("b",))
    assert points_of(ledger, first) != old
    publish(ledger, "A", labels=("a",))
    assert points_of(ledger, first) == old
    assert answering(ledger, *old, labels=("a",)) == {first.version_id}


def test_a_submission_that_was_overtaken_does_not_describe_the_content(ledger: SqlLedger) -> None:
    driver.submit(ledger, metadata=DocumentMetadata(labels=("old",)))
    driver.submit(ledger, metadata=DocumentMetadata(labels=("new",)))
    claims = [ledger.submissions.claim(driver.LEASE_S, driver.WORKER) for _ in range(2)]
    for claimed in reversed(claims):
        assert claimed is not None
        ledger.submissions.accept(claimed[0], driver.draft_of(claimed[1], "A", 3))
    view = ledger.views.version(claims[0][1].id, None)  # type: ignore[index]
    assert view is not None
    assert view.metadata.labels == ("new",)


def test_a_gate_that_began_before_the_labels_changed_writes_nothing(ledger: SqlLedger) -> None:
    driver.submit(ledger, metadata=DocumentMetadata(labels=("a",)))
    driver.take_in(ledger, "A")
    driver.run_stages(ledger)
    work = ledger.gates.claim(driver.LEASE_S, driver.WORKER)
    assert work is not None
    driver.submit(ledger, metadata=DocumentMetadata(labels=("b",)))
    driver.take_in(ledger, "A")
    assert ledger.gates.settle(work, driver.report_on(work)) == GateVerdict.STALE


def test_a_question_sees_documents_of_its_type_and_with_one_of_its_labels(ledger: SqlLedger) -> None:
    submission = publish(ledger, "A", type="manual", labels=("a", "b"))
    points = points_of(ledger, submission)
    seen = {submission.version_id}
    assert answering(ledger, *points) == seen
    assert answering(ledger, *points, labels=("b", "c"), type="manual") == seen
    assert answering(ledger, *points, labels=("c",)) == set()
    assert answering(ledger, *points, type="policy") == set()


def test_a_day_is_answered_from_the_version_that_was_in_force(ledger: SqlLedger) -> None:
    a = publish(ledger, "A", effective=day("2020-01-01"))
    b = publish(ledger, "B", effective=day("2022-01-01"), expired=day("2024-01-01"))
    c = publish(ledger, "C", effective=day("2023-01-01"), expired=day("2023-06-01"))
    points = [point for one in (a, b, c) for point in points_of(ledger, one)]

    def on(text: str) -> set[str]:
        return answering(ledger, *points, as_of=day(text))

    assert answering(ledger, *points) == {c.version_id}, "without a day, the current one"
    assert on("2019-12-31") == set()
    assert on("2020-01-01") == on("2021-12-31") == {a.version_id}
    assert on("2022-01-01") == on("2022-12-31") == {b.version_id}
    assert on("2023-01-01") == on("2023-05-31") == {c.version_id}
    assert on("2023-06-01") == on("2023-12-31") == {b.version_id}, "its last day is the one before `expired`"
    assert on("2024-01-01") == set(), "the first one ended where the second began"


def test_of_two_versions_that_came_into_force_on_one_day_the_later_revision_answers(ledger: SqlLedger) -> None:
    first = publish(ledger, "A", effective=day("2020-01-01"))
    second = publish(ledger, "B", effective=day("2020-01-01"))
    points = [*points_of(ledger, first), *points_of(ledger, second)]
    assert answering(ledger, *points, as_of=day("2020-06-01")) == {second.version_id}
    publish(ledger, "A", effective=day("2020-01-01"))
    assert answering(ledger, *points, as_of=day("2020-06-01")) == {first.version_id}
