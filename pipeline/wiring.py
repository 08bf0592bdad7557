"""The one module that joins settings, stores, engines and stages into a pipeline."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

from pipeline.domain import GateVerdict, StageName
from pipeline.errors import ConfigurationError, ContractMismatch, EngineUnavailable, ProfileMismatch
from pipeline.gate import run_gate
from pipeline.identity import describe_changes, digest
from pipeline.intake import Intake
from pipeline.pdf import PdfReader
from pipeline.protocols import (
    Broker,
    ObjectStore,
    OcrEngine,
    PageEncoder,
    RemoteSources,
    SparseEncoder,
    Stage,
    VectorIndex,
)
from pipeline.run_stage import WindowReport, run_stage
from pipeline.search import Searcher, check_contract
from pipeline.settings import PoolSettings, Settings
from pipeline.stages import CODE_VERSIONS, STAGES
from pipeline.stages.encode import EncodeStage
from pipeline.stages.index import IndexStage
from pipeline.stages.ocr import OcrStage
from pipeline.stages.render import RenderStage
from pipeline.stages.text import TextStage
from pipeline.stores.folder import FolderStore
from pipeline.stores.sql import SqlLedger

INTAKE = "intake"
GATE = "gate"

INTAKE_LEASE_S = 600.0
"""Reading a source of 500 MB and opening it, from a slow disk. A worker known to be dead loses it at once."""

POOL_OF = {INTAKE: "pdf", GATE: "index"} | {spec.name.value: spec.pool for spec in STAGES}
"""Kind of work → the pool whose actors do it."""


def kinds_of(pool: str) -> list[str]:
    """The kinds of work of a pool, the ones nearest to the end first: what is begun is finished before more is."""
    order = [GATE, *(spec.name.value for spec in reversed(STAGES)), INTAKE]
    return [kind for kind in order if POOL_OF[kind] == pool]


def profile_options(settings: Settings, sparse: SparseEncoder) -> dict[str, dict[str, Any]]:
    """The options that change artifacts, by stage, each with its stage's code version."""
    options: dict[str, Mapping[str, Any]] = {
        StageName.RENDER: settings.render.model_dump(mode="json"),
        StageName.TEXT: settings.text.model_dump(mode="json"),
        StageName.OCR: settings.ocr.model_dump(mode="json"),
        StageName.ENCODE: {},
        StageName.INDEX: {"sparse": dict(sparse.options)},
    }
    return {spec.name.value: {**options[spec.name], "version": spec.version} for spec in STAGES}


