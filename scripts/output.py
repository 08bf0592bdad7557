"""What commands print: JSON lines or text on stdout, everything else on stderr."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.table import Table

from pipeline.domain import Hit, LedgerStatus, PageView, Submission, TaskState, VersionView, Waiting
from pipeline.protocols import Ledger

stdout = Console(soft_wrap=True, highlight=False, markup=False)
stderr = Console(stderr=True, highlight=False, markup=False)


def print_json(record: Mapping[str, Any]) -> None:
    """One object on one line, whatever the width of the terminal."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def source_name(source_uri: str) -> str:
    """A source as a person knows it: the path of a local file. Control characters are shown escaped."""
    parts = urlsplit(source_uri)
    name = unquote(parts.path) if parts.scheme == "file" else source_uri
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)


def submission_record(submission: Submission, ledger: Ledger) -> dict[str, Any]:
    """The line of `ingest --json`."""
    version = ledger.views.version(submission.version_id, None) if submission.version_id else None
    waiting = ledger.views.waiting(version.version_id) if version and not submission.state.ended else ()
    error = {
        "code": submission.error_code,
        "message": submission.error_message,
        "stage": submission.error_stage,
        "page_index": submission.error_page,
    }
    return {
        "source": submission.source_uri,
        "submission_id": submission.id,
        "document_id": submission.document_id,
        "version_id": submission.version_id,
        "revision": submission.revision,
        "state": submission.state.value,
        "superseded_by": submission.superseded_by,
        "pages": version.page_count if version else None,
        "error": error if submission.error_code else None,
        "seconds": submission.seconds,
        "metadata": submission.metadata.stored(),
        "waiting": [_waiting_record(one) for one in waiting],
    }


def submission_line(record: Mapping[str, Any]) -> str:
    """The same for a person."""
    name, error = source_name(record["source"]), record["error"]
    if not error:
        pages = f"{record['pages']} pages" if record["pages"] else ""
        line = f"{record['state']:<11} {name}  {pages}".rstrip()
        return "\n            ".join([line, *map(_waiting_words, record["waiting"])])
    page = f", page {error['page_index']}" if error["page_index"] is not None else ""
    return f"{record['state']:<11} {name}\n            {error['code']}{page}: {error['message']}"


def status_record(status: LedgerStatus) -> dict[str, Any]:
    tasks: dict[str, dict[str, int]] = {}
    for (stage, state), count in status.tasks.items():
        tasks.setdefault(stage, {})[state] = count
    return {
        "documents_searchable": status.documents_searchable,
        "pages_searchable": status.pages_searchable,
        "submissions": dict(status.submissions),
        "tasks": tasks,
        "pages_per_minute": dict(status.rates),
        "waiting": [_waiting_record(waiting) for waiting in status.waiting],
        "quarantined": [dataclasses.asdict(given_up) for given_up in status.quarantined],
    }


def print_status(status: LedgerStatus) -> None:
    stdout.print(f"{status.documents_searchable} documents, {status.pages_searchable} pages are searchable")
    counts = ", ".join(f"{count} {state}" for state, count in sorted(status.submissions.items()))
    stdout.print(f"submissions: {counts or 'none'}")
    stdout.print(_stage_table(status))
    for waiting in status.waiting:
        stdout.print(_waiting_words(_waiting_record(waiting)))
    for given_up in status.quarantined:
        where = f"{given_up.pages} in {given_up.stage} ({given_up.code}): {given_up.message}"
        stdout.print(f"given up: {where}; see `retry` and `waive`")


def _waiting_record(waiting: Waiting) -> dict[str, Any]:
    return dataclasses.asdict(waiting) | {"stalled": waiting.stalled}


def _waiting_words(waiting: Mapping[str, Any]) -> str:
    word, time = ("STALLED" if waiting["stalled"] else "waiting"), f"{waiting['seconds']:.0f} s"
    return f"{word}: {waiting['pages']} in {waiting['stage']} for {time} ({waiting['code']}): {waiting['message']}"


