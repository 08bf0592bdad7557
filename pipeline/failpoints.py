"""Named points after every effect, at which a test can end, stop or fail this process.

Nothing happens at them unless the environment says so when this module is first imported::

    PAGEGATE_FAILPOINT=NAME:N[:ACTION]

The N-th time that this process reaches NAME it does ACTION: ``kill`` (SIGKILL to itself, the default), ``stop``
(SIGSTOP to itself) or ``raise`` (an `InfrastructureError`, as if something that it needs had failed). An actor
inherits the variable from its supervisor, so every actor counts for itself.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable

from pipeline.errors import InfrastructureError

VARIABLE = "PAGEGATE_FAILPOINT"

STAGES = ("render", "text", "ocr", "encode", "index")

POINTS = (
    "intake.claimed",
    "intake.source_read",
    "intake.source_put",
    "intake.accepted",
    "intake.failed",
    *(f"{stage}.claimed" for stage in STAGES),
    *(f"{stage}.got" for stage in STAGES),  # an input was read
    *(f"{stage}.processed" for stage in STAGES),
    *(f"{stage}.put" for stage in STAGES if stage != "index"),  # one artifact was put
    "index.sending",  # points, at once
    "index.upserted",  # the index said that it has them
    *(f"{stage}.renewed" for stage in STAGES),
    *(f"{stage}.settled" for stage in STAGES),
    "folder.written",  # synced, before the rename
    "folder.renamed",
    "gate.claimed",
    "gate.read_back",
    "gate.renewed",
    "gate.promoted",  # live hints are set
    "gate.settled",  # the manifest is committed
    "gate.demoted",  # hints of older versions are cleared
    "outbox.claimed",
    "outbox.published",
    "outbox.marked",
    "consumer.received",
    "consumer.registered",
    "consumer.buried",
    "consumer.acked",
    "upload.begun",
    "upload.noted",
    "upload.part_sent",
    "upload.part_noted",
    "upload.completed",
    "upload.forgotten",
    "gc.object_deleted",
    "gc.point_deleted",
    "delete.tombstoned",
    "fsck.reopened",
)
"""Every name there is, in about the order in which a page meets them."""


@dataclasses.dataclass(slots=True)
class Failpoint:
    """Does something the N-th time that one name is reached."""

    name: str
    left: int
    action: str = "kill"

    @classmethod
    def parse(cls, text: str) -> Failpoint:
        """From ``NAME:N[:ACTION]``. Raises `ValueError`: a point that is misspelt would never be reached."""
        name, _, rest = text.partition(":")
        count, _, action = rest.partition(":")
        if name not in POINTS or not count.isdecimal() or int(count) < 1 or (action or "kill") not in ACTIONS:
            raise ValueError(f"{VARIABLE}={text}: give NAME:N or NAME:N:ACTION, as pipeline/failpoints.py lists them")
        return cls(name, int(count), action or "kill")

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left == 0:
                ACTIONS[self.action](name)


def reached(name: str) -> None:
    """Say that the effect of this name is done. `name` is one of `POINTS`."""
    if _watch is not None:
        _watch(name)


def _fail(name: str) -> None:
    raise InfrastructureError(f"failpoint {name} was armed to fail")


ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": lambda _name: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda _name: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _fail,
}


def _armed(text: str | None) -> Callable[[str], None] | None:
    return Failpoint.parse(text) if text else None


_watch = _armed(os.environ.get(VARIABLE))
