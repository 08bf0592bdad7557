"""Publishing that waits until the broker has said that it keeps everything."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import pika

from pipeline.errors import BrokerUnavailable
from pipeline.stores.rabbitmq_connection import serve

LOOK_S = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    """A message with its address. A `mandatory` one has to reach a queue."""

    exchange: str
    topic: str
    body: bytes
    properties: Any
    mandatory: bool


class ConfirmedChannel:
    """A channel in confirm mode on which many messages share one round trip.

    pika's blocking `confirm_delivery` waits after each message (1,200 a second on loopback, against 6,700 in
    batches of 100), and without end if a quorum queue has lost its majority. So the verdicts are read from the
    channel beneath, pika's public `Channel`; that it is called `_impl` is the one thing private that we use.
    """

    def __init__(self, connection: Any, timeout_s: float, address: str) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._address = address
        self._channel = connection.channel()
        self._sent = 0
        self._open: set[int] = set()
        self._refused: list[str] = []
        self._channel.add_on_return_callback(self._on_return)
        in_force: list[Any] = []
        self._channel._impl.confirm_delivery(self._on_verdict, callback=in_force.append)
        self._wait(lambda: bool(in_force))

    def publish(self, letters: Sequence[Letter]) -> None:
        """Returns when all are confirmed. Raises `BrokerUnavailable` if one is refused, unroutable or late: then
        any of them may have been kept, and the channel is of no more use."""
        for letter in letters:
            self._send(letter)
        self._wait(lambda: not self._open)
        serve(self._channel, 0)  # what came back as unroutable was noted before its confirmation, and is told now
        if self._refused:
            raise BrokerUnavailable(
                f"RabbitMQ at {self._address} did not keep {len(self._refused)} of {len(letters)} messages: "
                f"{self._refused[0]}"
            )

    def _send(self, letter: Letter) -> None:
        self._sent += 1
        self._open.add(self._sent)
        self._channel.basic_publish(letter.exchange, letter.topic, letter.body, letter.properties, letter.mandatory)

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not done():
            if time.monotonic() >= deadline:
                raise BrokerUnavailable(
                    f"RabbitMQ at {self._address} confirmed nothing for {self._timeout_s:g} s: look whether its quorum "
                    "queues have their majority; it is sent again later"
                )
            serve(self._channel, LOOK_S)

    def _on_verdict(self, frame: Any) -> None:
        verdict = frame.method
        last = verdict.delivery_tag
        settled = {tag for tag in self._open if tag == last or (verdict.multiple and tag < last)}
        self._open -= settled
        if isinstance(verdict, pika.spec.Basic.Nack):
            self._refused += ["it has not the means to store them; look into its log"] * len(settled)
        if not self._open:
            self._connection.call_later(0, _wake)

    def _on_return(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        """Comes before the confirmation of the same message."""
        self._refused.append(f"no queue takes {method.routing_key}; it is declared anew by the next try")


def _wake() -> None:
    """pika's loop returns when a timer has run off."""
