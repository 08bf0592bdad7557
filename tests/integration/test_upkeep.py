"""The verbs of those who keep an installation in order, as commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.test_cli import Shell, drain_at
from tests.pipelines import open_at

ORG = ("--org", "acme")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home")


@pytest.fixture
def broken(shell: Shell, hostile_samples: Path, tmp_path: Path) -> Path:
    """A document of which one page cannot be read, and which was therefore rejected."""
    path = Path(shutil.copy(hostile_samples / "broken-page.pdf", tmp_path))
    assert shell.run("submit", path, *ORG).returncode == 0
    drain_at(shell.home)
    return path


def test_a_rejected_document_is_tried_again_and_then_passes_without_its_page(shell: Shell, broken: Path) -> None:
    (line,) = shell.lines("status", _document(shell, broken), *ORG)
    page = line["error"]["page_index"]
    assert (line["state"], page is not None) == ("rejected", True)

    assert "1 put back" in shell.run("retry", broken, *ORG).stdout
    drain_at(shell.home)
    refused = shell.run("waive", broken, "--page", str(page + 1), "--because", "why not", *ORG)
    assert (refused.returncode, "has not failed" in refused.stderr) == (2, True)
    waived = shell.run("waive", broken, "--page", str(page), "--because", "a torn divider sheet", "--by", "eva", *ORG)
    assert waived.returncode == 0, waived.stderr
    drain_at(shell.home)

    (line,) = shell.lines("status", _document(shell, broken), *ORG)
    assert line["state"] == "searchable"
    hits = shell.lines("search", "page", *ORG)
    assert {tuple(hit["missing_pages"]) for hit in hits} == {(page,)}
    assert "missing, by a person's decision" in shell.run("search", "page", *ORG).stdout
    assert f"page {page} waived" in shell.run("show", line["version_id"]).stdout


def _document(shell: Shell, path: Path) -> str:
    pipeline = open_at(shell.home)
    document = pipeline.ledger.submissions.document_of("acme", path.as_uri())
    pipeline.close()
    return document


def test_a_deleted_document_is_gone_at_once_and_swept_after_its_grace(shell: Shell, samples: Path) -> None:
    pdf = sorted(samples.glob("*.pdf"))[0]
    shell.run("submit", pdf, *ORG)
    drain_at(shell.home)
    assert shell.lines("search", "a", *ORG, "-k", "1")
    assert shell.run("delete", pdf, *ORG).returncode == 0
    assert shell.lines("search", "a", *ORG) == []
    assert shell.run("delete", pdf, *ORG).returncode == 2

    (dry,) = shell.lines("gc", "--grace-days", "0")
    assert (dry["dry_run"], dry["documents"]) == (True, 1)
    (young,) = shell.lines("gc", "--sweep")
    assert (young["objects"], young["points"], young["documents"]) == (0, 0, 0)
    (swept,) = shell.lines("gc", "--sweep", "--grace-days", "0")
    assert (swept["objects"], swept["points"]) == (dry["objects"], dry["points"])
    assert not [path for path in (shell.home / "objects").rglob("*") if path.is_file()]


def test_damage_is_found_told_and_put_right(shell: Shell, samples: Path) -> None:
    shell.run("submit", sorted(samples.glob("*.pdf"))[0], *ORG)
    drain_at(shell.home)
    assert shell.run("fsck").returncode == 0
    image = next((shell.home / "objects").rglob("*.jpg"))
    image.write_bytes(image.read_bytes()[:100])

    found = shell.run("fsck", "--json")
    assert (found.returncode, found.stdout.count("\n")) == (1, 1)
    repaired = shell.run("fsck", "--repair")
    assert (repaired.returncode, "1 findings, 1 put right" in repaired.stderr) == (0, True)
    drain_at(shell.home)
    assert shell.run("fsck").returncode == 0


@pytest.mark.parametrize("verb", ["retry", "delete"])
def test_what_is_not_there_is_a_usage_error(shell: Shell, verb: str) -> None:
    done = shell.run(verb, "7" * 36, *ORG)
    assert (done.returncode, "not_found" in done.stderr) == (2, True)
