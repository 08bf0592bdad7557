"""A page that kills the parser, in the whole pipeline: it is tried as often as is allowed, its neighbours once."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from pipeline.domain import SubmissionState
from pipeline.pdf.frames import Frame
from pipeline.pdf.process import ParserProcess
from tests.pdfs import write_pdf
from tests.pipelines import ask, ingest, open_at

BAD = 2


def die_of(monkeypatch: pytest.MonkeyPatch, path: Path, times: int) -> list[int]:
    """From now on a child that is asked for page 2 of this file dies, so many times; returns their ids."""
    died: list[int] = []
    send, content = ParserProcess.send, path.read_bytes()

    def send_and_kill(self: ParserProcess, frame: Frame, source: int) -> None:
        is_bad = frame.header.get("index") == BAD and os.pread(source, len(content) + 1, 0) == content
        if not is_bad or len(died) >= times:
            return send(self, frame, source)
        died.append(self.pid)
        os.kill(self.pid, signal.SIGSTOP)  # or it may have answered before it is killed
        send(self, frame, source)
        return os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(ParserProcess, "send", send_and_kill)
    monkeypatch.setattr("pipeline.stores.sql.tasks.BACKOFF_S", 0.01)
    return died


def render_attempts(home: Path, version: str | None) -> list[tuple[str, int, str | None]]:
    """State, counted failures and code of each page's render task, from the ledger's own table."""
    query = """
        SELECT state, attempts, error_code FROM page_tasks JOIN pages ON pages.id = page_tasks.page_id
        WHERE stage = 'render' AND pages.version_id = ? ORDER BY page_index
    """
    with contextlib.closing(sqlite3.connect(home / "ledger.sqlite")) as ledger:
        return list(ledger.execute(query, (version,)))


def test_a_page_that_always_kills_the_parser_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = write_pdf(tmp_path / "bad.pdf", [f"page {index}" for index in range(5)])
    good = write_pdf(tmp_path / "good.pdf", [f"healthy {index}" for index in range(5)])
    died = die_of(monkeypatch, bad, times=99)
    pipeline = open_at(tmp_path / "home")
    rejected, searchable = ingest(pipeline, bad, good)
    assert (rejected.state, rejected.error_code, rejected.error_page) == (
        SubmissionState.REJECTED,
        "parser_crashed",
        BAD,
    )
    expected: list[tuple[str, int, str | None]] = [("done", 0, None)] * 5
    expected[BAD] = ("failed", 3, "parser_crashed")
    assert render_attempts(tmp_path / "home", rejected.version_id) == expected
    assert 3 <= len(died) <= 6
    assert len(set(died)) == len(died)
    assert searchable.state == SubmissionState.SEARCHABLE
    assert len(ask(pipeline, "healthy")) == 5
    pipeline.close()


def test_a_page_that_kills_the_parser_three_times_may_still_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = write_pdf(tmp_path / "bad.pdf", [f"page {index}" for index in range(5)])
    die_of(monkeypatch, bad, times=3)
    pipeline = open_at(tmp_path / "home")
    (searchable,) = ingest(pipeline, bad)
    assert searchable.state == SubmissionState.SEARCHABLE
    attempts = render_attempts(tmp_path / "home", searchable.version_id)
    assert [count for _, count, _ in attempts[:BAD] + attempts[BAD + 1 :]] == [0] * 4
    assert attempts[BAD][1] in (1, 2)
    pipeline.close()
