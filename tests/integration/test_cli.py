"""The command line, as a person runs it: real processes, real exit codes, Ray pools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.home import Home
from pipeline.inline import drain
from tests.pdfs import write_pdf
from tests.pipelines import ingest, open_at

pytestmark = [pytest.mark.timeout(240)]


class Shell:
    """Runs `pagegate` with one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def run(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PAGEGATE_")}
        environment = kept | {"PAGEGATE_HOME": str(self.home), "COLUMNS": "60"} | variables
        command = [sys.executable, "-m", "scripts.cli", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def lines(self, *arguments: str | Path) -> list[dict[str, Any]]:
        done = self.run(*arguments, "--json")
        assert done.returncode in (0, 1), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def ingested(
    samples: Path, hostile_samples: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Shell, subprocess.CompletedProcess[str]]:
    """A home into which good and bad documents were ingested by the command, through Ray."""
    folder = tmp_path_factory.mktemp("cli")
    for path in [*samples.glob("*.pdf"), *hostile_samples.iterdir()]:
        shutil.copy(path, folder)
    shell = Shell(tmp_path_factory.mktemp("home"))
    return shell, shell.run("ingest", folder, "--org", "demo", "--json")


@pytest.mark.ray
def test_ingest_ends_every_document_and_says_how(
    ingested: tuple[Shell, subprocess.CompletedProcess[str]],
) -> None:
    _, done = ingested
    lines = {Path(line["source"]).name: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stderr
    assert {name: line["state"] for name, line in lines.items() if line["state"] != "failed"} == {
        "HX-200-manual.pdf": "searchable",
        "lockout-policy.pdf": "searchable",
        "%E7%94%B5%E6%B0%94%E5%AE%89%E5%85%A8%E8%A7%84%E7%A8%8B.pdf": "searchable",
        "broken-page.pdf": "rejected",
    }
    manual, broken = lines["HX-200-manual.pdf"], lines["broken-page.pdf"]
    assert set(manual) >= {"source", "submission_id", "document_id", "version_id", "state", "pages", "error", "seconds"}
    assert (manual["pages"], manual["error"]) == (12, None)
    assert (broken["error"]["code"], broken["error"]["stage"], broken["error"]["page_index"]) == (
        "page_broken",
        "render",
        1,
    )
    assert "documents 8/8" in done.stderr or "8 documents" in done.stderr


@pytest.mark.ray
def test_search_prints_evidence_pages(ingested: tuple[Shell, object]) -> None:
    shell, _ = ingested
    (best, *_) = shell.lines("search", "新机床运行多少小时后第一次更换液压油？", "--org", "demo", "-k", "3")
    assert set(best) >= {
        "rank",
        "score",
        "score_label",
        "document_id",
        "version_id",
        "source",
        "page_index",
        "page_label",
        "text_source",
        "snippet",
        "image_key",
    }
    assert (best["page_index"], best["page_label"]) == (7, "5")
    assert (shell.home / "objects" / best["image_key"]).is_file()
    assert shell.lines("search", "液压油", "--org", "somebody-else") == []
    shown = shell.run("search", "drive wheel hub torque", "--org", "demo")
    assert "printed 6" in shown.stdout


@pytest.mark.ray
def test_status_counts_and_show_explains(ingested: tuple[Shell, subprocess.CompletedProcess[str]]) -> None:
    shell, done = ingested
    (status,) = shell.lines("status", "--org", "demo")
    assert status["documents_searchable"] == 3
    assert status["submissions"] == {"searchable": 3, "rejected": 1, "failed": 4}
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    manual = next(line for line in lines if line["pages"] == 12)
    pages = shell.lines("show", manual["version_id"])
    assert [page["page_label"] for page in pages][:4] == ["i", "ii", "iii", "1"]
    assert [(page["page_index"], page["verdict"]) for page in pages if page["verdict"] != "good"] == [
        (10, "blank"),
        (11, "no_text"),
    ]
    assert pages[11]["text_source"] == "ocr"
    assert pages[11]["stages"]["ocr"]["state"] == "done"
    assert "accepted" in shell.run("show", manual["document_id"]).stdout
    (submission,) = shell.lines("status", manual["submission_id"])
    assert submission["state"] == "searchable"


@pytest.mark.ray
def test_eval_measures_the_search(ingested: tuple[Shell, object], samples: Path) -> None:
    shell, _ = ingested
    records = {record["group"]: record for record in shell.lines("eval", samples / "questions.jsonl", "--org", "demo")}
    assert records["all"]["questions"] == 13
    assert records["all"]["recall@10"]["mean"] == 1.0
    assert records["all"]["recall@10"]["low"] <= records["all"]["recall@10"]["mean"]
    assert records["no answer"]["questions"] == 2


@pytest.mark.ray
def test_the_same_command_again_computes_nothing(ingested: tuple[Shell, subprocess.CompletedProcess[str]]) -> None:
    shell, done = ingested
    before = shell.lines("status")[0]["tasks"]
    source = Path(json.loads(done.stdout.splitlines()[0])["source"].removeprefix("file://")).parent
    again = shell.run("ingest", source, "--org", "demo", "--json")
    assert again.returncode == 1
    assert shell.lines("status")[0]["tasks"] == before


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home")


def test_without_a_tenant_nothing_is_done(shell: Shell, tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", ["alpha"])
    for command in (["ingest", path], ["submit", path], ["search", "alpha"]):
        done = shell.run(*command)
        assert done.returncode == 2
        assert "--org" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ingest", "absent.pdf", "--org", "a"], "absent.pdf is not there"),
        (["ingest"], "Missing argument"),
        (["search", "x", "--org", "a", "-k", "0"], "'-k'"),
        (["status", "no-such-id"], "no submission or document"),
        (["show", "no-such-id"], "no version"),
        (["eval", "absent.jsonl", "--org", "a"], "cannot be read"),
        (["status", "--config", "absent.yaml"], "no configuration file"),
        (["dance"], "No such command"),
    ],
)
def test_a_wrong_command_says_what_is_wrong_and_exits_2(shell: Shell, arguments: list[str], said: str) -> None:
    done = shell.run(*arguments)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())


def test_a_ledger_that_cannot_be_reached_exits_3_and_keeps_its_password(shell: Shell) -> None:
    pytest.importorskip("pymysql")
    url = "mysql+pymysql://pagegate:hunter2@127.0.0.1:1/pagegate"
    done = shell.run("status", PAGEGATE_LEDGER__URL=url)
    assert done.returncode == 3
    assert "ledger_unavailable" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_changed_options_are_refused_until_they_are_adopted(shell: Shell, tmp_path: Path) -> None:
    pipeline = open_at(shell.home)
    ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha"]), org="demo")
    pipeline.close()
    changed: Mapping[str, str] = {"PAGEGATE_RENDER__DPI": "100"}
    refused = shell.run("ingest", tmp_path / "a.pdf", "--org", "demo", **changed)
    assert refused.returncode == 2
    assert "render.dpi: 150 → 100" in " ".join(refused.stderr.split())
    assert shell.run("search", "alpha", "--org", "demo", **changed).returncode == 0  # a question is not concerned
    assert shell.run("status", **changed).returncode == 0  # nor is one who only looks
    adopted = shell.run("profile", "--adopt", "--json", **changed)
    assert json.loads(adopted.stdout)["revision"] == 2
    assert shell.run("submit", tmp_path / "a.pdf", "--org", "demo", **changed).returncode == 0


def test_submit_only_registers(shell: Shell, tmp_path: Path) -> None:
    (line,) = shell.lines("submit", write_pdf(tmp_path / "a.pdf", ["alpha"]), "--org", "demo")
    assert (line["state"], line["version_id"]) == ("queued", None)
    assert shell.lines("status")[0]["submissions"] == {"queued": 1}


def test_a_folder_is_searched_for_pdfs_whatever_the_case_of_their_extension(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    (folder / "deep").mkdir(parents=True)
    write_pdf(folder / "deep" / "A.PDF", ["alpha"])
    (folder / "notes.txt").write_text("not a PDF")
    sources = [line["source"] for line in shell.lines("submit", folder, folder / "deep", "--org", "demo")]
    assert sources == [(folder / "deep" / "A.PDF").as_uri()]


def test_help_reads_like_a_manual(shell: Shell) -> None:
    shown = shell.run("--help").stdout
    for verb in ("ingest", "submit", "worker", "status", "show", "search", "eval", "profile"):
        assert verb in shown
        assert shell.run(verb, "--help").returncode == 0


@pytest.mark.ray
def test_a_search_whose_index_owner_has_just_gone_says_so_soon(shell: Shell, tmp_path: Path) -> None:
    """The home is locked and an address is announced, but no Ray answers there."""
    pipeline = open_at(shell.home)
    ingest(pipeline, write_pdf(tmp_path / "a.pdf", ["alpha"]), org="demo")
    pipeline.close()
    home = Home(shell.home)
    assert home.acquire()
    home.announce("127.0.0.1:1", "token")
    begun = time.monotonic()
    done = shell.run("search", "alpha", "--org", "demo")
    assert (done.returncode, time.monotonic() - begun < 20) == (3, True)
    assert "ray_unavailable" in done.stderr
    home.release()
    assert shell.run("search", "alpha", "--org", "demo").returncode == 0


def drain_at(home: Path) -> None:
    """What a worker would do, without the seconds that Ray takes to start."""
    pipeline = open_at(home)
    drain(pipeline)
    pipeline.close()


def test_what_is_known_of_a_document_is_shown_and_narrows_a_search(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    standard = write_pdf(tmp_path / "standard.pdf", ["alpha torque"])
    known = ["--title", "Presses", "--type", "standard", "--effective", "2024-05-01", "--expired", "2025-05-01"]
    known += ["--label", "presses", "--label", "safety", "--attribute", "number=GB 5226"]
    shell.run("submit", standard, "--org", "acme", *known)
    drain_at(shell.home)
    (line,) = shell.lines("ingest", standard, "--org", "acme", *known)
    assert line["metadata"] == {
        "title": "Presses",
        "type": "standard",
        "effective": "2024-05-01",
        "expired": "2025-05-01",
        "labels": ["presses", "safety"],
        "attributes": {"number": "GB 5226"},
    }
    shown = shell.run("show", line["version_id"]).stdout
    assert all(
        words in shown for words in ("Presses  (", "type: standard", "labels: presses, safety", "number=GB 5226")
    )

    def finds(*scope: str) -> int:
        return len(shell.lines("search", "alpha", "--org", "acme", *scope))

    assert finds() == finds("--type", "standard") == finds("--label", "lathes", "--label", "safety") == 1
    assert finds("--as-of", "2024-05-01") == finds("--as-of", "2025-04-30") == 1
    assert finds("--type", "manual") == finds("--label", "lathes") == 0
    assert finds("--as-of", "2024-04-30") == finds("--as-of", "2025-05-01") == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--expired", "2024-01-01", "--effective", "2024-01-01"], "expired"),
        (["--effective", "yesterday"], "--effective"),
        (["--attribute", "number"], "NAME=VALUE"),
        (["--label", " "], "labels"),
        (["--title", ""], "title"),
    ],
)
def test_metadata_that_say_nothing_sensible_are_a_usage_error(options: list[str], named: str, tmp_path: Path) -> None:
    done = Shell(tmp_path / "home").run("submit", write_pdf(tmp_path / "a.pdf", ["a"]), "--org", "acme", *options)
    assert (done.returncode, named in done.stderr) == (2, True)


def test_sources_of_a_bucket_need_a_store_that_can_read_them(tmp_path: Path) -> None:
    done = Shell(tmp_path / "home").run("submit", "s3://incoming/acme/", "--org", "acme")
    assert (done.returncode, "store.kind" in done.stderr) == (2, True)


def test_the_embedded_set_up_migrates_itself_and_has_little_to_sweep(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    assert shell.run("migrate").returncode == 0
    swept = shell.run("gc")
    assert (swept.returncode, "0 uploads" in swept.stdout) == (0, True)
