"""The contract of `Broker`, in memory and on RabbitMQ."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Protocol

import pytest

from pipeline.domain import Message
from pipeline.errors import BrokerUnavailable, LedgerUnavailable, MalformedMessage
from pipeline.protocols import Broker
from pipeline.stores import rabbitmq
from pipeline.stores.memory_broker import MemoryBroker
from pipeline.stores.rabbitmq import RabbitmqBroker
from tests.rabbitmq_bench import DELIVERY_LIMIT, PREFETCH, Consumer, RabbitmqBench, wait_until


class Bench(Protocol):
    """One broker, seen by its operator."""

    def connect(self) -> Broker: ...

    def dead(self, count: int) -> list[tuple[bytes, str, str]]:
        """Body, reason and detail of the dead letters, of which there have to be so many."""

    def events(self, count: int) -> list[Message]: ...

    def waiting(self) -> int:
        """Submissions' messages ready to be handed over."""


class MemoryBench:
    def __init__(self) -> None:
        self._broker = MemoryBroker(delivery_limit=DELIVERY_LIMIT)

    def connect(self) -> Broker:
        return MemoryBroker(same=self._broker)

    def dead(self, count: int) -> list[tuple[bytes, str, str]]:
        assert len(self._broker.dead) == count
        return [(letter.message.body, letter.reason, letter.detail) for letter in self._broker.dead]

    def events(self, count: int) -> list[Message]:
        assert len(self._broker.events) == count
        return self._broker.events

    def waiting(self) -> int:
        return len(self._broker.waiting)


@pytest.fixture
def rabbit(amqp_url: str) -> Iterator[RabbitmqBench]:
    bench = RabbitmqBench(amqp_url)
    yield bench
    bench.close()


