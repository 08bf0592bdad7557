"""A ledger on SQLite, and fakes of all that lies around it: sources, object store, index, broker."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.audit import Audit
from pipeline.domain import ArtifactRef, IndexBuild, Message, StageName
from pipeline.errors import ArtifactLost, BrokerUnavailable, IndexUnavailable, SourceMissing, StoreUnavailable
from pipeline.gate import run_gate
from pipeline.intake import Intake
from pipeline.messaging import receive, relay
from pipeline.pdf import PdfInfo
from pipeline.run_stage import run_stage
from pipeline.settings import PdfLimits, PoolSettings
from pipeline.stages import CODE_VERSIONS
from pipeline.stages.index import IndexStage
from pipeline.stores.memory_broker import MemoryBroker
from pipeline.stores.memory_index import MemoryIndex
from pipeline.stores.sql import SqlLedger
from tests import ledger_driver as driver
from tests.ledger_driver import LEASE_S, Clock
from tests.model.making import CONTENT_OF, DPI, PAGES, TITLE, MadeStage, OneTerm, options, source_of

WINDOW = 2
INTAKE, GATE, RELAY, CONSUMER = "intake", "gate", "relay", "consumer"
LEASED = (INTAKE, *(stage.value for stage in StageName), GATE)
"""Kinds of workers that hold a lease."""

Row = Mapping[str, Any]
TABLES: Mapping[str, tuple[str, ...]] = {
    "documents": ("id",),
    "submissions": ("id",),
    "versions": ("id",),
    "version_builds": ("version_id", "build_id"),
    "page_tasks": ("id",),
    "served_pages": ("version_id", "page_index"),
    "waivers": ("version_id", "page_index", "error_code"),
    "outbox": ("id",),
}
SHOWN = ("documents", "submissions", "version_builds", "served_pages", "waivers")
"""Tables on which it depends what is shown."""
Dump = Mapping[str, Mapping[Any, Row]]
"""Table → key → row."""


class Store:
    """`ObjectStore` in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.held: dict[str, tuple[bytes, int]] = {}
        """Key → content, and when it was last put."""
        self.down = False
        self.removals = 0

    def put(self, key: str, content: bytes) -> ArtifactRef:
        self._check()
        self.held[key] = content, self._clock()
        return ArtifactRef(key=key, sha256=hashlib.sha256(content).hexdigest(), size=len(content))

    def put_stream(self, key: str, stream: BinaryIO, sha256: str) -> ArtifactRef:
        return self.put(key, stream.read())

    def get(self, ref: ArtifactRef) -> bytes:
        self._check()
        if not self.has(ref):
            raise ArtifactLost(f"{ref.key} is not there", key=ref.key)
        return self.held[ref.key][0]

    def holds(self, ref: ArtifactRef) -> bool:
        self._check()
        return self.has(ref)

    def has(self, ref: ArtifactRef) -> bool:
        return ref.key in self.held and hashlib.sha256(self.held[ref.key][0]).hexdigest() == ref.sha256

    def keys(self, prefix: str = "", older_than_s: float = 0.0) -> Iterator[str]:
        self._check()
        before = self._clock() - int(older_than_s * 1e6)
        for key, (_, put_at) in sorted(self.held.items()):
            if key.startswith(prefix) and (not older_than_s or put_at < before):
                yield key

    def delete(self, key: str) -> None:
        self._check()
        self.held.pop(key, None)
        self.removals += 1

    def fetch(self, ref: ArtifactRef) -> Path:
        raise NotImplementedError

    def close(self) -> None: ...

    def _check(self) -> None:
        if self.down:
            raise StoreUnavailable("the object store is down")


class Index(MemoryIndex):
    down = False
    changes = 0

    def points(self, collection: str) -> Mapping[str, Any]:
        return self._points.get(collection, {})

    def _of(self, collection: str) -> Any:
        if self.down:
            raise IndexUnavailable("the index is down")
        return super()._of(collection)

    def upsert(self, collection: str, points: Any) -> None:
        self.changes += 1
        super().upsert(collection, points)

    def promote(self, collection: str, point_ids: Any, generation: int) -> None:
        self.changes += 1
        super().promote(collection, point_ids, generation)

    def demote(self, collection: str, document_id: str, generation: int) -> None:
        self.changes += 1
        super().demote(collection, document_id, generation)

    def delete(self, collection: str, point_ids: Any) -> None:
        self.changes += 1
        super().delete(collection, point_ids)


class Broker(MemoryBroker):
    down = False

    def publish(self, messages: Any) -> None:
        if self.down:
            raise BrokerUnavailable("the broker is down")
        super().publish(messages)


