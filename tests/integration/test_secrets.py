"""No credential is ever shown: not by any command in any format, nor in an error, a log, a `repr` or a pickle."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline.domain import ArtifactRef, EventKind, Message
from pipeline.errors import InfrastructureError
from pipeline.settings import load_settings
from pipeline.wiring import Pipeline
from tests.pdfs import write_pdf

SECRETS = {
    "PAGEGATE_LEDGER__URL": "mysql+pymysql://somebody:ledger-hunter2@127.0.0.1:1/pagegate",
    "PAGEGATE_BROKER__URL": "amqp://somebody:broker-hunter2@127.0.0.1:1/",
    "PAGEGATE_STORE__S3__ACCESS_KEY_ID": "key-hunter2",
    "PAGEGATE_STORE__S3__SECRET_ACCESS_KEY": "store-hunter2",
    "PAGEGATE_INDEX__QDRANT__API_KEY": "index-hunter2",
}
CONFIG = {
    "store": {"kind": "s3", "s3": {"bucket": "nowhere", "endpoint_url": "http://127.0.0.1:1", "max_attempts": 1}},
    "index": {"kind": "qdrant", "qdrant": {"url": "http://127.0.0.1", "grpc_port": 1, "timeout_s": 1}},
    "broker": {"connect_timeout_s": 1},
}
COMMANDS = [
    ["status", "--json"],
    ["ingest", "{pdf}", "--json"],
    ["submit", "{pdf}"],
    ["worker", "--until-idle"],
    ["migrate"],
    ["gc"],
    ["search", "anything", "--json"],
    ["show", "some-version"],
    ["profile", "--json"],
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_no_command_shows_one_when_nothing_answers(command: list[str], config: Path, tmp_path: Path) -> None:
    pdf = write_pdf(tmp_path / "a.pdf", ["alpha"])
    arguments = [part.format(pdf=pdf) for part in command]
    environment = {**os.environ, **SECRETS, "PAGEGATE_HOME": str(tmp_path / "home"), "PAGEGATE_ORG": "acme"}
    ran = subprocess.run(
        [sys.executable, "-m", "scripts.cli", *arguments, "--config", str(config)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ran.returncode, "ledger_unavailable" in ran.stderr) == (3, True)
    assert "hunter2" not in ran.stdout + ran.stderr


def test_no_part_of_a_pipeline_shows_one(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.DEBUG)
    settings = load_settings(config, home=tmp_path / "home")
    pipeline = Pipeline(settings)
    message = Message(topic=EventKind.SEARCHABLE, id="1", body=b"{}")
    ref = ArtifactRef(key="document/version/source/abc.pdf", sha256="0" * 64, size=1)
    calls: list[Callable[[], object]] = [
        pipeline.ledger.views.idle,
        pipeline.prepare,
        lambda: pipeline.store.get(ref),
        lambda: pipeline.index.create("pages", 4),
        lambda: pipeline.broker().publish([message]),
    ]
    shown = [repr(settings), str(settings), settings.model_dump_json(), repr(settings.model_dump()), repr(pipeline)]
    shown += [repr(part) for part in (pipeline.ledger, pipeline.store, pipeline.index, pipeline.broker())]
    for call in calls:
        with pytest.raises(InfrastructureError) as caught:
            call()
        shown += [repr(caught.value), repr(pickle.dumps(caught.value)), *traceback.format_exception(caught.value)]
    pipeline.close()
    assert "hunter2" not in "\n".join([*shown, caplog.text])


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_is_not_well_formed_is_refused_without_being_shown(
    name: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, **SECRETS, name: "hunter2 ://:@/[", "PAGEGATE_HOME": str(tmp_path / "home")}
    if name == "PAGEGATE_STORE__S3__ACCESS_KEY_ID":
        del environment["PAGEGATE_STORE__S3__SECRET_ACCESS_KEY"]  # a key alone is the wrong thing then
    ran = subprocess.run(
        [sys.executable, "-m", "scripts.cli", "status", "--config", str(config)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode in (2, 3)
    assert "hunter2" not in ran.stdout + ran.stderr
