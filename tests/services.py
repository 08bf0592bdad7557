"""Servers of a test's own, to be killed in the middle of its work and started again."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import unavailable

SCRIPT = Path(__file__).parents[1] / "scripts" / "services"


@dataclasses.dataclass(frozen=True)
class Servers:
    """MariaDB and RabbitMQ in one folder; what they keep survives `kill`, and not `wipe`."""

    folder: Path
    environment: dict[str, str]

    def start(self, *names: str) -> None:
        self._run("start", *names)

    def kill(self, *names: str) -> None:
        self._run("kill", *names)

    def wipe(self, *names: str) -> None:
        self._run("stop", *names)

    def url(self, name: str) -> str:
        """`name` is AMQP or MYSQL."""
        exports = dict(line.removeprefix("export ").split("=", 1) for line in self._run("env").splitlines())
        return exports[f"PAGEGATE_TEST_{name}_URL"]

    def _run(self, verb: str, *names: str) -> str:
        command = [str(SCRIPT), verb, str(self.folder), *names]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120)
        if ran.returncode == 3 and verb == "start":
            unavailable(f"scripts/services start: {ran.stderr.strip()}")
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


def own_servers(folder: Path) -> Iterator[Servers]:
    """On ports of their own, stopped at the end. Skips or fails as other tests without servers do."""
    if not os.environ.get("PAGEGATE_TEST_MYSQL_URL"):
        unavailable("no servers: make test starts them")
    first = _free_ports(4)
    ports = {"PAGEGATE_TEST_MYSQL_PORT": str(first), "PAGEGATE_TEST_AMQP_PORT": str(first + 1)}
    servers = Servers(folder, {**os.environ, **ports})
    servers.start("mariadb", "rabbitmq")
    yield servers
    servers.wipe()


def _free_ports(count: int) -> int:
    """The first of so many neighbours that nobody listens on, below the range that the kernel gives out."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000, count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    pytest.fail("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
