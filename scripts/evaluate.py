"""`pagegate eval`: the default search, and plain BM25 over the same page texts beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pipeline.evaluation import METRICS, Estimate, Page, Question, estimate, groups
from pipeline.metadata import Scope
from pipeline.search import Searcher, ranked_pages
from pipeline.settings import SearchOptions
from scripts.output import source_name, stdout

WIDTH = 120
"""Of the table, whatever the terminal: a folded interval cannot be read."""

Rankings = Mapping[str, Sequence[Page]]


def evaluate(searcher: Searcher, org: str, questions: Sequence[Question], k: int) -> Iterator[dict[str, Any]]:
    """One record a group of questions: each metric, and its paired difference to BM25 alone."""
    files = {file for question in questions for file, _ in question.relevant}
    ours = _rank(searcher, org, questions, k, files)
    bm25_only = SearchOptions(dense_weight=0.0, sparse_weight=1.0)
    bm25 = _rank(dataclasses.replace(searcher, options=bm25_only), org, questions, k, files)
    for name, members in groups(questions).items():
        record: dict[str, Any] = {"group": name, "questions": len(members)}
        for metric in METRICS:
            values, baseline = (_values(metric, members, run, k) for run in (ours, bm25))
            differences = [value - base for value, base in zip(values, baseline, strict=True)]
            record |= {
                f"{metric}@{k}": dataclasses.asdict(estimate(values)),
                f"{metric}@{k} - bm25": dataclasses.asdict(estimate(differences)),
            }
        yield record
    unanswerable = [question for question in questions if not question.relevant]
    yield {"group": "no answer", "questions": len(unanswerable)}


def _rank(
    searcher: Searcher, org: str, questions: Sequence[Question], k: int, files: set[str]
) -> dict[str, list[Page]]:
    """Found pages under the names that the questions use for their files."""
    return {
        question.id: [
            (_file(source, files), page)
            for source, page in ranked_pages(searcher.search(Scope(org=org), question.query, k))
        ]
        for question in questions
    }


def _file(source_uri: str, files: set[str]) -> str:
    path = source_name(source_uri)
    return next((file for file in files if path.endswith("/" + file)), path)


def _values(metric: str, questions: Sequence[Question], rankings: Rankings, k: int) -> list[float]:
    return [METRICS[metric](question, rankings[question.id], k) for question in questions]


def print_evaluation(records: Sequence[Mapping[str, Any]], k: int) -> None:
    table = Table("questions", "n", *(f"{metric}@{k}" for metric in METRICS), "ndcg − BM25", box=None)
    for record in records:
        if f"ndcg@{k}" not in record:
            stdout.print(f"{record['questions']} questions have no answer and are not counted")
            continue
        cells = [_words(Estimate(**record[f"{metric}@{k}"])) for metric in METRICS]
        difference = _words(Estimate(**record[f"ndcg@{k} - bm25"]), sign=True)
        table.add_row(record["group"], str(record["questions"]), *cells, difference)
    Console(width=WIDTH, highlight=False).print(table)
    stdout.print("in brackets: 95 % bootstrap intervals; the last column is paired by question")


def _words(value: Estimate, *, sign: bool = False) -> str:
    form = "+.3f" if sign else ".3f"
    return f"{value.mean:{form}} [{value.low:{form}}, {value.high:{form}}]"