class Sources:
    """What lies at each URI now: the number of a content, 0 for nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.contents: dict[str, int] = {}
        self.down = False

    @contextlib.contextmanager
    def fetch(self, uri: str, limit_bytes: int) -> Iterator[Path]:
        if self.down:
            raise StoreUnavailable("the sources are down")
        content = self.contents.get(uri, 0)
        if not content:
            raise SourceMissing(f"{uri} is not there")
        yield self._folder / f"{content}.pdf"

    def list(self, uri: str) -> Iterator[str]:
        raise NotImplementedError


class Reader:
    def inspect(self, path: Path) -> PdfInfo:
        pages = PAGES[CONTENT_OF[hashlib.sha256(path.read_bytes()).hexdigest()]]
        labels = tuple(str(page + 1) for page in range(pages))
        return PdfInfo(page_count=pages, title=TITLE, page_labels=labels, repaired=False, attachments=(), xfa=False)


class World:
    """Everything that outlives a worker."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=_memory())
        path = Path(self._folder.name) / "ledger.sqlite"
        shutil.copy(_template() / "ledger.sqlite", path)
        self.clock = Clock()
        self.ledger = SqlLedger(f"sqlite:///{path}", CODE_VERSIONS, clock=self.clock)
        self.store = Store(self.clock)
        self.index = Index()
        self.broker = Broker()
        self.sources = Sources(_template())
        self.audit = Audit(ledger=self.ledger, store=self.store, index=self.index)  # type: ignore[arg-type]
        self.build = self._active_build()
        self.index.create(self.build.collection, self.build.contract.dim)
        self.lost: set[str] = set()
        """Keys and point ids that went by themselves, and are not back yet."""
        self._look = sqlite3.connect(path, isolation_level=None)
        self._look.row_factory = sqlite3.Row
        self._seen: tuple[int, Dump] | None = None

    def close(self) -> None:
        self._look.close()
        self.ledger.close()
        self._folder.cleanup()

    @property
    def parts(self) -> Mapping[str, Any]:
        """What can be down."""
        return {"store": self.store, "index": self.index, "broker": self.broker, "sources": self.sources}

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """For a look that no outage hinders."""
        before = {name: part.down for name, part in self.parts.items()}
        for part in self.parts.values():
            part.down = False
        yield
        for name, part in self.parts.items():
            part.down = before[name]

    def version(self) -> int:
        """Grows with every commit."""
        return int(self._look.execute("PRAGMA data_version").fetchone()[0])

    def dump(self) -> Dump:
        """All rows of the ledger that matter here."""
        version = self.version()
        if self._seen is None or self._seen[0] != version:
            self._seen = version, {table: self._rows(table, key) for table, key in TABLES.items()}
        return self._seen[1]

    def pending(self, kind: str) -> bool:
        """Whether a worker of this kind would find something."""
        if kind == INTAKE:
            return self.ledger.submissions.pending()
        if kind == GATE:
            return self.ledger.gates.pending()
        if kind == RELAY:
            return self.ledger.outbox.waiting() > 0
        return self.ledger.tasks.pending(StageName(kind))

    def work(self, kind: str, message: Message | None = None) -> Callable[[str], object]:
        """One unit of work of this kind, as the real workers do it."""
        ledger, store, index = self.ledger, self.store, self.index
        if kind == INTAKE:
            intake = Intake(
                ledger=ledger,
                store=store,  # type: ignore[arg-type]
                sources=self.sources,  # type: ignore[arg-type]
                reader=Reader(),  # type: ignore[arg-type]
                limits=PdfLimits(),
            )
            return lambda name: intake.run(LEASE_S, name)
        if kind == GATE:
            return lambda name: run_gate(ledger, store, index, LEASE_S, name)  # type: ignore[arg-type]
        if kind == RELAY:
            return lambda _: relay(ledger, self.broker)
        if kind == CONSUMER:
            assert message
            return lambda _: receive(ledger, message, ())
        pool = PoolSettings(window=WINDOW, lease_s=LEASE_S)
        stage = StageName(kind)
        made: Any = (
            IndexStage(store, index, OneTerm())  # type: ignore[arg-type]
            if stage == StageName.INDEX
            else MadeStage(stage, store)  # type: ignore[arg-type]
        )
        return lambda name: run_stage(made, ledger, store, pool, name)  # type: ignore[arg-type]

    def _rows(self, table: str, key: tuple[str, ...]) -> Mapping[Any, Row]:
        found = [dict(row) for row in self._look.execute(f"SELECT * FROM {table}")]
        if len(key) == 1:
            return {row[key[0]]: row for row in found}
        return {tuple(row[name] for name in key): row for row in found}

    def _active_build(self) -> IndexBuild:
        build = self.ledger.registry.active_build()
        assert build
        return build


def _memory() -> str | None:
    """A folder in memory, where the system has one: nothing here has to outlive the test."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@functools.cache
def _template_folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(dir=_memory())
    ledger = SqlLedger(f"sqlite:///{folder.name}/ledger.sqlite", CODE_VERSIONS, clock=Clock())
    ledger.migrate()
    ledger.registry.found(options(DPI[0]), driver.contract())
    ledger.close()
    for content in PAGES:
        (Path(folder.name) / f"{content}.pdf").write_bytes(source_of(content))
    return folder


def _template() -> Path:
    """A folder with an empty ledger and the sources, made once: migrating takes longer than an example."""
    return Path(_template_folder().name)
