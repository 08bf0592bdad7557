"""A worker process of the crash tests: works in a home until nothing is left, or until a failpoint ends it.

As a program, ``python -m tests.crash.worker HOME LEASE_S [KIND…]`` does one window of each KIND, or all there is.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from pipeline import failpoints, messaging, run_stage
from pipeline.domain import Message
from pipeline.engines import bm25, lexical
from pipeline.inline import drain, step
from pipeline.settings import Pools, PoolSettings
from pipeline.stores import edge
from pipeline.stores.rabbitmq_options import RabbitmqOptions
from pipeline.stores.sql.tables import documents, outbox, page_tasks, submissions
from pipeline.wiring import Pipeline
from tests.pipelines import ask, open_at, snapshot

QUESTION = "manual torque"
WINDOW = 4
"""Small, so that a stage has a first, a middle and a last window."""
LEASE_S = 60.0
NO_LEASE_S = 1e-6
"""Over at once, so that it is renewed after each page; alone in its home, a worker is not robbed of it."""


class FakeOcr:
    """Reads the same line on every page, and needs no models."""

    name = "rapidocr"

    def read(self, image: bytes) -> list[tuple[tuple[float, float, float, float], str, float]]:
        return [((10.0, 10.0, 200.0, 30.0), "manual torque of the scanned page", 0.99)]


class FolderBroker:
    """What was published outlives its publisher: a file a message, named by its id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def publish(self, messages: Sequence[Message]) -> None:
        self._folder.mkdir(exist_ok=True)
        for message in messages:
            (self._folder / message.id).write_bytes(message.body)

    def published(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob("*"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """What a home has to say of itself."""

    shown: Mapping[str, Mapping[str, list[int]]]
    """Name of the source → version → its pages that a search finds."""
    current: int
    """Promotions so far, of all documents."""
    state: Mapping[str, Any]
    """What must be the same after every run, however it was disturbed."""
    charged: int


PRELOADED = (bm25, edge, lexical)
"""What a worker imports when it first needs it: here before the fork, once for all."""


def open_worker(home: Path, *, lease_s: float = LEASE_S, **overrides: Any) -> Pipeline:
    pool = PoolSettings(window=WINDOW, lease_s=lease_s)
    pipeline = open_at(home, pools=Pools(pdf=pool, ocr=pool, encoder=pool, index=pool), **overrides)
    pipeline.__dict__["ocr"] = FakeOcr()  # in the place of the cached property
    return pipeline


def work(home: Path, failpoint: str | None = None, lease_s: float = LEASE_S) -> None:
    """Finish all that the ledger has, and publish it. Whoever worked in this home before is known to be dead."""
    failpoints._watch = failpoints._armed(failpoint)
    pipeline = open_worker(home, lease_s=lease_s)
    finish(pipeline)
    pipeline.close()


def count(home: Path, answer: Path) -> None:
    """As `work`; answers with how often each failpoint was reached."""
    names: Counter[str] = Counter()
    failpoints._watch = lambda name: names.update([name])
    pipeline = open_worker(home, lease_s=NO_LEASE_S)
    finish(pipeline)
    answer.write_bytes(pickle.dumps((names, look(pipeline))))
    pipeline.close()


def recover(home: Path, answer: Path) -> None:
    """As `work`; answers with a look before and one after."""
    pipeline = open_worker(home)
    before = look(pipeline)
    finish(pipeline)
    answer.write_bytes(pickle.dumps((before, look(pipeline))))
    pipeline.close()


def advance(home: Path, failpoint: str | None = None) -> None:
    """Do what can be done while others hold submissions, under the name of ``advance``."""
    failpoints._watch = failpoints._armed(failpoint)
    pipeline = open_worker(home)
    pipeline.ledger.release("advance")
    while step(pipeline, "advance"):
        pass
    pipeline.close()


def consume(home: Path, options: RabbitmqOptions, failpoint: str | None = None) -> None:
    """Take submissions in from RabbitMQ until none has come for a second."""
    from pipeline.stores.rabbitmq import RabbitmqBroker

    failpoints._watch = failpoints._armed(failpoint)
    pipeline = open_worker(home)
    with messaging.Messenger(pipeline.ledger, lambda: RabbitmqBroker(options)) as messenger:
        while not messenger.idle():
            time.sleep(0.05)
    pipeline.close()


def finish(pipeline: Pipeline) -> None:
    run_stage.DEFER_S = 0.2
    pipeline.ledger.release(None)
    drain(pipeline, f"worker-{os.getpid()}", timeout_s=60)
    publish(pipeline)


def publish(pipeline: Pipeline) -> None:
    """Nobody else publishes here, so that what a dead process held need not be waited for."""
    messaging.HOLD_S = 0.0
    broker: Any = FolderBroker(pipeline.settings.home / "published")
    while messaging.relay(pipeline.ledger, broker, limit=2):
        pass


def look(pipeline: Pipeline) -> Look:
    shown: dict[str, dict[str, list[int]]] = {}
    for hit in ask(pipeline, QUESTION, 200):
        shown.setdefault(Path(hit.source).name, {}).setdefault(hit.version_id, []).append(hit.page_index)
    database = pipeline.ledger.database
    generations = select(func.coalesce(func.sum(documents.c.generation), 0))
    charges = select(func.coalesce(func.sum(page_tasks.c.attempts), 0) + func.count(page_tasks.c.error_code))
    tries = select(func.coalesce(func.sum(submissions.c.attempts), 0))
    return Look(
        shown={name: {version: sorted(pages) for version, pages in of.items()} for name, of in shown.items()},
        current=database.read(lambda connection: int(connection.execute(generations).scalar_one())),
        state=_state(pipeline),
        charged=database.read(
            lambda connection: sum(int(connection.execute(query).scalar_one()) for query in (charges, tries))
        ),
    )


def _state(pipeline: Pipeline) -> Mapping[str, Any]:
    """Manifests, points and objects; and how many rows and events of each kind there are."""

    def ids(connection: Any) -> list[str]:
        return list(connection.execute(select(submissions.c.id).where(submissions.c.version_id.is_not(None))).scalars())

    def rows(connection: Any) -> list[Any]:
        columns = page_tasks.c.stage, page_tasks.c.state
        return sorted(map(tuple, connection.execute(select(*columns, func.count()).group_by(*columns))))

    def events(connection: Any) -> list[Any]:
        columns = outbox.c.submission_id, outbox.c.kind
        return sorted(map(tuple, connection.execute(select(*columns, func.count()).group_by(*columns))))

    def ended(connection: Any) -> list[Any]:
        columns = submissions.c.id, submissions.c.state, documents.c.current_version_id, documents.c.current_revision
        joined = submissions.join(documents, documents.c.id == submissions.c.document_id)
        return sorted(map(tuple, connection.execute(select(*columns).select_from(joined))))

    database = pipeline.ledger.database
    taken_in = pipeline.ledger.views.submissions(database.read(ids))
    by_version = [dataclasses.replace(one, source_uri=one.version_id) for one in taken_in]
    return {
        **snapshot(pipeline, by_version),
        "rows": database.read(rows),
        "events": database.read(events),
        "published": len(FolderBroker(pipeline.settings.home / "published").published()),
        "submissions": database.read(ended),
    }


def main(home: str, lease_s: str, *kinds: str) -> None:
    pipeline = open_worker(Path(home), lease_s=float(lease_s))
    worker = f"worker-{os.getpid()}"
    for kind in kinds:
        print(pipeline.run(kind, worker), flush=True)
    if not kinds:
        drain(pipeline, worker, timeout_s=60)
        publish(pipeline)
    pipeline.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