def _stage_table(status: LedgerStatus) -> Table:
    states = [state for state in TaskState if any(key[1] == state for key in status.tasks)]
    table = Table("stage", *(state.value for state in states), "pages/min", box=None)
    for stage in dict.fromkeys(stage for stage, _ in status.tasks):
        cells = [str(status.tasks.get((stage, state), 0)) for state in states]
        table.add_row(stage, *cells, str(status.rates.get(stage, 0)))
    return table


def page_record(page: PageView) -> dict[str, Any]:
    """The line of `show --json`: what became of one page."""
    facts: dict[str, Any] = {}
    for stage in page.stages:
        facts |= stage.facts
    return {
        "page_index": page.page_index,
        "page_label": page.page_label,
        "width": facts.get("width"),
        "height": facts.get("height"),
        "dpi": facts.get("dpi"),
        "verdict": facts.get("verdict"),
        "text_source": facts.get("source"),
        "score": facts.get("score"),
        "reasons": facts.get("reasons", []),
        "stages": {stage.stage: _stage_record(stage) for stage in page.stages},
    }


def _stage_record(stage: Any) -> dict[str, Any]:
    error = {"code": stage.error_code, "message": stage.error_message} if stage.error_code else None
    return {
        "state": stage.state,
        "artifacts": {role: ref.key for role, ref in stage.artifacts.items()},
        "error": error,
    }


def print_version(version: VersionView, pages: Sequence[Mapping[str, Any]]) -> None:
    stdout.print(f"{version.title}  ({source_name(version.source_uri)})")
    stdout.print(f"version {version.version_id} of document {version.document_id}, {version.page_count} pages")
    stdout.print("current" if version.current else "not current")
    for name, value in version.metadata.stored().items():
        stdout.print(f"{name}: {_words(value)}")
    for name, value in version.notes.items():
        stdout.print(f"note: {name}: {value}")
    for build, gate in version.gates.items():
        stdout.print(f"gate in build {build}: {_gate_words(gate)}")
    table = Table("page", "label", "size", "verdict", "text", "stages", "reasons", box=None)
    for page in pages:
        stages = " ".join(f"{stage}:{row['state']}" for stage, row in page["stages"].items())
        size = f"{page['width']}×{page['height']}" if page["width"] else ""
        cells = (str(page["page_index"]), page["page_label"], size, page["verdict"], page["text_source"], stages)
        table.add_row(*(cell or "" for cell in cells), "; ".join(page["reasons"]))
    stdout.print(table)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text}" for name, text in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def _gate_words(gate: Mapping[str, Any]) -> str:
    report = gate["report"] or {}
    verdicts = ", ".join(f"{count} {name}" for name, count in report.get("verdicts", {}).items())
    faults = [f"page {failure['page_index']} {failure['code']}" for failure in report.get("failures", [])]
    waived = [f"page {failure['page_index']} waived" for failure in report.get("waived", [])]
    return "; ".join(filter(None, [gate["state"], verdicts, ", ".join([*faults[:10], *waived])]))


def hit_record(hit: Hit) -> dict[str, Any]:
    """The line of `search --json`."""
    return dataclasses.asdict(hit)


def print_hits(question: str, hits: Sequence[Hit]) -> None:
    stdout.print(f"“{question}”: {len(hits)} pages" if hits else f"“{question}”: no page found")
    for hit in hits:
        label = f" (printed {hit.page_label})" if hit.page_label else ""
        stdout.print(f"{hit.rank:>3}. {source_name(hit.source)}, page index {hit.page_index}{label}")
        stdout.print(f"     {hit.score_label} {hit.score:.4f}, text: {hit.text_source}, image: {hit.image_key}")
        stdout.print(f"     {hit.snippet}")
        if hit.missing_pages:
            pages = ", ".join(map(str, hit.missing_pages))
            stdout.print(f"     of this document page index {pages} is missing, by a person's decision")
