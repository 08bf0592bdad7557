"""Retrieval quality: Recall, MRR and nDCG at k, with bootstrap intervals.

A page is ``(file, page_index)``; a question's relevant pages have grades (2 full answer, 1 partial).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import ConfigurationError

Page = tuple[str, int]
Scores = Mapping[str, float]
Metric = Callable[["Question", Sequence[Page], int], float]

BOOTSTRAP_SAMPLES = 2000
SEED = 20260101
"""Of the bootstrap: the same answers always give the same interval."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    id: str
    query: str
    lang: str
    kind: str
    relevant: Mapping[Page, int]
    """Grade of each relevant page; empty for a question that no page answers."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean over questions and its 95 % bootstrap interval (percentile method)."""

    mean: float
    low: float
    high: float
    questions: int


def load_questions(path: Path) -> list[Question]:
    """Read a JSON-lines file of questions. Raises `ConfigurationError` naming the line that is wrong."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    return [_question(line, f"{path}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()]


def _question(line: str, where: str) -> Question:
    try:
        fields = json.loads(line)
        relevant = {(page["file"], int(page["page"])): int(page["grade"]) for page in fields["relevant"]}
        return Question(
            id=fields["id"], query=fields["query"], lang=fields["lang"], kind=fields["kind"], relevant=relevant
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{where}: not a question ({error!r})") from error


def recall(question: Question, ranking: Sequence[Page], k: int) -> float:
    """Share of the relevant pages that are among the first k."""
    return len(question.relevant.keys() & set(ranking[:k])) / len(question.relevant)


def mrr(question: Question, ranking: Sequence[Page], k: int) -> float:
    """Reciprocal rank of the first relevant page among the first k, or 0."""
    ranks = (rank for rank, page in enumerate(ranking[:k], start=1) if page in question.relevant)
    return next((1 / rank for rank in ranks), 0.0)


def ndcg(question: Question, ranking: Sequence[Page], k: int) -> float:
    """Discounted gain over the ideal one; gain is the grade, discount log2(rank + 1) (Järvelin and Kekäläinen)."""
    gains = [question.relevant.get(page, 0) for page in ranking[:k]]
    return _dcg(gains) / _dcg(sorted(question.relevant.values(), reverse=True)[:k])


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


METRICS: Mapping[str, Metric] = {"recall": recall, "mrr": mrr, "ndcg": ndcg}


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and interval of per-question values, or of per-question differences of two runs (paired)."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return Estimate(mean=math.nan, low=math.nan, high=math.nan, questions=0)
    chosen = np.random.default_rng(SEED).integers(0, array.size, (BOOTSTRAP_SAMPLES, array.size))
    low, high = np.percentile(array[chosen].mean(axis=1), [2.5, 97.5])
    return Estimate(mean=float(array.mean()), low=float(low), high=float(high), questions=array.size)


def groups(questions: Sequence[Question]) -> dict[str, list[Question]]:
    """All answerable questions, then by kind, then by language."""
    answerable = [question for question in questions if question.relevant]
    grouped = {"all": answerable}
    for attribute in ("kind", "lang"):
        for value in sorted({getattr(question, attribute) for question in answerable}):
            members = [question for question in answerable if getattr(question, attribute) == value]
            grouped[f"{attribute} {value}"] = members
    return grouped
