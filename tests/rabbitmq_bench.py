"""A RabbitMQ as its operator sees it, and a consumer in a thread: for tests of the broker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pika

from pipeline.domain import Message
from pipeline.protocols import Broker
from pipeline.stores.rabbitmq import RabbitmqBroker
from pipeline.stores.rabbitmq_connection import connect
from pipeline.stores.rabbitmq_options import RabbitmqOptions

DELIVERY_LIMIT = 2
PREFETCH = 4


class RabbitmqBench:
    """With names of its own, which `close` deletes."""

    def __init__(self, url: str) -> None:
        self.options = RabbitmqOptions.model_validate(
            {
                "url": url,
                "prefix": f"test-{uuid.uuid4().hex[:12]}",
                "delivery_limit": DELIVERY_LIMIT,
                "prefetch": PREFETCH,
            }
        )
        self._opened: list[RabbitmqBroker] = []
        self._operator = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self._operator.channel()
        self._listen()

    def connect(self) -> RabbitmqBroker:
        self._opened.append(RabbitmqBroker(self.options))
        return self._opened[-1]

    def dead(self, count: int) -> list[tuple[bytes, str, str]]:
        return [
            (body, *_reason(properties.headers)) for _, properties, body in (self.get("dead") for _ in range(count))
        ]

    def events(self, count: int) -> list[Message]:
        got = [self.get("listener") for _ in range(count)]
        return [
            Message(topic=method.routing_key, id=properties.message_id, body=body) for method, properties, body in got
        ]

    def waiting(self) -> int:
        return int(self.channel.queue_declare(self.name("submissions"), passive=True).method.message_count)

    def get(self, queue: str) -> tuple[Any, Any, bytes]:
        """The next message of a queue; a quorum queue may take a moment to show it."""
        got: list[tuple[Any, Any, bytes]] = []

        def find() -> bool:
            method, properties, body = self.channel.basic_get(self.name(queue), auto_ack=True)
            if method is not None:
                got.append((method, properties, body))
            return bool(got)

        wait_until(find)
        return got[0]

    def send(self, topic: str, body: bytes) -> None:
        """As a bucket does."""
        self.channel.basic_publish(self.name("submissions"), topic, body)

    def name(self, what: str) -> str:
        return f"{self.options.prefix}.{what}"

    def close(self) -> None:
        for broker in self._opened:
            broker.close()
        for name in ("submissions", "dead", "events", "listener"):
            self.channel.queue_delete(self.name(name))
            self.channel.exchange_delete(self.name(name))
        self._operator.close()

    def _listen(self) -> None:
        """An outsider that wants the events."""
        connect(self.options).close()
        self.channel.queue_declare(self.name("listener"))
        self.channel.queue_bind(self.name("listener"), self.name("events"), "submission.*")


def _reason(headers: dict[str, Any]) -> tuple[str, str]:
    """Ours, or RabbitMQ's own where it buried the message."""
    return headers.get("x-reason") or headers["x-first-death-reason"], headers.get("x-detail", "")


class Consumer:
    """Consumes in a thread, inside its context. `handle` is what becomes of a message, after it was noted."""

    def __init__(self, broker: Broker, handle: Callable[[Message], None] = lambda message: None) -> None:
        self.taken: list[Message] = []
        self.error: BaseException | None = None
        self._broker = broker
        self._handle = handle
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
        self.join()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def wait(self, count: int) -> None:
        wait_until(lambda: len(self.taken) >= count or not self._thread.is_alive())
        assert self.error is None
        assert len(self.taken) == count

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.taken]

    def _run(self) -> None:
        try:
            self._broker.consume(self._take, self._stop.is_set)
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    def _take(self, message: Message) -> None:
        self.taken.append(message)
        self._handle(message)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
