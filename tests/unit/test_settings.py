"""Settings come from the environment over a file over the defaults, and say what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError
from pipeline.settings import load_settings


def write(folder: Path, text: str) -> Path:
    path = folder / "profile.yaml"
    path.write_text(text)
    return path


def test_the_defaults_are_the_embedded_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAGEGATE_HOME", raising=False)
    settings = load_settings()
    assert settings.ledger_url == f"sqlite:///{tmp_path / '.pagegate' / 'ledger.sqlite'}"
    assert settings.encoder.name == "lexical"


def test_a_file_overrides_a_default_and_the_environment_overrides_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = write(tmp_path, "render:\n  dpi: 120\n  quality: 70\n")
    monkeypatch.setenv("PAGEGATE_RENDER__DPI", "200")
    render = load_settings(config).render
    assert (render.dpi, render.quality, render.max_pixels) == (200, 70, 4_000_000)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("render:\n  dpi: many\n", "render.dpi"),
        ("render:\n  dpi: 5\n", "render.dpi"),
        ("render:\n  resolution: 200\n", "render.resolution"),
        ("reender:\n  dpi: 150\n", "reender"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named.replace(".", r"\.")):
        load_settings(write(tmp_path, text))


@pytest.mark.parametrize("text", ["render: [", "just words", "- a\n- list\n"])
def test_a_file_that_is_not_settings_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"profile\.yaml"):
        load_settings(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no configuration file at"):
        load_settings(tmp_path / "absent.yaml")


def test_a_wrong_ledger_url_is_not_repeated_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEGATE_LEDGER__ATTEMPTS", "hunter2")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_settings_do_not_print_the_ledgers_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEGATE_LEDGER__URL", "mysql+pymysql://pagegate:hunter2@db/pagegate")
    assert "hunter2" not in repr(load_settings())


def test_secrets_may_lie_in_files_as_kubernetes_mounts_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounted = tmp_path / "..2026_01_01"
    mounted.mkdir()
    (mounted / "ledger__url").write_text("mysql+pymysql://pagegate:hunter2@db/pagegate\n")
    (mounted / "broker__url").write_text("amqp://pagegate:hunter3@mq/")
    (tmp_path / "..data").symlink_to(mounted.name)
    for name in ("ledger__url", "broker__url"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    monkeypatch.setenv("PAGEGATE_SECRETS_DIR", str(tmp_path))
    settings = load_settings()
    assert settings.ledger_url == "mysql+pymysql://pagegate:hunter2@db/pagegate"
    assert settings.broker is not None
    assert settings.broker.url.get_secret_value() == "amqp://pagegate:hunter3@mq/"
    monkeypatch.setenv("PAGEGATE_BROKER__URL", "amqp://other:hunter4@mq/")
    again = load_settings()
    assert again.broker is not None
    assert again.broker.url.get_secret_value() == "amqp://other:hunter4@mq/"
    assert "hunter" not in repr(again) + again.model_dump_json()


def test_a_folder_of_secrets_that_is_not_there_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAGEGATE_SECRETS_DIR", str(tmp_path / "absent"))
    with pytest.raises(ConfigurationError, match="PAGEGATE_SECRETS_DIR"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("ray: {address: 'a:6379'}\n", "ledger.url"),
        ("ray: {address: 'a:6379'}\nledger: {url: 'mysql+pymysql://u:p@h/d'}\n", "store.kind"),
        ("pools: {index: {size: 2}}\n", "pools.index.size"),
    ],
)
def test_a_combination_that_cannot_work_names_the_setting_to_change(tmp_path: Path, text: str, setting: str) -> None:
    with pytest.raises(ConfigurationError, match=setting.replace(".", r"\.")):
        load_settings(write(tmp_path, text))
