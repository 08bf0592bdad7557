"""The verbs of those who keep an installation in order: retry, waive, delete, gc, fsck, migrate."""

from __future__ import annotations

import dataclasses
import getpass
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.audit import Audit
from pipeline.errors import ConfigurationError
from pipeline.failpoints import reached
from pipeline.garbage import sweep
from pipeline.settings import load_settings
from pipeline.wiring import Pipeline
from scripts import output
from scripts.options import Config, Json, Org
from scripts.session import open_for_search, open_ledger, the_org
from scripts.sources import source_uri

DAY_S = 86_400.0
SOME_WRONG = 1

app = typer.Typer()

Names = Annotated[
    list[str], typer.Argument(help="Ids of submissions, documents or versions, or sources as they were submitted.")
]
Name = Annotated[str, typer.Argument(help="The id of a version, document or submission, or a source.")]


@app.command()
def retry(names: Names, config: Config = None, org: Org = None, json: Json = False) -> None:
    """Put back what failed, with all its attempts: pages of a version, or a source that became no version."""
    with open_ledger(config) as pipeline:
        tenant = the_org(pipeline.settings, org)
        for name in names:
            count = pipeline.ledger.decisions.retry(tenant, _id_or_uri(name))
            _say({"name": name, "put_back": count}, f"{name}: {count} put back", json=json)


@app.command()
def waive(
    name: Name,
    page: Annotated[int, typer.Option("--page", help="The page to do without (physical index from 0).")],
    because: Annotated[str, typer.Option("--because", help="Why; it is recorded with your name and the time.")],
    by: Annotated[str | None, typer.Option("--by", help="Who decides (default: the user of this session).")] = None,
    config: Config = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """Let a version pass without a page that failed. Search says of its pages that one is missing."""
    if not because.strip():
        raise ConfigurationError("--because: say why this page may be missing")
    with open_ledger(config) as pipeline:
        tenant = the_org(pipeline.settings, org)
        waiver = pipeline.ledger.decisions.waive(tenant, _id_or_uri(name), page, by or getpass.getuser(), because)
        words = f"page {page} of version {waiver.version_id} ({waiver.stage}: {waiver.error_code}) is waived"
        _say(dataclasses.asdict(waiver), f"{words}: the next worker validates the version again", json=json)


@app.command()
def delete(names: Names, config: Config = None, org: Org = None, json: Json = False) -> None:
    """Delete documents: gone from search at once, from index and store by `gc` after its grace period.

    Submitted again, such a source begins as a new document.
    """
    with open_ledger(config) as pipeline:
        tenant = the_org(pipeline.settings, org)
        for name in names:
            documents = pipeline.ledger.decisions.delete(tenant, _id_or_uri(name))
            reached("delete.tombstoned")
            for document in documents:
                _say({"name": name, "document_id": document}, f"deleted: {name} (document {document})", json=json)


@app.command()
def gc(
    config: Config = None,
    sweep_them: Annotated[bool, typer.Option("--sweep", help="Really; without it they are only counted.")] = False,
    grace_days: Annotated[float, typer.Option("--grace-days", help="Nothing younger is touched.", min=0)] = 7.0,
    json: Json = False,
) -> None:
    """Find what nothing needs any more, and with --sweep remove it.

    Objects and points that nothing names, those of deleted documents, uploads that nobody went on with, published
    events. Workers may be at work meanwhile.
    """
    with open_for_search(config) as pipeline:
        store: Any = pipeline.store
        parts = store if pipeline.settings.store.kind == "s3" else None
        swept = sweep(_audit(pipeline), parts, grace_days * DAY_S, dry=not sweep_them)
        record = dataclasses.asdict(swept) | {"dry_run": not sweep_them}
        counts = ", ".join(f"{count} {what}" for what, count in dataclasses.asdict(swept).items())
        _say(record, ("swept: " if sweep_them else "to be swept, with --sweep: ") + counts, json=json)


@app.command()
def fsck(
    config: Config = None,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be.")] = False,
    json: Json = False,
) -> None:
    """Do the ledger, the object store and the index agree? Ends with 1 if they do not.

    Reads every point, and every object of a folder; of a bucket it asks for each object's size and noted digest.

    --repair reopens the rows whose object or point is missing or wrong, shows what is hidden by mistake, and removes
    what nothing names. The next worker does the reopened rows, and the gate validates their versions again.
    """
    with open_for_search(config) as pipeline:
        audit = _audit(pipeline)
        findings = list(audit.find())
        for finding in findings:
            record = {name: getattr(finding, name) for name in ("kind", "name", "words", "task_id")}
            _say(record, f"{finding.kind}: {finding.name}: {finding.words}", json=json)
        repaired = audit.repair(findings) if repair else 0
        output.stderr.print(f"{len(findings)} findings, {repaired} put right")
        if len(findings) > repaired:
            raise typer.Exit(SOME_WRONG)


@app.command()
def migrate(config: Config = None) -> None:
    """Bring the schema of a shared database up to this release's; SQLite is migrated by every command.

    One process at a time does it, the others wait for it. Workers of the release before may go on meanwhile.
    """
    with closing(Pipeline(load_settings(config))) as pipeline:
        pipeline.ledger.migrate()
        output.stderr.print("the schema is this release's")


def _audit(pipeline: Pipeline) -> Audit:
    return Audit(ledger=pipeline.ledger, store=pipeline.store, index=pipeline.index)


def _id_or_uri(name: str) -> str:
    """A path is what `submit` made of it."""
    return source_uri(Path(name)) if "/" in name and "://" not in name else name


def _say(record: dict[str, Any], words: str, *, json: bool) -> None:
    if json:
        output.print_json(record)
    else:
        output.stdout.print(words)
