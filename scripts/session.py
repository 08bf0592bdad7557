"""What every command begins with: settings, an open pipeline, and the way to the index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from actors.environment import join_ray
from actors.home import Home
from pipeline.errors import ConfigurationError
from pipeline.protocols import VectorIndex
from pipeline.settings import Settings, load_settings
from pipeline.wiring import Pipeline

ORG_CHARS = 255


@contextlib.contextmanager
def open_pipeline(config: Path | None) -> Iterator[Pipeline]:
    """A pipeline whose settings agree with those in force, closed at the end."""
    pipeline = Pipeline(load_settings(config))
    try:
        yield pipeline.open()
    finally:
        pipeline.close()


@contextlib.contextmanager
def open_ledger(config: Path | None) -> Iterator[Pipeline]:
    """A pipeline to ask the ledger with; settings that differ from those in force do not matter to that."""
    pipeline = Pipeline(load_settings(config))
    try:
        pipeline.prepare()
        yield pipeline
    finally:
        pipeline.close()


@contextlib.contextmanager
def open_for_search(config: Path | None) -> Iterator[Pipeline]:
    """As `open_pipeline`; the index is asked through its owner where another process is at work.

    A profile that differs does not matter to a question; an encoder that differs does.
    """
    settings = load_settings(config)
    with _index_owner(settings) as index:
        pipeline = Pipeline(settings, index)
        try:
            pipeline.prepare()
            pipeline.check_encoder()
            yield pipeline
        finally:
            pipeline.close()


@contextlib.contextmanager
def _index_owner(settings: Settings) -> Iterator[VectorIndex | None]:
    """The embedded index through whoever is at work in this home; None if nobody is, or not yet on Ray."""
    home = Home(settings.home)
    embedded = settings.index.kind == "edge" and settings.home.is_dir()
    cluster = home.cluster() if embedded and home.busy() else None
    if cluster is None:
        yield None
        return
    address, token = cluster
    join_ray(token)

    import ray

    from actors.cluster import connect, find_index

    connect(address)
    try:
        yield find_index()
    finally:
        ray.shutdown()


def the_org(settings: Settings, org: str | None) -> str:
    """The tenant of this command. Raises `ConfigurationError` if none is named."""
    named = org or settings.org
    if not named:
        raise ConfigurationError("no tenant is named: give --org, or set PAGEGATE_ORG")
    if len(named) > ORG_CHARS or not named.isprintable():
        raise ConfigurationError(f"a tenant's name has at most {ORG_CHARS} printable characters: {named[:40]!r} …")
    return named
