"""A real worker on MariaDB, S3, RabbitMQ and a Qdrant server, while each of them fails in turn."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from pydantic import SecretStr
from sqlalchemy import NullPool, create_engine, select, text

from pipeline.domain import EventKind, Message, SubmissionState, TaskState
from pipeline.stages import CODE_VERSIONS
from pipeline.stores.rabbitmq import RabbitmqBroker
from pipeline.stores.rabbitmq_options import RabbitmqOptions
from pipeline.stores.sql import SqlLedger
from pipeline.stores.sql.tables import outbox, page_tasks, served_pages
from tests.pdfs import write_pdf
from tests.qdrant_server import QdrantServer
from tests.s3_server import SECRET, Bucket, fresh_bucket
from tests.services import Servers, own_servers

pytestmark = [pytest.mark.ray, pytest.mark.mariadb, pytest.mark.rabbitmq, pytest.mark.timeout(280)]

DOCUMENTS, PAGES = 20, 6


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    yield from own_servers(tmp_path_factory.mktemp("servers"))


class Cluster:
    """An installation on servers that can be made to fail, and the commands that people run on it."""

    def __init__(self, servers: Servers, folder: Path, bucket: Bucket, qdrant: QdrantServer) -> None:
        self.servers, self.bucket = servers, bucket
        self.prefix = f"test-{uuid.uuid4().hex[:8]}"
        self.amqp_url = servers.url("AMQP")
        self.mysql_url = _new_database(servers.url("MYSQL"))
        self.config = folder / "cluster.yaml"
        self.config.write_text(yaml.safe_dump(self._settings(qdrant)))
        self.log = folder / "worker.log"
        self.ledger = SqlLedger(self.mysql_url, CODE_VERSIONS)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PAGEGATE_")},
            "PAGEGATE_HOME": str(folder / "home"),
            "PAGEGATE_ORG": "acme",
            "PAGEGATE_LEDGER__URL": self.mysql_url,
            "PAGEGATE_BROKER__URL": self.amqp_url,
            "PAGEGATE_STORE__S3__ACCESS_KEY_ID": "somebody",
            "PAGEGATE_STORE__S3__SECRET_ACCESS_KEY": SECRET,
        }

    def _settings(self, qdrant: QdrantServer) -> dict[str, Any]:
        s3 = self.bucket.options
        return {
            "store": {
                "kind": "s3",
                "s3": {
                    "bucket": s3.bucket,
                    "endpoint_url": s3.endpoint_url,
                    "region": s3.region,
                    "addressing_style": "path",
                    "max_attempts": 2,
                },
            },
            "index": {"kind": "qdrant", "qdrant": {"url": "http://127.0.0.1", "grpc_port": qdrant.port}},
            "broker": {"prefix": self.prefix},
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self._command(*arguments)
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        self._assert_no_secret(ran.stdout + ran.stderr)
        return ran

    @contextlib.contextmanager
    def worker(self) -> Iterator[None]:
        """Stopped at the end as Kubernetes would, by SIGTERM."""
        with self.log.open("a") as log:
            process = subprocess.Popen(self._command("worker"), env=self.environment, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, self.log.read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            self._assert_no_secret(self.log.read_text())

    def _assert_no_secret(self, shown: str) -> None:
        passwords = [urlsplit(url).password for url in (self.amqp_url, self.mysql_url)]
        assert not any(f":{secret}" in shown or f"{secret}@" in shown for secret in (SECRET, *passwords))

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "scripts.cli", *arguments, "--config", str(self.config)]

    def broker(self) -> RabbitmqBroker:
        return RabbitmqBroker(RabbitmqOptions(url=SecretStr(self.amqp_url), prefix=self.prefix))

    def put(self, paths: Sequence[Path]) -> list[str]:
        """Upload PDFs as an outside system would; returns their URIs."""
        for path in paths:
            self.bucket.raw.upload_file(str(path), self.bucket.name, f"incoming/{path.name}")
        return [f"s3://{self.bucket.name}/incoming/{path.name}" for path in paths]

    def publish(self, messages: Sequence[Message]) -> None:
        with contextlib.closing(self.broker()) as broker:
            broker.publish(messages)

    def done(self) -> int:
        return sum(n for (_, state), n in self.ledger.views.status(None).tasks.items() if state == TaskState.DONE)

    def searchable(self) -> int:
        return self.ledger.views.status(None).submissions.get(SubmissionState.SEARCHABLE, 0)

    def wait_for(self, happened: Callable[[], bool], what: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, f"waited in vain until {what}: {self.log.read_text()[-3000:]}"
            time.sleep(0.3)

    def waited_for(self) -> set[str]:
        status = json.loads(self.run("status", "--json").stdout)
        return {waiting["code"] for waiting in status["waiting"]}

    def assert_all_done_once(self, pages: int = DOCUMENTS * PAGES) -> None:
        """Every page once in each stage, served once, none charged, each event published."""
        rows = self.ledger.database.read(lambda c: c.execute(select(page_tasks)).all())
        assert {row.state for row in rows} == {TaskState.DONE}
        assert len(rows) == len({(row.page_id, row.stage) for row in rows}) == 4 * pages
        assert {row.attempts for row in rows} == {0}
        assert len(self.ledger.database.read(lambda c: c.execute(select(served_pages)).all())) == pages
        self.wait_for(lambda: self.ledger.outbox.waiting() == 0, "all events are published", 30)
        told = self.ledger.database.read(lambda c: c.execute(select(outbox.c.submission_id, outbox.c.kind)).all())
        searchable = [row.submission_id for row in told if row.kind == EventKind.SEARCHABLE]
        assert len(searchable) == len(set(searchable)) == DOCUMENTS


def _new_database(url: str) -> str:
    name = f"pagegate_{uuid.uuid4().hex}"
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name} CHARACTER SET utf8mb4"))
    return f"{url}/{name}"


@pytest.fixture
def cluster(servers: Servers, tmp_path: Path) -> Iterator[Cluster]:
    qdrant = QdrantServer()
    made = Cluster(servers, tmp_path, fresh_bucket(), qdrant)
    migrated = made.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    yield made
    made.ledger.close()
    qdrant.stop()


@pytest.fixture
def documents(tmp_path: Path) -> list[Path]:
    return [
        write_pdf(tmp_path / f"{number}.pdf", [f"document {number} page {page} torque" for page in range(PAGES)])
        for number in range(DOCUMENTS)
    ]


def a_message(uri: str) -> Message:
    submission = str(uuid.uuid4())
    body = {"schema": "pagegate.submission/1", "submission_id": submission, "org": "acme", "source": uri}
    body |= {"metadata": {"type": "manual", "labels": ["press"]}}
    return Message(topic=EventKind.REGISTERED, id=submission, body=json.dumps(body).encode())


def test_documents_whose_messages_come_twice_and_in_any_order_end_searchable_once(
    cluster: Cluster, documents: list[Path]
) -> None:
    messages = [a_message(uri) for uri in cluster.put(documents)] * 2
    random.Random(7).shuffle(messages)
    with cluster.worker():
        cluster.publish(messages)
        cluster.wait_for(lambda: cluster.searchable() == DOCUMENTS, "all are searchable")
        cluster.assert_all_done_once()
        found = cluster.run("search", "document 7 page 3", "--json", "-k", "1", "--type", "manual", "--label", "press")
        hit = json.loads(found.stdout)
        assert (hit["source"].rsplit("/")[-1], hit["page_index"]) == ("7.pdf", 3)
        assert cluster.run("search", "document 7 page 3", "--json", "--label", "lathe").stdout == ""


def test_a_broker_that_dies_and_forgets_everything_loses_no_submission(cluster: Cluster, documents: list[Path]) -> None:
    with cluster.worker():
        assert cluster.run("submit", *map(str, documents[:10])).returncode == 0
        cluster.wait_for(lambda: cluster.done() > 20, "some pages are done")
        cluster.servers.kill("rabbitmq")
        assert cluster.run("submit", *map(str, documents[10:])).returncode == 0
        cluster.wait_for(lambda: "broker_unavailable" in cluster.waited_for(), "the status says so")
        cluster.servers.wipe("rabbitmq")
        cluster.servers.start("rabbitmq")
        cluster.wait_for(lambda: cluster.searchable() == DOCUMENTS, "all are searchable")
        cluster.assert_all_done_once()


def test_a_database_that_is_away_for_twenty_seconds_costs_nothing_but_time(
    cluster: Cluster, documents: list[Path]
) -> None:
    messages = [a_message(uri) for uri in cluster.put(documents)]
    with cluster.worker():
        cluster.publish(messages[:15])
        cluster.wait_for(lambda: cluster.done() > 20, "some pages are done")
        cluster.servers.kill("mariadb")
        gone = time.monotonic()
        cluster.publish(messages[15:])
        asked = cluster.run("status")
        assert (asked.returncode, "ledger_unavailable" in asked.stderr) == (3, True)
        time.sleep(max(0.0, gone + 20 - time.monotonic()))
        cluster.servers.start("mariadb")
        cluster.wait_for(lambda: cluster.searchable() == DOCUMENTS, "all are searchable")
        cluster.assert_all_done_once()


def test_an_object_store_that_fails_in_every_way_is_waited_for(cluster: Cluster, documents: list[Path]) -> None:
    messages = [a_message(uri) for uri in cluster.put(documents)]
    server = cluster.bucket.server
    with cluster.worker():
        for method in ("PUT", "GET"):
            for kind in ("reset", "lost_reply", "slow_down"):
                server.fail(method, "/", kind, times=8)
        server.fail("GET", "/", "cut_body", times=8)
        cluster.publish(messages)
        cluster.wait_for(lambda: "store_unavailable" in cluster.waited_for(), "the status says so")
        cluster.wait_for(lambda: cluster.searchable() == DOCUMENTS, "all are searchable", 200)
        assert not any(fault.times for fault in server.faults), "every fault has happened"
        cluster.assert_all_done_once()
