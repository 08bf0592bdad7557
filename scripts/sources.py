"""Paths on the command line become source URIs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import ConfigurationError


def source_uris(paths: Sequence[Path]) -> list[str]:
    """``file://`` URIs of the files named, and of the PDFs below the folders named, each once, in order.

    Raises `ConfigurationError` for a path that is not there, and when there is nothing to do.
    """
    uris = list(dict.fromkeys(source_uri(path) for named in paths for path in _files(named)))
    if not uris:
        raise ConfigurationError(f"no PDF below {', '.join(map(str, paths))}")
    return uris


def source_uri(path: Path) -> str:
    """The document's name: absolute and without ``..``. Links are kept: what they point at may change."""
    return Path(os.path.abspath(path)).as_uri()  # noqa: PTH100 - `resolve` would follow links


def _files(named: Path) -> Iterator[Path]:
    if named.is_dir():
        below = (path for path in named.rglob("*") if path.suffix.lower() == ".pdf" and path.is_file())
        return iter(sorted(below))
    if not named.exists():
        raise ConfigurationError(f"{named} is not there")
    return iter([named])
