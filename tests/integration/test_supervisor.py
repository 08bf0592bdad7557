"""The supervisor, when its actors cannot do their work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.environment import own_ray
from actors.home import Home
from pipeline.errors import ProfileMismatch
from pipeline.wiring import Pipeline
from tests.pdfs import write_pdf
from tests.pipelines import open_at, submit

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """An open pipeline with one document to process, in a home where a local Ray runs."""
    monkeypatch.delenv("PAGEGATE_HOME", raising=False)
    token = own_ray()

    import ray

    from actors.cluster import start_local

    opened = open_at(tmp_path / "home")
    home = Home(opened.settings.home)
    assert home.acquire()
    start_local(opened.settings.pools, home, token)
    submit(opened, [write_pdf(tmp_path / "a.pdf", ["alpha"])])
    yield opened
    ray.shutdown()
    home.release()
    opened.close()


def test_actors_that_refuse_the_settings_end_the_run_with_their_reason(pipeline: Pipeline, tmp_path: Path) -> None:
    from actors.supervisor import Supervisor

    config = tmp_path / "other.yaml"
    config.write_text("render: {dpi: 100}\n")
    supervisor = Supervisor(pipeline, config)
    with pytest.raises(ProfileMismatch, match=r"render\.dpi"):
        supervisor.run(lambda: False, lambda report: None)


def test_nothing_is_claimed_and_no_actor_is_started_when_nothing_is_pending(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actors.pool import ActorPool
    from actors.supervisor import Supervisor

    monkeypatch.setattr(ActorPool, "start", lambda self: pytest.fail("a pool was started"))
    monkeypatch.setattr(pipeline, "pending", lambda kind: False)
    looks = iter([False, False, True])
    Supervisor(pipeline, None).run(lambda: next(looks), lambda report: None)


def test_the_supervisor_waits_for_a_ledger_that_does_not_answer(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actors import supervisor
    from pipeline.errors import LedgerUnavailable

    faults = [LedgerUnavailable("gone away"), LedgerUnavailable("gone away")]

    def pending(kind: str) -> bool:
        if faults:
            raise faults.pop()
        return False

    monkeypatch.setattr(supervisor, "PAUSE_S", 0.01)
    monkeypatch.setattr(pipeline, "pending", pending)
    supervisor.Supervisor(pipeline, None).run(lambda: True, lambda report: None)
    assert faults == []


def test_nothing_is_swept_right_after_an_outage_of_the_ledger(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lives needs a moment to settle or give back what it holds, before its leases are taken for lost."""
    from actors import supervisor
    from actors.supervisor import Supervisor
    from pipeline.errors import LedgerUnavailable

    swept: list[str] = []
    pending = iter([LedgerUnavailable("away")])

    def pending_or_away(_kind: str) -> bool:
        for error in pending:
            raise error
        return False

    monkeypatch.setattr(supervisor, "PAUSE_S", 0.0)
    monkeypatch.setattr(supervisor, "AFTER_OUTAGE_S", 1.0)
    monkeypatch.setattr(supervisor, "SWEEP_S", 0.0)
    monkeypatch.setattr(pipeline, "pending", pending_or_away)
    monkeypatch.setattr(pipeline.ledger, "sweep", lambda: swept.append("swept") or 0)
    begun = time.monotonic()
    Supervisor(pipeline, None).run(lambda: bool(swept), lambda report: None)
    assert time.monotonic() - begun >= 1.0
