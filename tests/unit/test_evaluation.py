"""Metrics, against numbers computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pipeline.errors import ConfigurationError
from pipeline.evaluation import Question, estimate, groups, load_questions, mrr, ndcg, recall

A, B, C, X = ("a.pdf", 0), ("a.pdf", 1), ("b.pdf", 0), ("x.pdf", 9)


def question(relevant: dict[tuple[str, int], int], kind: str = "text", lang: str = "en") -> Question:
    return Question(id="q", query="?", lang=lang, kind=kind, relevant=relevant)


def test_recall_counts_the_relevant_pages_among_the_first_k() -> None:
    asked = question({A: 2, B: 1, C: 1})
    assert recall(asked, [X, A, C, B], 3) == pytest.approx(2 / 3)
    assert recall(asked, [], 10) == 0


def test_mrr_looks_at_the_first_relevant_page() -> None:
    asked = question({A: 2, B: 1})
    assert mrr(asked, [X, X, B, A], 10) == pytest.approx(1 / 3)
    assert mrr(asked, [X, X, B, A], 2) == 0


def test_ndcg_discounts_by_rank_and_weighs_by_grade() -> None:
    asked = question({A: 2, B: 1})
    expected = (1 / math.log2(2) + 2 / math.log2(4)) / (2 / math.log2(2) + 1 / math.log2(3))
    assert ndcg(asked, [B, X, A], 10) == pytest.approx(expected)
    assert ndcg(asked, [A, B], 10) == pytest.approx(1)


def test_an_estimate_has_the_mean_and_an_interval_around_it() -> None:
    found = estimate([0.0, 1.0] * 50)
    assert found.mean == 0.5
    assert 0.39 < found.low < 0.45 < 0.55 < found.high < 0.61
    assert estimate([0.0, 1.0] * 50) == found


def test_an_estimate_of_nothing_is_not_a_number() -> None:
    assert math.isnan(estimate([]).mean)


def test_questions_without_an_answer_are_in_no_group() -> None:
    asked = [question({A: 2}, "text", "zh"), question({}, "no-answer", "en")]
    assert {name: len(members) for name, members in groups(asked).items()} == {
        "all": 1,
        "kind text": 1,
        "lang zh": 1,
    }


def test_questions_are_read_from_json_lines(tmp_path: Path) -> None:
    line = {"id": "q1", "query": "?", "lang": "en", "kind": "text"}
    relevant = [{"file": "a.pdf", "page": 3, "grade": 2}]
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(line | {"relevant": relevant}) + "\n\n")
    assert load_questions(path)[0].relevant == {("a.pdf", 3): 2}


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"id": "q1"}', '{"id":"q","query":"","lang":"","kind":"","relevant":[{}]}']
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigurationError, match="line 2"):
        load_questions(path)
