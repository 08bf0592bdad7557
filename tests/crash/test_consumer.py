"""A consumer killed around the ledger's commit: RabbitMQ delivers again, nothing is lost and nothing is doubled."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.domain import EventKind, SubmissionState
from tests.crash import worker
from tests.crash.scene import an_id, opened, run
from tests.rabbitmq_bench import RabbitmqBench, wait_until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(120)]

NAMES = ("one", "two", "three")


@pytest.fixture
def bench(amqp_url: str) -> Iterator[RabbitmqBench]:
    made = RabbitmqBench(amqp_url)
    yield made
    made.close()


def announcement(name: str) -> bytes:
    asked = {"submission_id": an_id(name), "org": "acme", "source": f"s3://inbox/{name}.pdf"}
    return json.dumps({"schema": "pagegate.submission/1", **asked}).encode()


def queued(home: Path) -> list[str]:
    """Ids of the submissions that wait for intake."""
    with opened(home) as pipeline:
        assert pipeline.ledger.views.status(None).submissions.get(SubmissionState.QUEUED, 0) <= len(NAMES)
        found = pipeline.ledger.views.submissions([an_id(name) for name in NAMES])
        return sorted(one.id for one in found if one.state == SubmissionState.QUEUED)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("point", ["consumer.received", "consumer.registered", "consumer.acked"])
def test_a_consumer_killed_there_loses_no_submission_and_doubles_none(
    bench: RabbitmqBench, tmp_path: Path, point: str, n: int
) -> None:
    for name in NAMES:
        bench.send(EventKind.REGISTERED, announcement(name))

    assert run(worker.consume, tmp_path, bench.options, f"{point}:{n}") == -signal.SIGKILL
    assert len(queued(tmp_path)) == n - (point == "consumer.received")

    assert run(worker.consume, tmp_path, bench.options) == 0
    assert queued(tmp_path) == sorted(map(an_id, NAMES))
    wait_until(lambda: bench.waiting() == 0)


def test_a_message_that_was_buried_but_not_acknowledged_is_buried_again_and_not_lost(
    bench: RabbitmqBench, tmp_path: Path
) -> None:
    bench.send(EventKind.REGISTERED, b"no JSON")

    assert run(worker.consume, tmp_path, bench.options, "consumer.buried:1") == -signal.SIGKILL
    assert run(worker.consume, tmp_path, bench.options) == 0

    assert [(body, reason) for body, reason, _ in bench.dead(2)] == [(b"no JSON", "not_json")] * 2
    wait_until(lambda: bench.waiting() == 0)
