"""Processes killed at random, over and over, while new versions arrive: what has to hold meanwhile and at the end.

`python -m scripts.soak` works in a folder that it goes on from when it was interrupted. Which documents change, what
is killed and after how long follow from the seed; what a process was doing at that moment does not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from actors.home import Home
from pipeline.domain import ArtifactRef
from pipeline.failpoints import STAGES, VARIABLE
from pipeline.identity import source_key, version_id
from pipeline.inline import drain
from pipeline.metadata import DocumentMetadata, Scope
from pipeline.settings import LedgerSettings, load_settings
from pipeline.wiring import Pipeline

ORG = "soak"
DOCUMENTS = 8
MOST_PAGES = 24
"""Enough that a kill mostly meets somebody at work."""
QUESTION = "manual torque"
ATTEMPTS = 100
"""A page that happens to be alone in its window each time is charged, and must not be given up for that."""
POINTS = (
    *(f"{stage}.{effect}" for stage in STAGES if stage != "ocr" for effect in ("claimed", "processed", "settled")),
    *(f"{kind}.put" for kind in ("render", "text", "encode")),
    *("index.sending", "index.upserted", "folder.written", "folder.renamed", "intake.accepted"),
    *(f"gate.{effect}" for effect in ("claimed", "read_back", "promoted", "settled", "demoted")),
)
ACTOR_S = 30.0
"""How long an actor to kill is waited for."""
PROGRESS_KILLS = 10

NOT_WHOLE = """
    SELECT count(*) FROM documents JOIN versions ON versions.id = current_version_id
    JOIN version_builds ON version_builds.version_id = versions.id
    WHERE state != 'accepted' OR page_count != (
        SELECT count(*) FROM served_pages WHERE served_pages.version_id = versions.id AND page_index < page_count)
"""
"""Current versions that were not accepted, or whose manifest is not that of all their pages."""
NOT_SEARCHABLE = "SELECT count(*) FROM submissions WHERE state != 'searchable'"
TOLD_TWICE = "SELECT count(*) FROM (SELECT 1 FROM outbox GROUP BY submission_id, kind HAVING count(*) > 1)"
INDEXED = "SELECT count(*) FROM page_tasks WHERE stage = 'index' AND state = 'done'"
CHARGED = "SELECT coalesce(sum(attempts), 0) FROM page_tasks"
SERVED = """
    SELECT source_uri, version_id, page_index, point_id, image, text FROM served_pages
    JOIN documents ON current_version_id = version_id ORDER BY page_index
