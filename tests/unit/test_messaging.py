"""Between ledger and broker: nothing is lost, nothing is done twice, and no thread dies unheard."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import messaging
from pipeline.backoff import pause_s
from pipeline.domain import EventKind, Message
from pipeline.errors import BrokerUnavailable, LedgerUnavailable, MalformedMessage
from pipeline.identity import notification_id
from pipeline.messages import CompletionMessage
from pipeline.messaging import Messenger, receive, relay
from pipeline.metadata import DocumentMetadata
from pipeline.protocols import Broker
from pipeline.stores import memory_broker
from pipeline.stores.memory_broker import MemoryBroker
from pipeline.stores.rabbitmq_options import NotificationRule
from pipeline.stores.sql import SqlLedger
from tests import ledger_driver as driver
from tests.ledger_driver import Clock

ID = "0e5bd6b0-6d3c-4f3e-8f0e-0f4a3f9c6d11"
RULES = (NotificationRule(bucket="inbox", org="acme"),)
METADATA = DocumentMetadata(type="manual", labels=("kb",))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[SqlLedger]:
    ledger = driver.open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}", clock=clock)
    yield ledger
    ledger.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "pause_s", lambda failures: 0.01)
    monkeypatch.setattr(messaging, "LOOK_S", 0.02)
    monkeypatch.setattr(messaging, "QUIET_S", 0.1)


def a_message(**changes: Any) -> Message:
    content = {"schema": "pagegate.submission/1", "submission_id": ID, "org": "acme", "source": "s3://inbox/a.pdf"}
    return Message(topic="submission.registered", id="", body=json.dumps(content | changes).encode())


def a_notification(*keys: str) -> Message:
    records = [
        {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "inbox"}, "object": {"key": key, "eTag": "e"}}}
        for key in keys
    ]
    return Message(topic="s3.put", id="", body=json.dumps({"Records": records}).encode())


def registered(ledger: SqlLedger) -> list[str]:
    """Ids of the submissions that wait for intake."""
    ids = []
    while claimed := ledger.submissions.claim(60, "worker"):
        ids.append(claimed[1].id)
    return ids


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


# Receiving


def test_a_submission_that_the_ledger_does_not_know_is_registered_and_not_announced_again(ledger: SqlLedger) -> None:
    receive(ledger, a_message(metadata=METADATA.stored()), RULES)

    found = ledger.views.submissions([ID])[0]
    assert (found.org, found.source_uri, found.metadata) == ("acme", "s3://inbox/a.pdf", METADATA)
    assert ledger.outbox.waiting() == 0


def test_a_message_that_comes_twice_changes_nothing(ledger: SqlLedger) -> None:
    receive(ledger, a_message(), RULES)
    receive(ledger, a_message(metadata={"title": "Another"}), RULES)

    assert ledger.views.submissions([ID])[0].metadata == DocumentMetadata()
    assert registered(ledger) == [ID]


def test_each_object_of_a_notification_is_registered_once_however_often_it_is_told(ledger: SqlLedger) -> None:
    receive(ledger, a_notification("a.pdf", "b.pdf"), RULES)
    receive(ledger, a_notification("b.pdf"), RULES)

    assert set(registered(ledger)) == {notification_id("inbox", key, "", "", "e") for key in ("a.pdf", "b.pdf")}


@pytest.mark.parametrize("change", [{"org": "globex"}, {"source": "s3://inbox/b.pdf"}, {"source": "file:///a.pdf"}])
def test_an_id_that_is_another_submissions_is_a_conflict(ledger: SqlLedger, change: dict[str, str]) -> None:
    receive(ledger, a_message(), RULES)

    with pytest.raises(MalformedMessage) as caught:
        receive(ledger, a_message(**change), RULES)

    assert caught.value.context["reason"] == "conflict"
    assert registered(ledger) == [ID]


def test_a_message_cannot_have_a_local_file_read(ledger: SqlLedger) -> None:
    with pytest.raises(MalformedMessage) as caught:
        receive(ledger, a_message(source="file:///etc/passwd"), RULES)

    assert caught.value.context["reason"] == "source_not_allowed"
    assert registered(ledger) == []


def test_our_own_announcement_of_a_local_file_finds_it_registered(ledger: SqlLedger) -> None:
    driver.submit(ledger, "file:///data/a%20b.pdf")
    broker = MemoryBroker()
    relay(ledger, broker)
    announcement, _ = broker.waiting[0]

    receive(ledger, announcement, RULES)

    assert len(registered(ledger)) == 1


def test_a_ledger_that_lost_a_submission_is_told_anew_by_its_announcement(ledger: SqlLedger, tmp_path: Path) -> None:
    lost = driver.submit(ledger, "s3://inbox/%E6%89%8B%E5%86%8C.pdf", "acme", METADATA)
    broker = MemoryBroker()
    relay(ledger, broker)
    restored = driver.open_ledger(f"sqlite:///{tmp_path / 'restored.sqlite'}")

    receive(restored, broker.waiting[0][0], RULES)

    found = restored.views.submissions([lost.id])[0]
    assert (found.document_id, found.source_uri, found.metadata) == (lost.document_id, lost.source_uri, METADATA)
    restored.close()


# Relaying


def test_what_the_ledger_tells_is_published_once(ledger: SqlLedger) -> None:
    submission = driver.submit(ledger)
    claimed = ledger.submissions.claim(60, "worker")
    assert claimed is not None
    ledger.submissions.fail(claimed[0], "not_a_pdf", "it is a picture")
    broker = MemoryBroker()

    assert relay(ledger, broker) == 2
    assert relay(ledger, broker) == 0

    assert ledger.outbox.waiting() == 0
    assert len(broker.waiting) == 1
    completion = CompletionMessage.model_validate_json(broker.events[0].body)
    assert (completion.event, str(completion.submission_id)) == (EventKind.FAILED, submission.id)
    assert completion.error is not None
    assert (completion.error.code, completion.error.stage) == ("not_a_pdf", "intake")


def test_a_relay_takes_no_more_than_its_limit(ledger: SqlLedger) -> None:
    for number in range(3):
        driver.submit(ledger, f"s3://inbox/{number}.pdf")

    assert [relay(ledger, MemoryBroker(), limit=2) for _ in range(3)] == [2, 1, 0]


class Failing(MemoryBroker):
    def publish(self, messages: Sequence[Message]) -> None:
        if messages:
            raise BrokerUnavailable("RabbitMQ at host:5672/ failed")


def test_what_the_broker_did_not_confirm_waits_visibly_and_is_sent_again(ledger: SqlLedger, clock: Clock) -> None:
    driver.submit(ledger)

    with pytest.raises(BrokerUnavailable):
        relay(ledger, Failing())

    assert ledger.outbox.waiting() == 1
    assert relay(ledger, MemoryBroker()) == 0, "not at once"
    clock.pass_seconds(messaging.DEFER_S * 1.3)
    broker = MemoryBroker()
    assert relay(ledger, broker) == 1
    assert len(broker.waiting) == 1


def test_a_relay_that_died_before_it_noted_the_confirmation_is_followed_by_the_same_message(
    ledger: SqlLedger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(ids: Sequence[int]) -> None:
        raise LedgerUnavailable("the ledger does not answer")

    driver.submit(ledger)
    broker = MemoryBroker()
    with monkeypatch.context() as patch, pytest.raises(LedgerUnavailable):
        patch.setattr(ledger.outbox, "published", die)
        relay(ledger, broker)
    clock.pass_seconds(messaging.HOLD_S + 1)

    relay(ledger, broker)

    assert broker.waiting[0] == broker.waiting[1]


# The messenger


def test_pauses_double_up_to_half_a_minute_and_differ_by_chance() -> None:
    for failures, longest in [(1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (10_000, 30.0)]:
        pauses = [pause_s(failures) for _ in range(50)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def test_messages_come_in_and_go_out(ledger: SqlLedger) -> None:
    broker = MemoryBroker()
    MemoryBroker(same=broker).publish([a_message()])
    with Messenger(ledger, lambda: MemoryBroker(same=broker), RULES) as messenger:
        wait_until(lambda: bool(ledger.views.submissions([ID])))
        claimed = ledger.submissions.claim(60, "worker")
        assert claimed is not None
        ledger.submissions.fail(claimed[0], "not_a_pdf", "it is a picture")
        wait_until(lambda: bool(broker.events))
        wait_until(messenger.idle)

    assert broker.dead == []


def test_without_consuming_it_only_publishes(ledger: SqlLedger) -> None:
    broker = MemoryBroker()
    driver.submit(ledger)
    with Messenger(ledger, lambda: MemoryBroker(same=broker), consume=False) as messenger:
        wait_until(messenger.idle)

    assert len(broker.waiting) == 1


def test_what_was_written_before_it_ends_is_published(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "LOOK_S", 60.0)
    broker = MemoryBroker()
    with Messenger(ledger, lambda: MemoryBroker(same=broker), consume=False):
        time.sleep(0.1)
        for number in range(250):
            driver.submit(ledger, f"s3://inbox/{number}.pdf")

    assert len(broker.waiting) == 250


def test_it_is_idle_only_after_a_second_without_messages(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging, "QUIET_S", 0.3)
    broker = MemoryBroker()
    with Messenger(ledger, lambda: MemoryBroker(same=broker), RULES) as messenger:
        assert not messenger.idle()
        wait_until(messenger.idle)
        MemoryBroker(same=broker).publish([a_message()])
        wait_until(lambda: bool(ledger.views.submissions([ID])))
        assert not messenger.idle()
        wait_until(messenger.idle)


def test_it_is_not_idle_while_a_message_waits_for_the_ledger(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = threading.Event()

    def receive_unless_down(*arguments: Any) -> None:
        if down.is_set():
            raise LedgerUnavailable("the ledger does not answer")
        receive(*arguments)

    monkeypatch.setattr(messaging, "receive", receive_unless_down)
    monkeypatch.setattr(memory_broker, "PAUSE_S", 0.4)
    broker = MemoryBroker()
    with Messenger(ledger, lambda: MemoryBroker(same=broker), RULES) as messenger:
        wait_until(messenger.idle)
        down.set()
        MemoryBroker(same=broker).publish([a_message()])
        wait_until(lambda: not broker.waiting)
        time.sleep(0.3)
        assert not messenger.idle()
        down.clear()
        wait_until(messenger.idle)

    assert ledger.views.submissions([ID])


def test_it_is_not_idle_while_the_broker_cannot_be_reached(ledger: SqlLedger) -> None:
    def unreachable() -> Broker:
        raise BrokerUnavailable("RabbitMQ at host:5672/ failed")

    with Messenger(ledger, unreachable, RULES) as messenger:
        time.sleep(0.3)
        assert not messenger.idle()


class Flaky(MemoryBroker):
    """Its first connections fail with `errors`, one after the other."""

    def __init__(self, same: MemoryBroker, errors: list[Exception]) -> None:
        super().__init__(same)
        self._errors = errors

    def consume(self, handle: Callable[[Message], None], stopping: Callable[[], bool]) -> None:
        if self._errors:
            raise self._errors.pop(0)
        super().consume(handle, stopping)


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_is_over(
    ledger: SqlLedger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pagegate")
    broker = MemoryBroker()
    errors: list[Exception] = [BrokerUnavailable(f"RabbitMQ failed for the time {number}") for number in range(1, 6)]
    MemoryBroker(same=broker).publish([a_message()])
    with Messenger(ledger, lambda: Flaky(broker, errors), RULES):
        wait_until(lambda: bool(ledger.views.submissions([ID])))
        wait_until(lambda: "at work again" in caplog.text)

    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [
        ("WARNING", "the consumer waits: RabbitMQ failed for the time 1"),
        ("INFO", "the consumer is at work again"),
    ]


def test_a_mistake_of_ours_is_logged_with_its_place_and_does_not_end_the_thread(
    ledger: SqlLedger, caplog: pytest.LogCaptureFixture
) -> None:
    broker = MemoryBroker()
    MemoryBroker(same=broker).publish([a_message()])
    errors: list[Exception] = [ZeroDivisionError("a mistake")]
    with Messenger(ledger, lambda: Flaky(broker, errors), RULES):
        wait_until(lambda: bool(ledger.views.submissions([ID])))

    assert "Traceback" in caplog.text
    assert "ZeroDivisionError: a mistake" in caplog.text


def test_the_relay_outlives_broker_ledger_and_mistakes(
    ledger: SqlLedger, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pagegate")
    failures: list[Exception] = [
        ZeroDivisionError("a mistake"),
        LedgerUnavailable("the ledger does not answer"),
        BrokerUnavailable("RabbitMQ failed"),
    ]

    def relay_or_fail(*arguments: Any) -> int:
        if failures:
            raise failures.pop(0)
        return relay(*arguments)

    monkeypatch.setattr(messaging, "relay", relay_or_fail)
    driver.submit(ledger)
    broker = MemoryBroker()
    with Messenger(ledger, lambda: MemoryBroker(same=broker), consume=False):
        wait_until(lambda: bool(broker.waiting))
        wait_until(lambda: "the relay is at work again" in caplog.text)

    assert caplog.text.count("the relay waits") == 1
    assert caplog.text.count("ZeroDivisionError: a mistake") == 1


def test_a_broker_that_hangs_does_not_keep_the_messenger_from_ending(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messaging, "JOIN_S", 0.2)
    hanging = threading.Event()

    class Hanging(MemoryBroker):
        def consume(self, handle: Callable[[Message], None], stopping: Callable[[], bool]) -> None:
            hanging.wait(20)

    begun = time.monotonic()
    with Messenger(ledger, Hanging, RULES):
        time.sleep(0.05)

    assert time.monotonic() - begun < 2
    assert "pagegate-consumer has not ended" in caplog.text
    hanging.set()
