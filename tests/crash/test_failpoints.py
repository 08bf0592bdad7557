"""A worker killed after any effect: whoever comes next ends as if nothing had happened."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.failpoints import POINTS, VARIABLE, Failpoint
from tests.crash import worker
from tests.crash.scene import Scene, run
from tests.crash.worker import Look

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("consumer.", "upload.", "gc.", "delete.", "fsck.")
"""Reached by other commands, and killed there by their own tests."""
MATRIX = [name for name in POINTS if not name.startswith(ELSEWHERE)]
NOTHING_WRITTEN = (".got", ".processed", ".renewed", ".source_read", ".read_back")
BEFORE_COMMIT = ("gate.claimed", "gate.read_back", "gate.renewed", "gate.promoted")
AFTER_COMMIT = ("gate.settled", "gate.demoted")
CORES = 2

Runs = Mapping[tuple[str, int], Future[tuple[Look, Look]]]


@pytest.fixture(scope="module")
def runs(scene: Scene, request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Every case of the matrix that was asked for, begun at once: one after the other they would take twice as long."""
    items = [item for item in request.session.items if "runs" in getattr(item, "fixturenames", ())]
    asked = [item.callspec.params["point"] for item in items]
    with ThreadPoolExecutor(CORES) as pool:
        yield {(point, n): pool.submit(killed_at, scene, point, n) for point in asked for n in counts(scene, point)}
        pool.shutdown(cancel_futures=True)


def counts(scene: Scene, point: str) -> list[int]:
    """One is enough where nothing was written since the point before."""
    times = first_middle_last(scene.reached[point])
    return times[1:2] if point.endswith(NOTHING_WRITTEN) else sorted(set(times))


def first_middle_last(count: int) -> list[int]:
    return [1, (count + 1) // 2, count]


def killed_at(scene: Scene, point: str, n: int) -> tuple[Look, Look]:
    home = scene.home()
    lease_s = worker.NO_LEASE_S if point.endswith(".renewed") else worker.LEASE_S
    assert run(worker.work, home, f"{point}:{n}", lease_s) == -signal.SIGKILL
    looks = scene.recover(home)
    scene.clear(home)
    return looks


def test_an_undisturbed_run_reaches_every_point_of_the_matrix(scene: Scene) -> None:
    assert set(scene.reached) == set(MATRIX)


@pytest.mark.parametrize("point", MATRIX)
def test_a_worker_killed_there_the_first_a_middle_and_the_last_time_changes_nothing(
    scene: Scene, runs: Runs, point: str
) -> None:
    for n in counts(scene, point):
        before, after = runs[point, n].result()
        scene.check_shown(before)
        if point in BEFORE_COMMIT:
            assert before.current - 1 == n - 1
        if point in AFTER_COMMIT:
            assert before.current - 1 == n
        scene.check_end(after)


@pytest.mark.parametrize("seed", range(6))
def test_a_worker_killed_while_it_recovers_from_being_killed_changes_nothing(scene: Scene, seed: int) -> None:
    draw = random.Random(seed)
    home = scene.home()
    ends = [run(worker.work, home, f"{point}:{n}", worker.NO_LEASE_S) for point, n in drawn(scene, draw, 3)]
    before, after = scene.recover(home)
    assert ends.count(-signal.SIGKILL) >= 1
    scene.check_shown(before)
    scene.check_end(after)
    scene.clear(home)


def drawn(scene: Scene, draw: random.Random, how_many: int) -> list[tuple[str, int]]:
    """Points at random; the early times more often, since less is left from run to run."""
    points = draw.sample(MATRIX, how_many)
    return [(point, draw.randint(1, 1 + scene.reached[point] // 3)) for point in points]


@pytest.mark.parametrize("point", ["render.got", "text.got", "ocr.got", "encode.got", "index.got", "index.upserted"])
def test_what_a_stage_needs_failing_there_costs_a_pause_and_no_attempt(scene: Scene, point: str) -> None:
    home = scene.home()
    assert run(worker.work, home, f"{point}:1:raise") == 0
    _, after = scene.recover(home)
    scene.check_end(after)
    scene.clear(home)


def test_every_point_is_somewhere_and_every_one_that_is_somewhere_is_listed() -> None:
    folders = (ROOT / name for name in ("pipeline", "actors", "scripts"))
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    written = {name for source in sources for name in re.findall(r'reached\(f?"([^"]+)"\)', source)}
    stages = ("render", "text", "ocr", "encode", "index")
    for name in [name for name in written if "{" in name]:
        effect = name.partition("}")[2]
        written |= {f"{stage}{effect}" for stage in stages} - {"index.put"}
        written.remove(name)
    assert written == set(POINTS)


@pytest.mark.parametrize("text", ["render.puts:1", "render.put", "render.put:0", "render.put:x", "render.put:1:halt"])
def test_a_misspelt_failpoint_is_an_error_and_not_one_that_is_never_reached(text: str) -> None:
    with pytest.raises(ValueError, match="NAME:N"):
        Failpoint.parse(text)


def test_the_environment_arms_a_failpoint() -> None:
    program = (
        "from pipeline.failpoints import reached; reached('render.put'); reached('text.put'); reached('render.put')"
    )
    for armed, code in (("render.put:2", -signal.SIGKILL), ("render.put:3", 0), ("", 0)):
        ended = subprocess.run([sys.executable, "-c", program], env={VARIABLE: armed}, cwd=ROOT, check=False)
        assert ended.returncode == code