class Pipeline:
    """All parts of one installation, each made when it is first needed.

    One process owns it; it is not to be shared between threads. `index` replaces the embedded index, where
    another process owns that.
    """

    def __init__(self, settings: Settings, index: VectorIndex | None = None) -> None:
        self.settings = settings
        self._index = index
        self._made: dict[StageName, Stage] = {}
        settings.home.mkdir(parents=True, exist_ok=True)
        self.ledger = SqlLedger(settings.ledger_url, CODE_VERSIONS, settings.ledger.attempts)

    def open(self) -> Pipeline:
        """Prepare, and check the settings against what is in force.

        Raises `ProfileMismatch` or `ContractMismatch` before anything is begun.
        """
        self.prepare()
        self.check_encoder()
        self._check_profile()
        return self

    def prepare(self) -> None:
        """Make the first profile and the first build where there is none; on SQLite the schema too.

        Raises `ConfigurationError` if the schema of a shared database is not this release's: on a cluster one
        process migrates (`pagegate migrate`), while others may still work with the old one.
        """
        if self.ledger.database.sqlite:
            self.ledger.migrate()
        self.ledger.check_schema()
        self.ledger.registry.found(self.options(), self.encoder.contract)

    def close(self) -> None:
        """Stop the PDF child and release the stores, as far as they were used."""
        for name in ("reader", "index", "store", "sources"):
            part = self.__dict__.pop(name, None)
            if part is not None:
                part.close()
        self.ledger.close()

    def check_engines(self) -> None:
        """Raises `EngineUnavailable` if something that the settings name is not installed."""
        settings = self.settings
        needed: list[tuple[str, str, str]] = [
            (settings.ocr.engine, "ocr", f"ocr.engine: {settings.ocr.engine} (scanned pages need it)")
        ]
        needed += [("boto3", "cluster", "store.kind: s3")] if settings.store.kind == "s3" else []
        needed += [("pika", "cluster", "broker")] if settings.broker else []
        needed += [("qdrant_client", "cluster", "index.kind: qdrant")] if settings.index.kind == "qdrant" else []
        for module, extra, option in needed:
            if importlib.util.find_spec(module) is None:
                raise EngineUnavailable(
                    f"{option} needs {module}, which is not installed: pip install 'pagegate[{extra}]'"
                )

    def check_encoder(self) -> None:
        """Raises `ContractMismatch` unless the settings' encoder is that of the active build."""
        build = self.ledger.registry.active_build()
        if build is None:
            raise ContractMismatch("no index build is active: activate one")
        check_contract(build, self.encoder)

    def options(self) -> dict[str, dict[str, Any]]:
        return profile_options(self.settings, self.sparse)

    @functools.cached_property
    def reader(self) -> PdfReader:
        return PdfReader(self.settings.limits)

    @functools.cached_property
    def store(self) -> ObjectStore:
        options = self.settings.store
        if options.s3 is not None and options.kind == "s3":
            from pipeline.stores.s3 import S3Store

            return S3Store(options.s3, self.settings.home / "cache")
        return FolderStore(self.settings.home / "objects")

    @functools.cached_property
    def sources(self) -> RemoteSources | None:
        """Where ``s3://`` sources are read; None without an S3 store, whose endpoint and credentials they share."""
        options = self.settings.store
        if options.s3 is None or options.kind != "s3":
            return None
        from pipeline.stores.s3_sources import S3Sources

        return S3Sources(options.s3, self.settings.home / "incoming")

    def broker(self) -> Broker:
        """A connection of one's own to the broker of the settings. Raises `ConfigurationError` without one."""
        if self.settings.broker is None:
            raise ConfigurationError("no broker is set: give broker.url")
        from pipeline.stores.rabbitmq import RabbitmqBroker

        return RabbitmqBroker(self.settings.broker)

    @functools.cached_property
    def index(self) -> VectorIndex:
        if self._index is not None:
            return self._index
        options = self.settings.index
        if options.qdrant is not None and options.kind == "qdrant":
            from pipeline.stores.qdrant import QdrantIndex

            return QdrantIndex(options.qdrant)
        from pipeline.stores.edge import EdgeIndex

        return EdgeIndex(self.settings.home / "index", wait_s=30.0)

    @functools.cached_property
    def encoder(self) -> PageEncoder:
        from pipeline.engines.lexical import LexicalEncoder

        return LexicalEncoder()

    @functools.cached_property
    def sparse(self) -> SparseEncoder:
        from pipeline.engines.bm25 import Bm25Encoder

        return Bm25Encoder()

    @functools.cached_property
    def ocr(self) -> OcrEngine:
        self.check_engines()
        from pipeline.engines.rapid_ocr import RapidOcrEngine

        return RapidOcrEngine()

    @functools.cached_property
    def searcher(self) -> Searcher:
        return Searcher(
            ledger=self.ledger,
            store=self.store,
            index=self.index,
            encoder=self.encoder,
            sparse=self.sparse,
            options=self.settings.search,
        )

    def pool(self, kind: str) -> PoolSettings:
        pool: PoolSettings = getattr(self.settings.pools, POOL_OF[kind])
        return pool

    def run(self, kind: str, worker: str) -> WindowReport | None:
        """Do one window of one kind of work; None if there was none."""
        pool = self.pool(kind)
        if kind == INTAKE:
            intake = Intake(
                ledger=self.ledger,
                store=self.store,
                sources=self.sources,
                reader=self.reader,
                limits=self.settings.limits,
            )
            return WindowReport(kind=kind, done=1) if intake.run(INTAKE_LEASE_S, worker) else None
        if kind == GATE:
            verdict = run_gate(self.ledger, self.store, self.index, pool.lease_s, worker)
            settled = verdict in (GateVerdict.PROMOTED, GateVerdict.ACCEPTED, GateVerdict.REJECTED)
            return WindowReport(kind=kind, done=int(settled), message=verdict.value) if verdict else None
        return run_stage(self.stage(StageName(kind)), self.ledger, self.store, pool, worker)

    def pending(self, kind: str) -> bool:
        """Whether `run` would find something of this kind."""
        if kind == INTAKE:
            return self.ledger.submissions.pending()
        if kind == GATE:
            return self.ledger.gates.pending()
        return self.ledger.tasks.pending(StageName(kind))

    def _check_profile(self) -> None:
        profile = self.ledger.registry.profile()
        wanted = self.options()
        if profile is None or profile.digest == digest(wanted):
            return
        changes = describe_changes(profile.options, wanted)
        raise ProfileMismatch(
            f"the settings differ from profile {profile.revision}, which is in force: {changes}. Set them back, or "
            "run `pagegate profile --adopt`, which redoes the stages that these options change"
        )

    def stage(self, name: StageName) -> Stage:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: StageName) -> Stage:
        match name:
            case StageName.RENDER:
                return RenderStage(self.store, self.reader)
            case StageName.TEXT:
                return TextStage(self.store)
            case StageName.OCR:
                return OcrStage(self.store, self.ocr)
            case StageName.ENCODE:
                return EncodeStage(self.store, self.encoder)
            case StageName.INDEX:
                return IndexStage(self.store, self.index, self.sparse)
