"""One supervisor at a time works in a home, and what a killed one left behind is cleared away."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import psutil

from actors.home import Home

ENLIST = "import sys, time; from pathlib import Path; from actors.home import Home; Home(Path(sys.argv[1])).enlist(); "


def start(home: Path, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, str(home)], stdout=subprocess.PIPE, text=True)


def test_only_one_is_at_work_at_a_time(tmp_path: Path) -> None:
    first, second = Home(tmp_path), Home(tmp_path)
    assert first.acquire()
    assert not second.acquire()
    assert second.busy()
    first.release()
    assert not second.busy()
    assert second.acquire()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from actors.home import Home; "
        "home = Home(Path(sys.argv[1])); print(home.acquire(), flush=True); time.sleep(60)"
    )
    holder = start(tmp_path, program)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert Home(tmp_path).busy()
    holder.kill()
    holder.wait()
    assert not Home(tmp_path).busy()


def test_the_address_is_there_while_somebody_is_at_work(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.cluster() is None
    home.acquire()
    home.announce("127.0.0.1:6379", "token")
    assert Home(tmp_path).cluster() == ("127.0.0.1:6379", "token")
    assert stat.S_IMODE((tmp_path / "cluster.json").stat().st_mode) == 0o600
    home.release()
    assert home.cluster() is None


def test_workers_left_behind_are_killed(tmp_path: Path) -> None:
    orphan = start(tmp_path, ENLIST + "print('up', flush=True); time.sleep(60)")
    assert orphan.stdout is not None
    orphan.stdout.readline()
    Home(tmp_path).kill_orphans()
    assert not psutil.pid_exists(orphan.pid)
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_process_that_only_has_the_number_of_an_earlier_worker_is_left_alone(tmp_path: Path) -> None:
    innocent = start(tmp_path, "import time; print('up', flush=True); time.sleep(60)")
    assert innocent.stdout is not None
    innocent.stdout.readline()
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / str(innocent.pid)).write_text("1.0")
    Home(tmp_path).kill_orphans()
    assert innocent.poll() is None
    innocent.kill()
