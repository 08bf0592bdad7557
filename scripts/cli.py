"""The command line, `pagegate`.

Results go to stdout, progress and logs to stderr. Exit codes: 0 done and all well; 1 done, but some documents
were rejected or failed; 2 usage or configuration; 3 something that is needed cannot be reached; 130 stopped.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.logging import RichHandler

from pipeline.domain import Submission, SubmissionState
from pipeline.errors import ConfigurationError, PagegateError
from pipeline.identity import describe_changes
from pipeline.metadata import DocumentMetadata, Scope
from pipeline.wiring import Pipeline
from scripts import output, upkeep
from scripts.options import Config, Json, Org
from scripts.processing import messenger, work_until
from scripts.registering import Registrar, metadata_of
from scripts.session import open_for_search, open_ledger, open_pipeline, the_org
from scripts.watch import StageBars, Watch

SOME_FAILED, STOPPED = 1, 130

app = typer.Typer(
    help="PDFs become pages that can be found by what they say and look like, once their version is proved whole.",
    epilog="State is kept in PAGEGATE_HOME (default ./.pagegate). Every setting can be given as PAGEGATE_*.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Sources = Annotated[
    list[str],
    typer.Argument(help="PDF files, folders of PDFs, s3://bucket/key or s3://bucket/folder/.", show_default=False),
]
Title = Annotated[str | None, typer.Option("--title", help="Instead of the title that the file names.")]
Type = Annotated[str | None, typer.Option("--type", help="What kind of document: manual, policy, standard …")]
Day = datetime.datetime | None
Published = Annotated[Day, typer.Option("--published", formats=["%Y-%m-%d"], help="Day of publication.")]
Effective = Annotated[Day, typer.Option("--effective", formats=["%Y-%m-%d"], help="First day in force.")]
Expired = Annotated[Day, typer.Option("--expired", formats=["%Y-%m-%d"], help="First day no longer in force.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", help="Who below the org may see it: a knowledge base, a department.")
]
Attributes = Annotated[list[str] | None, typer.Option("--attribute", metavar="NAME=VALUE", help="Anything else.")]


@app.command()
def ingest(
    sources: Sources,
    title: Title = None,
    type: Type = None,
    published: Published = None,
    effective: Effective = None,
    expired: Expired = None,
    label: Labels = None,
    attribute: Attributes = None,
    config: Config = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """Register PDFs and process them until each is searchable, rejected or failed.

    Run it again at any time: what is done is not done twice, and what was interrupted goes on.
    """
    metadata = metadata_of(title, type, published, effective, expired, label or (), attribute or ())
    with open_pipeline(config) as pipeline:
        pipeline.check_engines()
        begun = time.monotonic()
        submissions = _registrar(pipeline, org, metadata).register(sources)
        watch = Watch(pipeline.ledger, [one.id for one in submissions], lambda one: _ended(pipeline, one, json))
        with messenger(pipeline, consume=False), StageBars(watch, output.stderr) as bars:
            completed = work_until(pipeline, config, watch.finished, bars.update)
        _summarise(watch, pipeline, time.monotonic() - begun)
    if not completed:
        output.stderr.print("stopped: nothing is lost; the same command goes on where this one stopped")
        raise typer.Exit(STOPPED)
    if any(one.state != SubmissionState.SEARCHABLE for one in watch.ended):
        raise typer.Exit(SOME_FAILED)


@app.command()
def submit(
    sources: Sources,
    title: Title = None,
    type: Type = None,
    published: Published = None,
    effective: Effective = None,
    expired: Expired = None,
    label: Labels = None,
    attribute: Attributes = None,
    config: Config = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """Register PDFs only, for a worker to process.

    With an S3 store a local file is uploaded first. Run it again after an interruption: the upload goes on.
    """
    metadata = metadata_of(title, type, published, effective, expired, label or (), attribute or ())
    with open_pipeline(config) as pipeline:
        for submission in _registrar(pipeline, org, metadata).register(sources):
            _print_submission(pipeline, submission, json)


@app.command()
def worker(
    config: Config = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is left to do.")] = False,
) -> None:
    """Process whatever the ledger holds and the broker brings, until stopped (Ctrl-C or SIGTERM)."""
    with open_pipeline(config) as pipeline:
        pipeline.check_engines()
        with messenger(pipeline, consume=True) as messages:

            def idle() -> bool:
                if not until_idle or (messages and not messages.idle()):
                    return False
                return pipeline.ledger.views.idle() and pipeline.ledger.sweep() == 0

            work_until(pipeline, config, idle, lambda: None)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A submission or document id.", show_default=False)] = None,
    config: Config = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """What is searchable, what is at work, and what waits on what."""
    with open_ledger(config) as pipeline:
        if name is None:
            found = pipeline.ledger.views.status(org or pipeline.settings.org)
            output.print_json(output.status_record(found)) if json else output.print_status(found)
            return
        submissions = pipeline.ledger.views.submissions_of(name, org or pipeline.settings.org)
        if not submissions:
            raise ConfigurationError(f"no submission or document {name}: `pagegate status` counts those there are")
        for submission in submissions:
            _print_submission(pipeline, submission, json)


@app.command()
def show(
    version: Annotated[str, typer.Argument(help="A version id, or that of its submission or document.")],
    page: Annotated[int | None, typer.Option("--page", help="Only this page (physical index from 0).")] = None,
    config: Config = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """The pages of a version: text verdicts and sources, artifacts, and the gate's report."""
    with open_ledger(config) as pipeline:
        found = pipeline.ledger.views.version(version, org or pipeline.settings.org)
        if found is None:
            raise ConfigurationError(f"no version {version} (of this org): `ingest --json` prints version ids")
        views = pipeline.ledger.views.pages(found.version_id)
        records = [output.page_record(view) for view in views if page is None or view.page_index == page]
        if not records:
            raise ConfigurationError(f"no page {page}: the version has pages 0 to {found.page_count - 1}")
        for record in records if json else []:
            output.print_json(record)
        if not json:
            output.print_version(found, records)


