"""Between the ledger and the broker: submissions in, what became of them out."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from pipeline.backoff import pause_s
from pipeline.domain import Message, Submission
from pipeline.errors import BrokerUnavailable, InfrastructureError, MalformedMessage
from pipeline.failpoints import reached
from pipeline.messages import Registration, message_of, registrations
from pipeline.protocols import Broker, Ledger
from pipeline.stores.rabbitmq_options import NotificationRule

log = logging.getLogger("pagegate.messaging")

HOLD_S = 60.0
"""For which a relay has its events to itself; longer than a broker may take to confirm."""
DEFER_S = 5.0
LOOK_S = 0.5
"""How often the outbox is asked while it is empty."""
QUIET_S = 1.0
"""Without a message: then the queue is taken to be empty."""
JOIN_S = 10.0


def receive(ledger: Ledger, message: Message, rules: Sequence[NotificationRule]) -> None:
    """Register what a message asks for. Doing it again changes nothing.

    Raises `MalformedMessage`, beside the reasons of `registrations` with ``conflict`` for an id that was given to
    another source, and ``source_not_allowed`` for a local file: only the command line may submit one, and a message
    that announces it finds it registered.
    """
    reached("consumer.received")
    for asked in registrations(message, rules):
        known = ledger.views.submissions([asked.submission_id])
        _check_same(asked, known[0] if known else _submit(ledger, asked))
        reached("consumer.registered")


def relay(ledger: Ledger, broker: Broker, limit: int = 100) -> int:
    """Publish the oldest events of the outbox; returns how many.

    An event is published once or, after a failure, more often, with the same id. Raises `BrokerUnavailable`, with
    which they then wait in the outbox. The broker is called even with nothing, to keep its connection alive.
    """
    events = ledger.outbox.claim(limit, HOLD_S)
    ids = [event.id for event in events]
    if ids:
        reached("outbox.claimed")
    try:
        broker.publish([message_of(event) for event in events])
    except BrokerUnavailable as error:
        ledger.outbox.defer(ids, error.code, error.message, DEFER_S * random.uniform(0.8, 1.2))  # noqa: S311
        raise
    if ids:
        reached("outbox.published")
        ledger.outbox.published(ids)
        reached("outbox.marked")
    return len(ids)


def _submit(ledger: Ledger, asked: Registration) -> Submission:
    if urlsplit(asked.source_uri).scheme == "file":
        raise MalformedMessage("source: a local file cannot be submitted by a message", reason="source_not_allowed")
    return ledger.submissions.submit(
        asked.org, asked.source_uri, asked.metadata, submission_id=asked.submission_id, announce=False
    )


def _check_same(asked: Registration, known: Submission) -> None:
    if (asked.org, asked.source_uri) != (known.org, known.source_uri):
        raise MalformedMessage("submission_id: it is that of another source or org", reason="conflict")


class Messenger:
    """Two threads, each with a connection of its own: one takes messages in, one publishes the outbox.

    A context manager: both run inside. They outlive any failure of broker and ledger. When it ends, what is in the
    outbox is still published, unless the broker is not to be reached; and it waits no longer than ten seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        make: Callable[[], Broker],
        rules: Sequence[NotificationRule] = (),
        *,
        consume: bool = True,
    ) -> None:
        """`make` opens a broker; with `consume` false messages are only published."""
        self._ledger = ledger
        self._make = make
        self._rules = rules
        self._stopping = threading.Event()
        self._inbox = Inbox() if consume else None
        works = {"relay": self._publish} | ({"consumer": self._consume} if consume else {})
        self._threads = [
            threading.Thread(target=self._persist, args=(name, work), name=f"pagegate-{name}", daemon=True)
            for name, work in works.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        deadline = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("%s has not ended within %g s and is left behind", thread.name, JOIN_S)

    def idle(self) -> bool:
        """Whether the outbox is empty, and the consumer is connected and has had nothing to do for a second."""
        return (self._inbox is None or self._inbox.quiet(QUIET_S)) and self._ledger.outbox.waiting() == 0

    def _persist(self, name: str, work: Callable[[Broker, Outage], None]) -> None:
        """Work until stopped; after a failure anew, with a new broker, after a growing pause."""
        outage = Outage(name)
        while not self._stopping.is_set():
            try:
                with contextlib.closing(self._make()) as broker:
                    work(broker, outage)
            except Exception as error:  # noqa: BLE001 - a thread that ends would not be missed by anybody
                outage.note(error)
                self._stopping.wait(pause_s(outage.failures))

    def _publish(self, broker: Broker, outage: Outage) -> None:
        """What was written before the end is published before the end."""
        while True:
            ending = self._stopping.is_set()
            sent = relay(self._ledger, broker)
            if outage.failures and (sent or self._ledger.outbox.waiting() == 0):
                outage.over()
            if not sent:
                if ending:
                    return
                self._stopping.wait(LOOK_S)

    def _consume(self, broker: Broker, outage: Outage) -> None:
        inbox = self._inbox = Inbox()

        def stopping() -> bool:
            """First asked when the broker is connected."""
            if inbox.open_for(QUIET_S):
                outage.over()
            return self._stopping.is_set()

        try:
            broker.consume(lambda message: inbox.take(message, self._receive), stopping)
        finally:
            inbox.shut()

    def _receive(self, message: Message) -> None:
        receive(self._ledger, message, self._rules)


class Outage:
    """Told in the log once when it begins and once when it is over."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told = False
        self.failures = 0

    def note(self, error: Exception) -> None:
        """A failure that nobody foresaw is told each time, with where it was."""
        self.failures += 1
        if not isinstance(error, InfrastructureError):
            log.error("the %s failed, and goes on after a pause", self._what, exc_info=error)
        elif not self._told:
            log.warning("the %s waits: %s", self._what, error.message)
            self._told = True

    def over(self) -> None:
        if self.failures:
            log.info("the %s is at work again", self._what)
        self.failures, self._told = 0, False


class Inbox:
    """Whether there was anything to do of late. Written by one thread at a time, read by any."""

    def __init__(self) -> None:
        self._opened: float | None = None
        self._last = 0.0
        self._busy = False
        """With a message, also while it waits to be tried again."""

    def open_for(self, seconds: float) -> bool:
        """Called while the broker is connected; whether it has been since so long."""
        now = time.monotonic()
        self._opened = self._opened or now
        return now - self._opened >= seconds

    def shut(self) -> None:
        self._opened = None

    def take(self, message: Message, receive: Callable[[Message], None]) -> None:
        self._busy = True
        try:
            receive(message)
        except InfrastructureError:
            raise  # it comes again
        except BaseException:
            self._rest()
            raise
        self._rest()

    def quiet(self, seconds: float) -> bool:
        opened, last = self._opened, self._last
        return opened is not None and not self._busy and time.monotonic() - max(opened, last) >= seconds

    def _rest(self) -> None:
        self._last, self._busy = time.monotonic(), False