"""

Shown = Mapping[str, Mapping[str, Sequence[int]]]


@dataclasses.dataclass(kw_only=True, slots=True)
class State:
    """What a soak goes on from."""

    seed: int
    kills: int = 0
    seconds: float = 0.0
    starts: int = 0
    lost: int = 0
    doubled: int = 0
    early: int = 0
    editions: dict[str, int] = dataclasses.field(default_factory=dict)
    """Document → how many times it was submitted."""

    def summary(self) -> str:
        return (
            f"{self.kills} kills, {self.lost} lost, {self.doubled} doubled, {self.early} shown too early, "
            f"seed {self.seed}, {self.seconds:.0f} s"
        )

    @property
    def wrong(self) -> int:
        return self.lost + self.doubled + self.early


class Soak:
    """One installation, and whoever is at work in it."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._home = folder / "home"
        self._file = folder / "state.json"
        self.state = self._load(seed)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, kills: int) -> None:
        try:
            while self.state.kills < kills:
                self._one(random.Random(f"{self.state.seed}:{self.state.kills}"))  # noqa: S311 - to be repeated
                if self.state.kills % PROGRESS_KILLS == 0:
                    print(self.state.summary(), file=sys.stderr, flush=True)
            self._finish()
        finally:
            self._end_worker()

    def _one(self, draw: random.Random) -> None:
        """Submit something, let the worker work for a moment, and kill one of its processes."""
        begun = time.monotonic()
        with self._opened(self._home) as pipeline:
            for number in draw.sample(range(DOCUMENTS), draw.randint(1, 3)):
                self._submit(pipeline, f"{number}.pdf", draw)
            self._look_at_ledger(pipeline)
        if self._process is None or self._process.poll() is not None:
            self._start(draw)
        time.sleep(draw.uniform(0.1, 2.5))
        if draw.random() < 0.2 or not self._kill_actor(draw):
            self._kill_supervisor()
            self._look()
        self.state.kills += 1
        self.state.seconds += time.monotonic() - begun
        self._save()

    def _submit(self, pipeline: Pipeline, name: str, draw: random.Random) -> None:
        edition = self.state.editions.get(name, 0) + 1
        self.state.editions[name] = edition
        put(
            pipeline, name, edition, pages=draw.randint(1, MOST_PAGES), submission=f"{self.state.seed}:{name}:{edition}"
        )

    def _start(self, draw: random.Random) -> None:
        """Every third worker has a failpoint armed, which every actor of it meets on its own."""
        self.state.starts += 1
        environment = {**os.environ, "PAGEGATE_HOME": str(self._home), "PAGEGATE_LEDGER__ATTEMPTS": str(ATTEMPTS)}
        if self.state.starts % 3 == 0:
            environment[VARIABLE] = f"{draw.choice(POINTS)}:{draw.randint(2, 30)}"
        with (self._folder / "worker.log").open("ab") as log:
            command = [sys.executable, "-m", "scripts.cli", "worker"]
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603

    def _kill_actor(self, draw: random.Random) -> bool:
        """False if there was none for long: the worker ended, or waits before it makes new ones."""
        deadline = time.monotonic() + ACTOR_S
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            found = sorted(self._actors(), key=lambda process: process.pid)
            if found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    draw.choice(found).kill()
                    return True
            time.sleep(0.1)
        return False

    def _actors(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_actor = "StageActor" in "".join(process.cmdline()[:1])
                if is_actor and process.environ().get("PAGEGATE_HOME") == str(self._home):
                    yield process

    def _kill_supervisor(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _end_worker(self) -> None:
        self._kill_supervisor()
        home = Home(self._home)
        if home.acquire():
            home.kill_orphans()
            home.release()

    def _look(self) -> None:
        """Nobody is at work: the index can be asked too."""
        self._end_worker()
        with self._opened(self._home) as pipeline:
            self._look_at_ledger(pipeline)
            self.state.early += differences(found(pipeline), shown(self._home))

    def _look_at_ledger(self, pipeline: Pipeline) -> None:
        """What is current was accepted, is whole, and its objects are there; a served document stays served."""
        self.state.early += number(self._home, NOT_WHOLE)
        self.state.early += sum(not pipeline.store.holds(ref) for ref in artifacts(self._home))

    def _finish(self) -> None:
        """Let the work end undisturbed, and compare with a run that was never disturbed."""
        begun = time.monotonic()
        self._end_worker()
        command = [sys.executable, "-m", "scripts.cli", "worker", "--until-idle"]
        environment = {**os.environ, "PAGEGATE_HOME": str(self._home), "PAGEGATE_LEDGER__ATTEMPTS": str(ATTEMPTS)}
        with (self._folder / "worker.log").open("ab") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)  # noqa: S603
        self._look()
        with self._opened(self._home) as pipeline, self._opened(self._folder / "reference") as reference:
            self._ingest_latest(pipeline, reference)
            self.state.lost += number(self._home, NOT_SEARCHABLE)
            self.state.lost += differences(served(self._home), served(reference.settings.home))
            self.state.doubled += number(self._home, TOLD_TWICE) + unaccounted_points(pipeline)
            print(f"{number(self._home, CHARGED)} attempts charged to pages leased alone", file=sys.stderr)
        self.state.seconds += time.monotonic() - begun
        self._save()

    def _ingest_latest(self, pipeline: Pipeline, reference: Pipeline) -> None:
        """The latest content of each document, read from our store, as a new installation would take it in."""
        for name in self.state.editions:
            document = pipeline.ledger.submissions.document_of(ORG, uri(name))
            for sent in pipeline.ledger.views.submissions_of(document, ORG):
                if sent.revision == self.state.editions[name] and sent.upload:
                    with pipeline.store.fetch(sent.upload).open("rb") as stream:
                        reference.store.put_stream(sent.upload.key, stream, sent.upload.sha256)
                    reference.ledger.submissions.submit(
                        ORG, uri(name), DocumentMetadata(), submission_id=sent.id, upload=sent.upload
                    )
        drain(reference)

    @contextlib.contextmanager
    def _opened(self, home: Path) -> Iterator[Pipeline]:
        pipeline = Pipeline(load_settings(home=home, ledger=LedgerSettings(attempts=ATTEMPTS)))
        with contextlib.closing(pipeline):
            yield pipeline.open()

    def _load(self, seed: int) -> State:
        if self._file.exists():
            return State(**json.loads(self._file.read_text()))
        return State(seed=seed)

    def _save(self) -> None:
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(json.dumps(dataclasses.asdict(self.state)))
        unfinished.replace(self._file)


def put(pipeline: Pipeline, name: str, edition: int, pages: int, submission: str) -> None:
    """Submit an edition with bytes of its own, so that it cannot be mistaken for the next. Again: nothing."""
    content = pdf([f"{QUESTION} {name} edition {edition} page {page}" for page in range(pages)])
    sha256 = hashlib.sha256(content).hexdigest()
    document = pipeline.ledger.submissions.document_of(ORG, uri(name))
    ref = ArtifactRef(key=source_key(document, version_id(document, sha256), sha256), sha256=sha256, size=len(content))
    pipeline.store.put_stream(ref.key, io.BytesIO(content), sha256)
    submission_id = str(uuid.uuid5(uuid.NAMESPACE_OID, submission))
    pipeline.ledger.submissions.submit(ORG, uri(name), DocumentMetadata(), submission_id=submission_id, upload=ref)


def uri(name: str) -> str:
    return f"file:///soak/{name}"


def pdf(lines: Sequence[str]) -> bytes:
    """A PDF with one line of Helvetica a page: ISO 32000-1, annex H.3."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(lines)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(lines)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, line in enumerate(lines):
        drawn = f"BT /F1 12 Tf 72 700 Td ({line}) Tj ET"
        objects += [
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
            f"/Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    return _assembled(objects)


def _assembled(objects: Sequence[str]) -> bytes:
    content, offsets = "%PDF-1.4\n", []
    for number, written in enumerate(objects, start=1):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{written}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF\n"
    return f"{content}xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode("ascii")


def found(pipeline: Pipeline) -> Shown:
    """Source → version → its pages that a search finds."""
    pages: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for hit in pipeline.searcher.search(Scope(org=ORG), QUESTION, 1_000):
        pages[hit.source][hit.version_id].append(hit.page_index)
    return {source: {version: sorted(of) for version, of in versions.items()} for source, versions in pages.items()}


def shown(home: Path) -> Shown:
    """The same, as the ledger has it."""
    pages: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for source, version, page, *_ in rows(home, SERVED):
        pages[source][version].append(page)
    return pages


def served(home: Path) -> Mapping[str, list[Any]]:
    """Source → all that its manifest says, page by page."""
    manifest = defaultdict(list)
    for source, *row in rows(home, SERVED):
        manifest[source].append(row)
    return manifest


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> int:
    """In how many documents they differ."""
    return sum(ours.get(source) != theirs.get(source) for source in {*ours, *theirs})


def artifacts(home: Path) -> Iterator[ArtifactRef]:
    """Image and text of each page that is served."""
    for *_, image, text in rows(home, SERVED):
        yield ArtifactRef(**json.loads(image))
        yield ArtifactRef(**json.loads(text))


def unaccounted_points(pipeline: Pipeline) -> int:
    """Points beyond, or short of, one for each page that was indexed."""
    build = pipeline.ledger.registry.active_build()
    points = list(pipeline.index.point_ids(build.collection)) if build else []
    return abs(len(points) - number(pipeline.settings.home, INDEXED))


def rows(home: Path, query: str) -> list[Any]:
    """Read with SQL of our own: what is checked is not to be read by the code that is checked."""
    with contextlib.closing(sqlite3.connect(f"file:{home / 'ledger.sqlite'}?mode=ro", uri=True, timeout=30)) as ledger:
        return ledger.execute(query).fetchall()


def number(home: Path, query: str) -> int:
    return int(rows(home, query)[0][0])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="how many, those before an interruption included")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("build/soak"), help="emptied by nobody: remove it yourself")
    options: Any = parser.parse_args(arguments)
    soak = Soak(options.folder.absolute(), options.seed)
    soak.run(options.kills)
    print(soak.state.summary())
    return 1 if soak.state.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
