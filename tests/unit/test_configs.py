"""The configuration files that we ship say what they claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.settings import Settings, load_settings

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_the_local_file_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGEGATE_HOME", raising=False)
    assert load_settings(CONFIGS / "local.yaml") == Settings()


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_file_is_valid(path: Path) -> None:
    load_settings(path)
