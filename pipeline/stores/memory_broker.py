"""A broker in memory, for tests: short enough to be seen to be right."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence

from pipeline.domain import EventKind, Message
from pipeline.errors import InfrastructureError, MalformedMessage

PAUSE_S = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    message: Message
    reason: str
    detail: str


class MemoryBroker:
    """`Broker` without a server. Objects made with the `same` broker share what it holds, also between threads."""

    def __init__(self, same: MemoryBroker | None = None, delivery_limit: int = 20) -> None:
        self.waiting: collections.deque[tuple[Message, int]] = same.waiting if same else collections.deque()
        """Submissions' messages, with how often each has come back."""
        self.events: list[Message] = same.events if same else []
        self.dead: list[DeadLetter] = same.dead if same else []
        self._delivery_limit: int = same._delivery_limit if same else delivery_limit

    def publish(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.topic == EventKind.REGISTERED or message.topic.startswith("s3."):
                self.waiting.append((message, 0))
            else:
                self.events.append(message)

    def consume(self, handle: Callable[[Message], None], stopping: Callable[[], bool]) -> None:
        while not stopping():
            try:
                message, returns = self.waiting.popleft()
            except IndexError:
                time.sleep(PAUSE_S)
            else:
                self._attend(message, returns, handle, stopping)

    def close(self) -> None:
        pass

    def _attend(
        self, message: Message, returns: int, handle: Callable[[Message], None], stopping: Callable[[], bool]
    ) -> None:
        try:
            while not stopping():
                try:
                    return handle(message)
                except InfrastructureError:
                    time.sleep(PAUSE_S)
        except MalformedMessage as error:
            return self._bury(message, str(error.context["reason"]), error.message)
        except Exception:  # noqa: BLE001 - a crash is what the delivery limit is for
            if returns == self._delivery_limit:
                return self._bury(message, "delivery_limit", "")
            returns += 1
        self.waiting.appendleft((message, returns))
        return None

    def _bury(self, message: Message, reason: str, detail: str) -> None:
        self.dead.append(DeadLetter(message=message, reason=reason, detail=detail))
