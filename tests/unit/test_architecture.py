"""The arrows between the folders, read from the imports themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "actors", "gpu", "scripts")

OWNERS = {
    "ray": ("actors/", "scripts/processing.py", "scripts/session.py"),
    "torch": ("gpu/",),
    "transformers": ("gpu/",),
    "colpali_engine": ("gpu/",),
    "pymupdf": ("pipeline/pdf/", "scripts/samples.py"),
    "qdrant_edge": ("pipeline/stores/edge.py",),
    "qdrant_client": ("pipeline/stores/qdrant",),
    "grpc": ("pipeline/stores/qdrant",),
    "pika": ("pipeline/stores/rabbitmq",),
    "boto3": ("pipeline/stores/s3",),
    "botocore": ("pipeline/stores/s3",),
    "sqlalchemy": ("pipeline/stores/sql/",),
    "alembic": ("pipeline/stores/sql/",),
    "rapidocr": ("pipeline/engines/",),
}
"""Who may import what: a heavy or changing dependency sits behind one folder or file."""

FORBIDDEN = (
    ("pipeline/", ("actors", "gpu", "scripts")),
    ("gpu/", ("actors", "scripts")),
    ("actors/", ("scripts",)),
    ("pipeline/stages/", ("pipeline.stores", "pipeline.engines", "pipeline.wiring")),
    ("pipeline/stores/", ("pipeline.stages", "pipeline.engines", "pipeline.wiring")),
    ("pipeline/engines/", ("pipeline.stages", "pipeline.stores", "pipeline.wiring")),
    ("pipeline/pdf/", ("pipeline.stages", "pipeline.stores", "pipeline.engines", "pipeline.wiring")),
    ("pipeline/domain.py", ("pipeline.stages", "pipeline.stores", "pipeline.engines", "pipeline.settings")),
)
"""Arrows that must not exist: files below the first may not import the others."""


def imports_of(source: str) -> Iterator[str]:
    """Every module that a file imports, wherever in it, as an absolute dotted name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources() -> dict[str, str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text() for path in files}


def turned_arrows(files: dict[str, str]) -> list[str]:
    found = []
    for name, source in files.items():
        for module in imports_of(source):
            package = module.split(".")[0]
            if package in OWNERS and not name.startswith(OWNERS[package]):
                found.append(f"{name} imports {module}")
            found += [
                f"{name} imports {module}"
                for place, targets in FORBIDDEN
                if name.startswith(place)
                for target in targets
                if f"{module}.".startswith(f"{target}.")
            ]
    return found


def test_every_arrow_runs_the_way_that_the_design_says() -> None:
    assert turned_arrows(sources()) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("pipeline/gate.py", "from actors.pool import ActorPool"),
        ("pipeline/stages/text.py", "from pipeline.stores.folder import FolderStore"),
        ("pipeline/stores/edge.py", "from pipeline.engines.lexical import LexicalEncoder"),
        ("pipeline/search.py", "def later():\n    import torch"),
        ("actors/pool.py", "from scripts.cli import app"),
        ("pipeline/gate.py", "import pymupdf"),
    ],
)
def test_a_turned_arrow_is_found(name: str, source: str) -> None:
    assert len(turned_arrows(sources() | {name: source})) == 1


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pipeline", {"ray", "torch", "pymupdf", "sqlalchemy", "mineru", "pydantic"}),
        (
            "pipeline.wiring",
            {"ray", "torch", "pymupdf", "qdrant_edge", "qdrant_client", "grpc", "boto3", "rapidocr", "mineru"},
        ),
        ("actors", {"torch", "transformers", "mineru"}),
        ("actors.supervisor", {"torch", "transformers", "pymupdf", "mineru"}),
        ("actors.home", {"ray"}),
        ("actors.environment", {"ray"}),
        ("scripts.cli", {"ray", "torch", "pymupdf", "rapidocr"}),
    ],
)
def test_importing_is_light(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & {absent!r}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert loaded.stdout.split() == []