@app.command()
def search(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    k: Annotated[int | None, typer.Option("-k", help="How many pages.", min=1, max=1000)] = None,
    type: Annotated[str | None, typer.Option("--type", help="Only documents of this kind.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="Only documents with one of these labels.")] = None,
    as_of: Annotated[
        Day, typer.Option("--as-of", formats=["%Y-%m-%d"], help="From the versions in force on this day.")
    ] = None,
    config: Config = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """Find the pages that answer a question."""
    with open_for_search(config) as pipeline:
        limit = k or pipeline.settings.search.limit
        scope = Scope(
            org=the_org(pipeline.settings, org),
            type=type,
            labels=tuple(label or ()),
            as_of=as_of.date() if as_of else None,
        )
        hits = pipeline.searcher.search(scope, question, limit)
        for hit in hits if json else []:
            output.print_json(output.hit_record(hit))
        if not json:
            output.print_hits(question, hits)


@app.command("eval")
def evaluate(
    queries: Annotated[Path, typer.Argument(help="Questions with their evidence pages, one JSON object a line.")],
    k: Annotated[int, typer.Option("-k", help="How many pages count.", min=1, max=1000)] = 10,
    config: Config = None,
    org: Org = None,
    json: Json = False,
) -> None:
    """Recall, MRR and nDCG of the search, by kind and language, beside plain BM25."""
    from pipeline.evaluation import load_questions
    from scripts.evaluate import evaluate as run
    from scripts.evaluate import print_evaluation

    with open_for_search(config) as pipeline:
        questions = load_questions(queries)
        records = list(run(pipeline.searcher, the_org(pipeline.settings, org), questions, k))
        for record in records if json else []:
            output.print_json(record)
        if not json:
            print_evaluation(records, k)


@app.command()
def profile(
    config: Config = None,
    adopt: Annotated[bool, typer.Option("--adopt", help="Put the settings' options in force.")] = False,
    json: Json = False,
) -> None:
    """The options in force that change artifacts; with --adopt, take over those of the settings.

    Adopting redoes the stages whose options changed, and what follows from them, at the next `ingest` or
    `worker`. Until the gate has passed, the old pages stay searchable.
    """
    with open_ledger(config) as pipeline:
        pipeline.check_encoder()
        _show_profile(pipeline, adopt=adopt, json=json)


def _show_profile(pipeline: Pipeline, *, adopt: bool, json: bool) -> None:
    before = pipeline.ledger.registry.profile()
    if before is None:
        raise ConfigurationError("the ledger has no profile")
    changes = describe_changes(before.options, pipeline.options())
    after = pipeline.ledger.registry.adopt(pipeline.options()) if adopt else before
    if json:
        output.print_json({"revision": after.revision, "options": after.options, "changes": changes, "adopted": adopt})
        return
    output.stdout.print(f"profile {after.revision} is in force")
    for stage, options in after.options.items():
        output.stdout.print(f"  {stage}: " + ", ".join(f"{name}={value}" for name, value in options.items()))
    if changes:
        output.stdout.print(("adopted: " if adopt else "the settings differ: ") + changes)


def _registrar(pipeline: Pipeline, org: str | None, metadata: DocumentMetadata) -> Registrar:
    return Registrar(pipeline=pipeline, org=the_org(pipeline.settings, org), metadata=metadata)


def _ended(pipeline: Pipeline, submission: Submission, json: bool) -> None:
    """Told of each submission as it ends: JSON for all, a line for a person only where something is wrong."""
    if json or submission.state != SubmissionState.SEARCHABLE:
        _print_submission(pipeline, submission, json)


def _print_submission(pipeline: Pipeline, submission: Submission, json: bool) -> None:
    record = output.submission_record(submission, pipeline.ledger)
    if json:
        output.print_json(record)
    else:
        output.stdout.print(output.submission_line(record))


def _summarise(watch: Watch, pipeline: Pipeline, seconds: float) -> None:
    states = [one.state for one in watch.ended]
    counts = ", ".join(f"{states.count(state)} {state.value}" for state in dict.fromkeys(states))
    versions = {one.version_id for one in watch.ended if one.version_id}
    views = [pipeline.ledger.views.version(version, None) for version in versions]
    pages = sum(view.page_count for view in views if view)
    output.stderr.print(
        f"{watch.total} documents: {counts or 'none ended'}; {pages} pages in {seconds:.1f} s "
        f"({pages / seconds:.1f} pages/s)"
    )


app.add_typer(upkeep.app)


def main() -> None:
    """Run the command and end the process with its exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads make a small MaxSim forty times slower
    handler = RichHandler(console=output.stderr, show_path=False, markup=False)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", handlers=[handler])
    try:
        app()
    except PagegateError as error:
        output.stderr.print(f"pagegate: {error.code}: {error.message}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
