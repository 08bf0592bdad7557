"""The broker: RabbitMQ 3.10 or later, by pika.

A message's handler runs in a thread of its own, while the connection's thread goes on answering heartbeats and does
all that is said to the broker: pika's connections belong to one thread (pika/pika#1104), and a delivery can only be
acknowledged on the channel that brought it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from pipeline.backoff import pause_s
from pipeline.domain import EventKind, Message
from pipeline.errors import BrokerUnavailable, InfrastructureError, MalformedMessage
from pipeline.failpoints import reached
from pipeline.stores.rabbitmq_confirms import ConfirmedChannel, Letter
from pipeline.stores.rabbitmq_connection import CLIENT_ERRORS, close, connect, explain, serve
from pipeline.stores.rabbitmq_options import RabbitmqOptions

log = logging.getLogger("pagegate.rabbitmq")

LOOK_S = 0.25
"""How often `stopping` is asked while nothing comes."""
CRASH_PAUSE_S = 0.5
"""Before a message whose handling crashed goes back: it comes again at once, and would fill the log."""
DETAIL_CHARS = 500
SHORT_BYTES = 255
"""Of a name in AMQP."""

Handler = Callable[[Message], None]


class RabbitmqBroker:
    """See `pipeline.protocols.Broker` for the contract, and `declare` for the exchanges and queues.

    Connects at the first call. What fails drops the connection, and the next call makes a new one; what was not
    acknowledged on the old one is delivered again.
    """

    def __init__(self, options: RabbitmqOptions) -> None:
        self._options = options
        self._connection: Any = None
        self._confirmed: ConfirmedChannel | None = None

    def publish(self, messages: Sequence[Message]) -> None:
        """All in one round trip. Without messages only an open connection is served: call it so, now and then, for
        the broker gives up a client from which it hears no heartbeat."""
        self._refresh()
        if messages:
            with self._failures_explained():
                self._post([self._letter(message) for message in messages])

    def consume(self, handle: Handler, stopping: Callable[[], bool]) -> None:
        """See the protocol. `stopping` is first asked when messages can come, and then every quarter of a second,
        except while `handle` is at work. What else `handle` may raise sends the message back, counted."""
        self._refresh()
        with self._failures_explained():
            channel = self._connected().channel()
            channel.basic_qos(prefetch_count=self._options.prefetch)
            for method, properties, body in channel.consume(self._name("submissions"), inactivity_timeout=LOOK_S):
                if stopping():
                    channel.close()  # which gives back what was not acknowledged
                    return
                if method is not None:
                    delivery = Delivery.of(channel, method, properties, body)
                    self._attend(delivery, handle, stopping)
            raise BrokerUnavailable(
                f"RabbitMQ at {self._options.address} cancelled the consumer: its queue was deleted or its node went "
                "down; the next try declares it anew"
            )

    def close(self) -> None:
        connection, self._connection, self._confirmed = self._connection, None, None
        if connection is not None:
            close(connection)

    def _attend(self, delivery: Delivery, handle: Handler, stopping: Callable[[], bool]) -> None:
        """Until it is acknowledged, given back, or left for the end of the channel to give back."""
        failures = 0
        while isinstance(error := _handle(delivery, handle), InfrastructureError):
            failures += 1
            if failures == 1:
                log.warning("a message waits: %s", error.message)
            if not _rest(delivery.channel, pause_s(failures), stopping):
                return
        if error is None:
            delivery.channel.basic_ack(delivery.tag)
            reached("consumer.acked")
        elif isinstance(error, MalformedMessage):
            self._bury(delivery, error)
            reached("consumer.buried")
            delivery.channel.basic_ack(delivery.tag)
        else:
            log.error("handling a message crashed: it is given back", exc_info=error)
            _rest(delivery.channel, CRASH_PAUSE_S, stopping)
            delivery.channel.basic_nack(delivery.tag, requeue=True)

    def _bury(self, delivery: Delivery, error: MalformedMessage) -> None:
        """Send its original bytes to the dead letters, with the reason."""
        reason = str(error.context.get("reason", error.code))
        log.warning("a message goes to the dead letters: %s, %s", reason, error.message)
        detail = error.message[:DETAIL_CHARS].encode(errors="backslashreplace").decode()
        headers = {"x-reason": reason, "x-detail": detail, "x-original-routing-key": delivery.message.topic}
        letter = Letter(
            exchange=self._name("dead"),
            topic=reason,
            body=delivery.message.body,
            properties=_properties(delivery.message.id, headers),
            mandatory=True,
        )
        self._post([letter])

    def _post(self, letters: Sequence[Letter]) -> None:
        connection = self._connected()
        if self._confirmed is None:
            self._confirmed = ConfirmedChannel(connection, self._options.confirm_timeout_s, self._options.address)
        self._confirmed.publish(letters)

    def _letter(self, message: Message) -> Letter:
        """Nobody has to listen to completions; but an announcement that reaches no queue would be lost."""
        announces = message.topic == EventKind.REGISTERED
        return Letter(
            exchange=self._name("submissions" if announces else "events"),
            topic=message.topic,
            body=message.body,
            properties=_properties(message.id),
            mandatory=announces,
        )

    def _name(self, what: str) -> str:
        return f"{self._options.prefix}.{what}"

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = connect(self._options)
        return self._connection

    def _refresh(self) -> None:
        """Serve an open connection; one that was lost since the last call is no failure of this one."""
        if self._connection is not None:
            try:
                self._connection.process_data_events(time_limit=0)
            except CLIENT_ERRORS:
                self.close()

    @contextlib.contextmanager
    def _failures_explained(self) -> Iterator[None]:
        """pika's errors as ours. Its own text may name the user, so it is not shown even as the cause."""
        try:
            yield
        except CLIENT_ERRORS as error:
            self.close()
            raise BrokerUnavailable(explain(error, self._options)) from None
        except BaseException:
            self.close()
            raise


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A message, and where to acknowledge it."""

    channel: BlockingChannel
    tag: int
    message: Message

    @classmethod
    def of(cls, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> Delivery:
        message = Message(topic=_text(method.routing_key), id=_text(properties.message_id or ""), body=body)
        return cls(channel=channel, tag=method.delivery_tag, message=message)


class Handling(threading.Thread):
    """One call of a handler. When it is over, `error` is what it raised."""

    def __init__(self, handle: Handler, delivery: Delivery) -> None:
        super().__init__(name="pagegate-message", daemon=True)
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._handle = handle
        self._delivery = delivery

    def run(self) -> None:
        try:
            self._handle(self._delivery.message)
        except BaseException as error:  # noqa: BLE001 - it is the connection's thread that decides
            self.error = error
        self.over.set()
        with contextlib.suppress(AMQPError):  # lost meanwhile
            self._delivery.channel.connection.add_callback_threadsafe(_wake)


def _handle(delivery: Delivery, handle: Handler) -> BaseException | None:
    """What the handler raised. Heartbeats go on meanwhile; if the connection is lost, the handler still comes to
    its end before this raises, so that there are never two at work."""
    handling = Handling(handle, delivery)
    handling.start()
    try:
        while not handling.over.is_set():
            serve(delivery.channel, LOOK_S)
    finally:
        handling.join()
    return handling.error


def _rest(channel: BlockingChannel, seconds: float, stopping: Callable[[], bool]) -> bool:
    """Serve the connection for so long; False if `stopping` came first."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if stopping():
            return False
        serve(channel, min(left, LOOK_S))
    return True


def _properties(message_id: str, headers: dict[str, str] | None = None) -> Any:
    return pika.BasicProperties(
        message_id=message_id.encode()[:SHORT_BYTES].decode(errors="ignore"),
        content_type="application/json",
        delivery_mode=pika.DeliveryMode.Persistent,
        headers=headers,
    )


def _text(name: str | bytes) -> str:
    """pika leaves what is not UTF-8 as bytes."""
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _wake() -> None:
    """pika's loop returns when a callback has run."""
