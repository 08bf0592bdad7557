"""Processes killed in the middle of a run through Ray: the end is as if nothing had happened."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pdfs import write_pdf, write_scan
from tests.pipelines import ORG, ingest, open_at, snapshot, submit

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

PAGES = 60


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    for number in range(5):
        write_pdf(folder / f"{number}.pdf", [f"manual {number} page {page} torque" for page in range(PAGES)])
    write_scan(folder / "scan.pdf", ["serial number HX-4711"])
    return folder


@pytest.fixture(scope="module")
def undisturbed(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    pipeline = open_at(tmp_path_factory.mktemp("undisturbed"))
    ended = ingest(pipeline, *sorted(documents.iterdir()))
    taken = snapshot(pipeline, ended)
    pipeline.close()
    return taken


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    for process in processes_of(tmp_path / "home"):
        process.kill()


def start(home: Path, documents: Path, **options: Any) -> subprocess.Popen[bytes]:
    """`options` are of the environment, and of `Popen` where they are in lower case."""
    command = [sys.executable, "-m", "scripts.cli", "ingest", str(documents), "--org", ORG, "--json"]
    variables = {name: value for name, value in options.items() if name.isupper()}
    others = {name: value for name, value in options.items() if name not in variables}
    environment = os.environ | {"PAGEGATE_HOME": str(home)} | variables
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, **others)


def rows_done(home: Path) -> int:
    ledger = home / "ledger.sqlite"
    if not ledger.exists():
        return 0
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
        try:
            query = "SELECT count(*) FROM page_tasks WHERE state = 'done'"
            return int(connection.execute(query).fetchone()[0])
        except sqlite3.OperationalError:  # not migrated yet
            return 0


def wait_until_half_done(home: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while rows_done(home) < 2 * 5 * PAGES:  # of about four rows a page
        assert process.poll() is None, "the run ended before it could be disturbed"
        assert time.monotonic() < deadline, f"only {rows_done(home)} rows done"
        time.sleep(0.02)


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process, of Ray too, that was started with this home in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PAGEGATE_HOME") == str(home):
                found.append(process)
        except psutil.Error:
            continue
    return found


def actors(home: Path) -> list[psutil.Process]:
    return [one for one in processes_of(home) if one.cmdline()[:1] and "StageActor" in one.cmdline()[0]]


def result(home: Path, documents: Path) -> Mapping[str, Any]:
    """The end state, read without a supervisor; asking again must compute nothing."""
    pipeline = open_at(home)
    before = rows_done(home)
    ended = ingest(pipeline, *sorted(documents.iterdir()))
    taken = snapshot(pipeline, ended)
    assert rows_done(home) == before
    pipeline.close()
    return taken


def test_a_killed_supervisor_is_started_again_and_nothing_is_lost_or_doubled(
    home: Path, documents: Path, undisturbed: Mapping[str, Any]
) -> None:
    first = start(home, documents)
    wait_until_half_done(home, first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert start(home, documents).wait(120) == 0
    assert result(home, documents) == undisturbed


def test_a_killed_actor_is_replaced_and_nothing_is_lost_or_doubled(
    home: Path, documents: Path, undisturbed: Mapping[str, Any]
) -> None:
    run = start(home, documents)
    wait_until_half_done(home, run)
    victims = actors(home)
    assert len(victims) >= 4
    for victim in victims:
        victim.kill()
    assert run.wait(120) == 0
    assert result(home, documents) == undisturbed


@pytest.mark.parametrize("failpoint", ["index.upserted:8"])
def test_an_actor_killed_at_an_effect_is_replaced_and_nothing_is_lost_or_doubled(
    home: Path, documents: Path, undisturbed: Mapping[str, Any], failpoint: str
) -> None:
    """Every actor inherits the failpoint; the one that replaces it has too little left to reach it again."""
    run = start(home, documents, PAGEGATE_FAILPOINT=failpoint, stderr=subprocess.PIPE)
    _, said = run.communicate(timeout=180)
    assert run.returncode == 0, said.decode()
    assert b"died" in said
    assert result(home, documents) == undisturbed


def test_a_run_that_is_told_to_stop_gives_its_leases_back_and_charges_nobody(home: Path, documents: Path) -> None:
    run = start(home, documents)
    wait_until_half_done(home, run)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 130
    with closing(sqlite3.connect(home / "ledger.sqlite")) as connection:
        query = "SELECT count(*), coalesce(sum(attempts), 0) FROM page_tasks WHERE state = 'leased' OR attempts > 0"
        assert connection.execute(query).fetchone() == (0, 0)
    gone = time.monotonic() + 20
    while processes_of(home) and time.monotonic() < gone:
        time.sleep(0.2)
    assert processes_of(home) == []


def test_a_second_command_in_the_same_home_follows_the_first(home: Path, documents: Path) -> None:
    first = start(home, documents)
    wait_until_half_done(home, first)
    second = start(home, documents)
    assert (first.wait(120), second.wait(120)) == (0, 0)
    pipeline = open_at(home)
    assert len(submit(pipeline, [])) == 0
    assert pipeline.ledger.views.idle()
    pipeline.close()


def test_a_search_is_answered_while_documents_are_processed(home: Path, documents: Path) -> None:
    run = start(home, documents)
    wait_until_half_done(home, run)
    command = [sys.executable, "-m", "scripts.cli", "search", "manual 0 torque", "--org", ORG, "--json"]
    answer = subprocess.run(command, env=os.environ | {"PAGEGATE_HOME": str(home)}, capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr.decode()
    assert run.wait(120) == 0