@pytest.fixture(params=["memory", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "memory":
        return MemoryBench()
    rabbit: RabbitmqBench = request.getfixturevalue("rabbit")
    return rabbit


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "pause_s", lambda failures: 0.01)
    monkeypatch.setattr(rabbitmq, "CRASH_PAUSE_S", 0.0)


def a_message(number: int = 1, topic: str = "submission.registered") -> Message:
    return Message(topic=topic, id=f"{topic}:{number}", body=b'{"number": %d}' % number)


def drained(bench: Bench, count: int) -> list[Message]:
    """All that is left to be handed over, which has to be so many messages."""
    with Consumer(bench.connect()) as consumer:
        consumer.wait(count)
        time.sleep(0.4)
    assert len(consumer.taken) == count
    return consumer.taken


# Bringing in


def test_what_is_published_is_handed_over_as_it_was_and_in_order(bench: Bench) -> None:
    messages = [a_message(number) for number in range(20)]
    bench.connect().publish(messages)

    with Consumer(bench.connect()) as consumer:
        consumer.wait(20)

    assert consumer.taken == messages
    assert consumer.error is None


def test_a_message_whose_handler_has_returned_does_not_come_again(bench: Bench) -> None:
    bench.connect().publish([a_message(1), a_message(2)])
    with Consumer(bench.connect()) as consumer:
        consumer.wait(2)

    drained(bench, 0)


def test_messages_are_handled_one_at_a_time(bench: Bench) -> None:
    at_work = threading.Lock()
    overlaps: list[Message] = []

    def handle(message: Message) -> None:
        if not at_work.acquire(blocking=False):
            overlaps.append(message)
            return
        time.sleep(0.01)
        at_work.release()

    bench.connect().publish([a_message(number) for number in range(10)])
    with Consumer(bench.connect(), handle) as consumer:
        consumer.wait(10)

    assert overlaps == []


def test_a_malformed_message_goes_to_the_dead_letters_with_its_reason(bench: Bench) -> None:
    def handle(message: Message) -> None:
        if message == a_message(1):
            raise MalformedMessage("org: missing", reason="invalid")

    bench.connect().publish([a_message(1), a_message(2)])
    with Consumer(bench.connect(), handle) as consumer:
        consumer.wait(2)

    assert bench.dead(1) == [(a_message(1).body, "invalid", "org: missing")]
    drained(bench, 0)


def test_while_something_we_depend_on_fails_the_same_message_is_handed_over_again_and_never_counted(
    bench: Bench,
) -> None:
    tries: list[Message] = []

    def handle(message: Message) -> None:
        tries.append(message)
        if len(tries) <= DELIVERY_LIMIT + 3:
            raise LedgerUnavailable("the ledger does not answer")

    bench.connect().publish([a_message(1), a_message(2)])
    with Consumer(bench.connect(), handle) as consumer:
        consumer.wait(DELIVERY_LIMIT + 5)

    assert tries == [a_message(1)] * (DELIVERY_LIMIT + 4) + [a_message(2)]
    assert bench.dead(0) == []
    drained(bench, 0)


def test_a_message_that_crashes_its_handler_goes_to_the_dead_letters_after_some_tries(bench: Bench) -> None:
    def handle(message: Message) -> None:
        if message == a_message(1):
            raise ZeroDivisionError

    bench.connect().publish([a_message(1), a_message(2)])
    with Consumer(bench.connect(), handle) as consumer:
        consumer.wait(DELIVERY_LIMIT + 2)

    assert consumer.bodies().count(a_message(1).body) == DELIVERY_LIMIT + 1
    assert bench.dead(1) == [(a_message(1).body, "delivery_limit", "")]
    drained(bench, 0)


def test_what_was_not_handled_goes_back_when_the_consumer_stops(bench: Bench) -> None:
    messages = [a_message(number) for number in range(6)]
    bench.connect().publish(messages)
    consumer = Consumer(bench.connect(), lambda message: consumer.stop())
    with consumer:
        consumer.join()

    assert consumer.error is None
    assert consumer.taken == messages[:1]
    assert sorted(message.id for message in drained(bench, 5)) == sorted(message.id for message in messages[1:])


def test_a_message_that_waits_for_something_goes_back_when_the_consumer_stops(bench: Bench) -> None:
    def handle(message: Message) -> None:
        consumer.stop()
        raise LedgerUnavailable("the ledger does not answer")

    bench.connect().publish([a_message()])
    with (consumer := Consumer(bench.connect(), handle)):
        consumer.join()

    assert consumer.error is None
    assert drained(bench, 1) == [a_message()]


def test_a_consumer_without_messages_stops_soon(bench: Bench) -> None:
    with Consumer(bench.connect()) as consumer:
        time.sleep(0.3)
        begun = time.monotonic()
    assert time.monotonic() - begun < 1.5
    assert consumer.error is None


def test_several_consumers_share_the_messages(bench: Bench) -> None:
    messages = [a_message(number) for number in range(30)]
    with (
        Consumer(bench.connect(), lambda message: time.sleep(0.02)) as one,
        Consumer(bench.connect(), lambda message: time.sleep(0.02)) as two,
    ):
        bench.connect().publish(messages)
        wait_until(lambda: len(one.taken) + len(two.taken) == 30)

    assert sorted(message.id for message in one.taken + two.taken) == sorted(message.id for message in messages)
    assert one.taken
    assert two.taken


# Carrying out


@pytest.mark.parametrize("topic", ["submission.searchable", "submission.rejected", "submission.failed"])
def test_completions_go_to_those_who_listen_and_to_no_consumer(bench: Bench, topic: str) -> None:
    bench.connect().publish([a_message(1, topic), a_message(2)])

    assert bench.events(1) == [a_message(1, topic)]
    assert drained(bench, 1) == [a_message(2)]


def test_publishing_nothing_does_nothing(bench: Bench) -> None:
    bench.connect().publish([])

    drained(bench, 0)


def test_a_closed_broker_opens_again_when_it_is_used(bench: Bench) -> None:
    broker = bench.connect()
    broker.close()
    broker.publish([a_message(1)])
    broker.close()
    broker.close()
    broker.publish([a_message(2)])

    assert drained(bench, 2) == [a_message(1), a_message(2)]


# RabbitMQ itself


@pytest.mark.rabbitmq
def test_a_message_is_persistent_and_says_what_it_is(rabbit: RabbitmqBench) -> None:
    rabbit.connect().publish([a_message()])

    _, properties, body = rabbit.get("submissions")

    assert body == a_message().body
    assert properties.delivery_mode == 2
    assert (properties.content_type, properties.message_id) == ("application/json", a_message().id)


@pytest.mark.rabbitmq
def test_nobody_has_to_listen_to_completions(rabbit: RabbitmqBench) -> None:
    rabbit.channel.queue_delete(rabbit.name("listener"))

    rabbit.connect().publish([a_message(1, "submission.failed")])


@pytest.mark.rabbitmq
def test_what_a_bucket_sends_is_handed_over_with_its_routing_key(rabbit: RabbitmqBench) -> None:
    rabbit.send("s3.minio.put", b"{}")

    assert drained(rabbit, 1) == [Message(topic="s3.minio.put", id="", body=b"{}")]


@pytest.mark.rabbitmq
def test_a_dead_letter_says_where_it_came_from(rabbit: RabbitmqBench) -> None:
    def handle(message: Message) -> None:
        raise MalformedMessage("\ud800" + "x" * 1_000, reason="not_json")

    rabbit.send("s3.minio.put", b"\xff")
    with Consumer(rabbit.connect(), handle) as consumer:
        consumer.wait(1)

    _, properties, body = rabbit.get("dead")
    assert body == b"\xff"
    assert properties.delivery_mode == 2
    assert properties.headers["x-original-routing-key"] == "s3.minio.put"
    assert properties.headers["x-detail"].startswith("\\ud800xxx")
    assert len(properties.headers["x-detail"]) < 600


@pytest.mark.rabbitmq
def test_without_a_place_for_dead_letters_a_malformed_message_is_kept(rabbit: RabbitmqBench) -> None:
    def handle(message: Message) -> None:
        rabbit.channel.queue_delete(rabbit.name("dead"))
        raise MalformedMessage("org: missing", reason="invalid")

    rabbit.connect().publish([a_message()])
    with Consumer(rabbit.connect(), handle) as consumer:
        consumer.join()

    assert type(consumer.error) is BrokerUnavailable
    assert drained(rabbit, 1) == [a_message()]


@pytest.mark.rabbitmq
def test_a_consumer_holds_no_more_than_its_prefetch(rabbit: RabbitmqBench) -> None:
    go_on = threading.Event()
    rabbit.connect().publish([a_message(number) for number in range(10)])
    with Consumer(rabbit.connect(), lambda message: bool(go_on.wait(20)) or None) as consumer:
        consumer.wait(1)
        wait_until(lambda: rabbit.waiting() == 10 - PREFETCH)
        time.sleep(0.3)
        assert rabbit.waiting() == 10 - PREFETCH
        go_on.set()
        consumer.wait(10)


@pytest.mark.rabbitmq
def test_an_announcement_that_reaches_no_queue_is_not_confirmed_and_the_next_one_finds_it_made_anew(
    rabbit: RabbitmqBench,
) -> None:
    broker = rabbit.connect()
    broker.publish([a_message(1)])
    rabbit.channel.queue_delete(rabbit.name("submissions"))

    with pytest.raises(BrokerUnavailable, match=r"did not keep 1 of 3 messages.*submission\.registered"):
        broker.publish([a_message(1, "submission.failed"), a_message(2), a_message(2, "submission.failed")])

    broker.publish([a_message(3)])
    assert drained(rabbit, 1) == [a_message(3)]


@pytest.mark.rabbitmq
def test_an_exchange_that_was_deleted_is_made_anew_by_the_next_call(rabbit: RabbitmqBench) -> None:
    broker = rabbit.connect()
    broker.publish([a_message(1, "submission.failed")])
    rabbit.channel.exchange_delete(rabbit.name("events"))

    with pytest.raises(BrokerUnavailable, match=rabbit.options.host):
        broker.publish([a_message(2, "submission.failed")])

    broker.publish([a_message(3, "submission.failed")])


@pytest.mark.rabbitmq
def test_a_queue_deleted_under_its_consumer_is_unavailability_and_made_anew(rabbit: RabbitmqBench) -> None:
    broker = rabbit.connect()
    broker.publish([a_message(1)])
    with Consumer(broker) as consumer:
        consumer.wait(1)
        rabbit.channel.queue_delete(rabbit.name("submissions"))
        consumer.join()
    assert type(consumer.error) is BrokerUnavailable

    with Consumer(broker) as consumer:
        wait_until(lambda: bool(_sent(rabbit, a_message(2))))
        consumer.wait(1)
    assert consumer.error is None


def _sent(rabbit: RabbitmqBench, message: Message) -> bool:
    rabbit.connect().publish([message])
    return True


@pytest.mark.rabbitmq
def test_other_options_than_those_declared_are_named(rabbit: RabbitmqBench) -> None:
    other = RabbitmqBroker(rabbit.options.model_copy(update={"delivery_limit": DELIVERY_LIMIT + 1}))

    with pytest.raises(BrokerUnavailable, match=r"406.*delivery_limit"):
        other.publish([a_message()])


@pytest.mark.rabbitmq
def test_declaring_everything_again_changes_nothing(rabbit: RabbitmqBench) -> None:
    rabbit.connect().publish([a_message(1)])
    rabbit.connect().publish([a_message(2)])

    assert drained(rabbit, 2) == [a_message(1), a_message(2)]


@pytest.mark.rabbitmq
def test_a_quorum_queue_counts_what_a_stopping_consumer_gives_back(rabbit: RabbitmqBench) -> None:
    """Why the delivery limit has to outlast some restarts. When this fails, it need no longer."""

    def handle(message: Message) -> None:
        consumer.stop()
        raise LedgerUnavailable("the ledger does not answer")

    rabbit.connect().publish([a_message()])
    for _ in range(DELIVERY_LIMIT + 1):
        with Consumer(rabbit.connect(), handle) as consumer:
            consumer.join()

    assert rabbit.dead(1) == [(a_message().body, "delivery_limit", "")]
