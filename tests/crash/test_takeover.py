"""More than one worker on a ledger: frozen and thawed, side by side, and submissions out of order."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from pipeline.domain import ArtifactRef, StageName
from pipeline.identity import source_key, version_id
from pipeline.settings import LedgerSettings
from pipeline.stores.sql.tables import documents, page_tasks
from pipeline.wiring import Pipeline
from tests.crash import worker
from tests.crash.scene import Scene, an_id, opened, run, start, submit_all, wait_until_stopped
from tests.pdfs import write_pdf
from tests.pipelines import NOTHING, ORG, ask

pytestmark = pytest.mark.timeout(180)

KINDS = ("intake", "render", "text", "ocr", "encode", "index", "gate")
LEASE_S = 1.0


@contextlib.contextmanager
def frozen(home: Path, kind: str, failpoint: str, lease_s: float) -> Iterator[subprocess.Popen[str]]:
    """A worker that does one window of `kind`, and is stopped on its way."""
    process = start(home, lease_s, kind, PAGEGATE_FAILPOINT=f"{failpoint}:stop")
    try:
        wait_until_stopped(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def thaw(process: subprocess.Popen[str]) -> str:
    """What the worker says of its window, once it has come to its end."""
    process.send_signal(signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return said


def work_up_to(pipeline: Pipeline, kind: str) -> None:
    """All windows of all kinds of work before this one."""
    for before in KINDS[: KINDS.index(kind)]:
        while pipeline.run(before, "before"):
            pass


def wait_for_sweep(pipeline: Pipeline) -> None:
    deadline = time.monotonic() + 20
    while not pipeline.ledger.sweep():
        assert time.monotonic() < deadline, "no lease ran out"
        time.sleep(0.05)


def leased(pipeline: Pipeline) -> list[Any]:
    query = select(page_tasks.c.id, page_tasks.c.token, page_tasks.c.worker).where(page_tasks.c.state == "leased")
    return pipeline.ledger.database.read(lambda connection: sorted(map(tuple, connection.execute(query))))


@pytest.mark.parametrize(
    ("kind", "failpoint", "lease_s"),
    [
        ("render", "render.processed:2", LEASE_S),
        ("text", "text.put:1", LEASE_S),
        ("encode", "encode.got:1", LEASE_S),
        ("index", "index.upserted:1", LEASE_S),
        ("render", "render.renewed:4", worker.NO_LEASE_S),  # nothing is left to do but to settle
        ("index", "index.renewed:4", worker.NO_LEASE_S),
    ],
)
def test_a_worker_frozen_past_its_lease_completes_nothing_when_it_thaws(
    scene: Scene, kind: str, failpoint: str, lease_s: float
) -> None:
    home = scene.home()
    with opened(home) as pipeline:
        work_up_to(pipeline, kind)
        with frozen(home, kind, failpoint, lease_s) as late:
            wait_for_sweep(pipeline)
            while pipeline.ledger.tasks.claim(StageName(kind), 64, 600.0, "second"):
                pass
            held = leased(pipeline)
            assert "lost=4" in thaw(late)
        assert leased(pipeline) == held
        assert {name for _, _, name in held} == {"second"}
    _, after = scene.recover(home)
    scene.check_end(after)


def test_a_gate_frozen_past_its_lease_promotes_nothing_when_it_thaws(scene: Scene) -> None:
    home = scene.home()
    with opened(home) as pipeline:
        work_up_to(pipeline, "gate")
        pipeline.index.close()
        with frozen(home, "gate", "gate.promoted:1", LEASE_S) as late:
            wait_for_sweep(pipeline)
            while pipeline.ledger.gates.claim(600.0, "second"):
                pass
            assert "stale" in thaw(late)
    before, after = scene.recover(home)
    assert before.current == 1
    scene.check_shown(before)
    scene.check_end(after)


def test_an_intake_frozen_past_its_lease_accepts_nothing_when_it_thaws(scene: Scene) -> None:
    home = scene.home()
    with opened(home) as pipeline, frozen(home, "intake", "intake.source_put:1", LEASE_S) as late:
        pipeline.ledger.release(None)  # its lease is that of a slow disk: ten minutes
        while pipeline.ledger.submissions.claim(600.0, "second"):
            pass
        thaw(late)
        assert pipeline.ledger.views.status(None).tasks == {(stage, "done"): 5 for stage in done_stages(pipeline)}
    _, after = scene.recover(home)
    scene.check_end(after)


def done_stages(pipeline: Pipeline) -> set[str]:
    return {stage for stage, state in pipeline.ledger.views.status(None).tasks if state == "done"}


@pytest.mark.parametrize("failpoint", [None, "encode.put:3", "index.upserted:1", "gate.promoted:1"])
@pytest.mark.parametrize("database", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_two_workers_on_one_ledger_double_nothing_even_if_one_of_them_is_killed(
    scene: Scene, tmp_path: Path, database: str, failpoint: str | None, request: pytest.FixtureRequest
) -> None:
    from tests.qdrant_server import QdrantServer

    server = QdrantServer()
    index = server.options()
    environment = {
        "PAGEGATE_INDEX__KIND": "qdrant",
        "PAGEGATE_INDEX__QDRANT__URL": index.url,
        "PAGEGATE_INDEX__QDRANT__GRPC_PORT": str(index.grpc_port),
    }
    if database == "mariadb":
        environment["PAGEGATE_LEDGER__URL"] = request.getfixturevalue("mysql_url")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        with opened_shared(tmp_path / "home") as pipeline:
            submit_all(pipeline, scene.folder / "sources")
            first = start(tmp_path / "home", LEASE_S, **({"PAGEGATE_FAILPOINT": failpoint} if failpoint else {}))
            second = start(tmp_path / "home", LEASE_S)
            ends = [process.wait(90) for process in (first, second)]
            assert ends == [-signal.SIGKILL if failpoint else 0, 0]
            worker.finish(pipeline)
            scene.check_end(worker.look(pipeline))
    server.stop()


@contextlib.contextmanager
def opened_shared(home: Path) -> Iterator[Pipeline]:
    """On the ledger and the index that the environment names."""
    from pipeline.settings import load_settings

    home.mkdir(parents=True)
    settings = load_settings(home=home)
    pipeline = Pipeline(settings)
    pipeline.ledger.migrate()
    pipeline.close()
    with opened(home, LEASE_S, ledger=settings.ledger or LedgerSettings()) as made:
        yield made


CONTENTS = ("alpha", "beta", "gamma", "delta")


@pytest.mark.parametrize("seed", range(4))
def test_submissions_taken_in_out_of_order_with_kills_between_end_with_the_latest(scene: Scene, seed: int) -> None:
    """Each has bytes of its own; after each, the document is the latest of those that were taken in, and whole."""
    draw = random.Random(seed)
    home = scene.folder / f"order-{seed}"
    with opened(home) as pipeline:
        versions = [upload(pipeline, scene.folder, number) for number in range(len(CONTENTS))]
        held = [pipeline.ledger.submissions.claim(600.0, f"holder-{number}") for number in range(len(CONTENTS))]
        assert [one[1].id for one in held if one] == [an_id(content) for content in CONTENTS]
    taken: set[int] = set()
    for number in draw.sample(range(len(CONTENTS)), len(CONTENTS)):
        taken.add(number)
        with opened(home) as pipeline:
            assert pipeline.ledger.submissions.release(f"holder-{number}") == 1
        for point in draw.sample(POINTS_OF_ONE, 2):
            run(worker.advance, home, f"{point}:1")
        assert run(worker.advance, home) == 0
        with opened(home) as pipeline:
            assert shown(pipeline) == {versions[max(taken)]: [0, 1, 2]}
            assert current(pipeline) == (versions[max(taken)], max(taken) + 1)


POINTS_OF_ONE = [
    f"{kind}.{effect}"
    for kind, effects in {
        "intake": ("claimed", "accepted"),
        "render": ("claimed", "put", "settled"),
        "encode": ("put", "settled"),
        "index": ("sending", "upserted", "settled"),
        "gate": ("claimed", "promoted", "settled", "demoted"),
    }.items()
    for effect in effects
]


def upload(pipeline: Pipeline, folder: Path, number: int) -> str:
    """Submit the document's next content as an upload; the id of the version that it becomes."""
    pages = [f"manual torque {CONTENTS[number]} {page}" for page in range(3)]
    content = write_pdf(folder / "content.pdf", pages).read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    document = pipeline.ledger.submissions.document_of(ORG, "file:///moving.pdf")
    version = version_id(document, sha256)
    ref = ArtifactRef(key=source_key(document, version, sha256), sha256=sha256, size=len(content))
    pipeline.store.put_stream(ref.key, io.BytesIO(content), sha256)
    pipeline.ledger.submissions.submit(
        ORG, "file:///moving.pdf", NOTHING, submission_id=an_id(CONTENTS[number]), upload=ref
    )
    return version


def shown(pipeline: Pipeline) -> Mapping[str, list[int]]:
    pages: dict[str, list[int]] = {}
    for hit in ask(pipeline, worker.QUESTION, 100):
        pages.setdefault(hit.version_id, []).append(hit.page_index)
    return {version: sorted(found) for version, found in pages.items()}


def current(pipeline: Pipeline) -> tuple[str, int]:
    query = select(documents.c.current_version_id, documents.c.current_revision)
    return pipeline.ledger.database.read(lambda connection: tuple(connection.execute(query).one()))
