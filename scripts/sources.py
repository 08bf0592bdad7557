"""What is named on the command line becomes source URIs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import ConfigurationError
from pipeline.protocols import RemoteSources


def source_uris(named: Sequence[str], remote: RemoteSources | None = None) -> list[str]:
    """URIs of the files and objects named, and of the PDFs below the folders named, each once, in order.

    Raises `ConfigurationError` for a path that is not there, and when there is nothing to do.
    """
    uris = list(dict.fromkeys(uri for name in named for uri in _uris(name, remote)))
    if not uris:
        raise ConfigurationError(f"no PDF below {', '.join(named)}")
    return uris


def source_uri(path: Path) -> str:
    """The document's name: absolute and without ``..``. Links are kept: what they point at may change."""
    return Path(os.path.abspath(path)).as_uri()  # noqa: PTH100 - `resolve` would follow links


def _uris(name: str, remote: RemoteSources | None) -> Iterator[str]:
    if not name.startswith("s3://"):
        return (source_uri(path) for path in _files(Path(name)))
    if remote is None:
        raise ConfigurationError(f"{name}: set store.kind to s3, whose endpoint and credentials it is read with")
    return remote.list(name)


def _files(named: Path) -> Iterator[Path]:
    if named.is_dir():
        below = (path for path in named.rglob("*") if path.suffix.lower() == ".pdf" and path.is_file())
        return iter(sorted(below))
    if not named.exists():
        raise ConfigurationError(f"{named} is not there")
    return iter([named])
