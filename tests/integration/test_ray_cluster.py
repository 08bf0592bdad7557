"""A worker on a Ray cluster that somebody else started, of two nodes, with stores that both of them share."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.pdfs import write_pdf
from tests.s3_server import SECRET, fresh_bucket

pytestmark = [pytest.mark.ray, pytest.mark.mariadb, pytest.mark.timeout(280)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def environment(mysql_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "a-token-of-this-test-that-is-long-enough",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PAGEGATE_HOME": str(tmp_path / "home"),
        "PAGEGATE_ORG": "acme",
        "PAGEGATE_LEDGER__URL": mysql_url,
        "PAGEGATE_STORE__S3__ACCESS_KEY_ID": "somebody",
        "PAGEGATE_STORE__S3__SECRET_ACCESS_KEY": SECRET,
    }


@pytest.fixture
def ray_address(environment: Mapping[str, str]) -> Iterator[str]:
    """A head with one CPU, which the index takes, and a second node for the rest."""
    port = free_port()
    common = ["start", "--disable-usage-stats", "--object-store-memory", str(100 << 20), "--block"]
    head = ["--head", "--port", str(port), "--num-cpus", "1", "--include-dashboard", "false"]
    address = f"127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        for node in (head, ["--address", address, "--num-cpus", "8"]):
            command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *common, *node]
            process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
            _wait_for_port(port)
        yield address


def _wait_for_port(port: int) -> None:
    for _ in range(150):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    pytest.fail("the Ray head did not come up")


def pagegate(config: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.cli", *arguments, "--config", str(config)]
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=150)


def test_documents_are_processed_on_all_nodes_and_the_embedded_index_by_its_one_owner(
    ray_address: str, environment: Mapping[str, str], tmp_path: Path
) -> None:
    bucket = fresh_bucket()
    s3 = {"bucket": bucket.name, "endpoint_url": bucket.options.endpoint_url, "region": "us-east-1"}
    config = tmp_path / "cluster.yaml"
    settings = {
        "ray": {"address": ray_address},
        "store": {"kind": "s3", "s3": {**s3, "addressing_style": "path"}},
        "pools": {"index": {"size": 1, "cpus": 1}},
    }
    config.write_text(yaml.safe_dump(settings))
    assert pagegate(config, environment, "migrate").returncode == 0
    path = write_pdf(tmp_path / "doc.pdf", ["alpha torque", "beta pressure"])

    ran = pagegate(config, environment, "ingest", str(path), "--json")

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["state"] == "searchable"
    assert "for trials only" in ran.stderr
    asked = pagegate(config, environment, "search", "beta pressure", "--json", "-k", "1")
    assert json.loads(asked.stdout)["page_index"] == 1


def test_several_nodes_are_refused_with_stores_that_only_one_of_them_has(tmp_path: Path) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text("ray: {address: 'somewhere:6379'}\n")
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PAGEGATE_")}

    ran = pagegate(config, bare, "status")
    assert (ran.returncode, "ledger.url" in ran.stderr) == (2, True)

    ran = pagegate(config, {**bare, "PAGEGATE_LEDGER__URL": "mysql+pymysql://u:hunter2@h/d"}, "status")
    assert (ran.returncode, "store.kind" in ran.stderr) == (2, True)
    assert "hunter2" not in ran.stderr
