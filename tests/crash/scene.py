"""What the crash tests start from: a served document with its next version on the way, beside new ones."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.metadata import DocumentMetadata
from pipeline.wiring import Pipeline
from scripts.sources import source_uri
from tests.crash import worker
from tests.crash.worker import Look
from tests.pdfs import write_pdf, write_scan
from tests.pipelines import ORG, ingest

SERVED = "served.pdf"
"""Searchable in its first version; its second is on the way."""

_processes = multiprocessing.get_context("forkserver")  # a worker process in a tenth of a second
_processes.set_forkserver_preload(["tests.crash.worker"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    folder: Path
    old_version: str
    reached: Counter[str]
    """How often an undisturbed run reaches each failpoint."""
    undisturbed: Look
    _numbers: Any = dataclasses.field(default_factory=itertools.count)

    @classmethod
    def make(cls, folder: Path) -> Scene:
        home = folder / "home"
        pipeline = worker.open_worker(home)
        old_version = submit_all(pipeline, folder / "sources")
        pipeline.close()
        copy(home, folder / "undisturbed")
        assert run(worker.count, folder / "undisturbed", folder / "answer") == 0
        reached, undisturbed = pickle.loads((folder / "answer").read_bytes())
        return cls(folder=folder, old_version=old_version, reached=reached, undisturbed=undisturbed)

    def home(self) -> Path:
        """A home of one's own, in which all is submitted and nothing is done yet."""
        fresh = self.folder / f"case-{next(self._numbers)}"
        copy(self.folder / "home", fresh)
        return fresh

    def recover(self, home: Path) -> tuple[Look, Look]:
        """Finish the work undisturbed; what the home looked like before, and after."""
        answer = home / "answer"
        assert run(worker.recover, home, answer) == 0
        before, after = pickle.loads(answer.read_bytes())
        return before, after

    def check_shown(self, look: Look) -> None:
        """Versions are found whole, exactly those that were promoted, and the old one until then."""
        final = dict(self.undisturbed.shown)
        promoted = [name for name, versions in look.shown.items() if versions == final[name]]
        unpromoted = {name: versions for name, versions in look.shown.items() if name not in promoted}
        old = {SERVED: {self.old_version: list(range(5))}}
        assert unpromoted == ({} if SERVED in promoted else old)
        assert len(promoted) == look.current - 1

    def check_end(self, look: Look) -> None:
        for what, state in self.undisturbed.state.items():
            assert look.state[what] == state, what
        assert (look.shown, look.current) == (self.undisturbed.shown, self.undisturbed.current)
        assert look.charged == 0

    def clear(self, home: Path) -> None:
        shutil.rmtree(home)


def submit_all(pipeline: Pipeline, sources: Path) -> str:
    """The id of the version that is served; everything else is only submitted, under ids that are always the same."""
    sources.mkdir(exist_ok=True)
    served = write_pdf(sources / SERVED, _pages("first edition", 5))
    submit(pipeline, served, "first")
    (first,) = ingest_submitted(pipeline, "first")
    write_pdf(served, _pages("second edition", 5))
    submit(pipeline, served, "second")
    submit(pipeline, write_pdf(sources / "long.pdf", _pages("lathe", 6)), "long")
    submit(pipeline, write_pdf(sources / "short.pdf", _pages("mill", 3)), "short")
    submit(pipeline, write_scan(sources / "scan.pdf", ["serial number HX-4711"]), "scan")
    (sources / "broken.pdf").write_bytes(b"not a PDF")
    submit(pipeline, sources / "broken.pdf", "broken")
    return first


def submit(pipeline: Pipeline, path: Path, name: str) -> None:
    pipeline.ledger.submissions.submit(ORG, source_uri(path), DocumentMetadata(), submission_id=an_id(name))


def ingest_submitted(pipeline: Pipeline, *names: str) -> list[str]:
    ingest(pipeline)
    return [one.version_id or "" for one in pipeline.ledger.views.submissions([an_id(name) for name in names])]


def an_id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def copy(home: Path, to: Path) -> None:
    """Holes stay holes: the index maps far more than it holds."""
    subprocess.run(["cp", "-a", str(home), str(to)], check=True)


def run(target: Callable[..., None], *arguments: Any) -> int:
    """A worker process, from its start to its end: its exit code, negative for a signal."""
    process = _processes.Process(target=target, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def start(home: Path, lease_s: float, *kinds: str, **environment: str) -> subprocess.Popen[str]:
    """A worker process as a program, with failpoints armed as anybody arms them."""
    command = [sys.executable, "-m", "tests.crash.worker", str(home), str(lease_s), *kinds]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it ended with status {status} before it was stopped"


@contextlib.contextmanager
def opened(home: Path, lease_s: float = worker.LEASE_S, **overrides: Any) -> Any:
    with contextlib.closing(worker.open_worker(home, lease_s=lease_s, **overrides)) as pipeline:
        yield pipeline


def _pages(what: str, count: int) -> list[str]:
    return [f"manual torque {what} page {number}" for number in range(count)]
