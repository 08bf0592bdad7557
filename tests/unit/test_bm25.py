"""BM25 as sparse vectors, against a plain rendering of the formula."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.domain import SparseVector
from pipeline.engines import bm25
from pipeline.engines.bm25 import Bm25Encoder, Bm25Options, term_id

PAGES = ["spindle speed speed", "spindle torque and much more text about torque", "coolant pump"]


def weights(vector: SparseVector) -> dict[int, float]:
    return dict(zip(vector.indices, vector.values, strict=True))


def score(question: str, page: int, texts: Sequence[str], encoder: Bm25Encoder) -> float:
    """What the index computes: products of equal ids, each times its inverse document frequency."""
    pages = [weights(encoder.encode_page(text)) for text in texts]
    total = 0.0
    for index, weight in weights(encoder.encode_query(question)).items():
        holding = sum(index in page_weights for page_weights in pages)
        idf = math.log((len(pages) - holding + 0.5) / (holding + 0.5) + 1)
        total += idf * weight * pages[page].get(index, 0.0)
    return total


def test_the_score_is_bm25_by_hand() -> None:
    encoder = Bm25Encoder(Bm25Options(k1=1.2, b=0.75, average_terms=4.0))
    # page 0 has 3 terms: spindle once, speed twice; 2 of 3 pages have spindle, 1 of 3 has speed
    norm = 1.2 * (0.25 + 0.75 * 3 / 4)
    spindle = math.log(1.5 / 2.5 + 1) * (1 * 2.2) / (1 + norm)
    speed = math.log(2.5 / 1.5 + 1) * (2 * 2.2) / (2 + norm)
    assert score("spindle speed", 0, PAGES, encoder) == pytest.approx(spindle + speed, rel=1e-12)


def test_the_page_that_says_it_is_first() -> None:
    scores = [score("What torque has the spindle?", page, PAGES, Bm25Encoder()) for page in range(3)]
    assert max(scores) == scores[1] and scores[2] == 0


def test_a_term_id_is_the_start_of_its_blake2b() -> None:
    digest = hashlib.blake2b(b"spindle", digest_size=4).digest()
    assert term_id("spindle") == digest[0] + (digest[1] << 8) + (digest[2] << 16) + (digest[3] << 24)


def test_golden_values_of_a_small_page() -> None:
    vector = Bm25Encoder().encode_page("磁盘 disk disk")
    assert vector.indices == [742435384, 1067410605, 1158414206, 2376449331]
    assert vector.values == pytest.approx([1.677788369876] * 3 + [1.903731746890], rel=1e-11)


def test_ids_that_collide_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = Bm25Encoder().encode_page("disk pump")
    monkeypatch.setattr(bm25, "term_id", lambda term: 7)
    together = Bm25Encoder().encode_page("disk pump")
    assert together.indices == [7]
    assert together.values == pytest.approx([sum(apart.values)])


@pytest.mark.parametrize("text", ["", " \n", "\x00\x07"])
def test_text_without_terms_has_one_marker(text: str) -> None:
    vector = Bm25Encoder().encode_page(text)
    assert vector == Bm25Encoder().encode_page("")
    assert len(vector.indices) == 1 and vector.values[0] > 0
    assert Bm25Encoder().encode_query(text) == SparseVector(indices=vector.indices, values=[1.0])


def test_a_question_leaves_its_stop_words_out() -> None:
    encoder = Bm25Encoder()
    assert encoder.encode_query("What is the torque of it?") == encoder.encode_query("torque")
    assert encoder.encode_query("扭矩是多少") != encoder.encode_query("是多少")


def test_a_question_of_stop_words_keeps_them() -> None:
    assert weights(Bm25Encoder().encode_query("what is it")).keys() == {
        term_id("what"),
        term_id("is"),
        term_id("it"),
    }


def test_options_tell_everything_that_changes_a_vector() -> None:
    assert Bm25Encoder(Bm25Options(b=0.5)).options == {
        "name": "bm25",
        "version": 1,
        "terms": 1,
        "k1": 1.2,
        "b": 0.5,
        "average_terms": 400.0,
    }


@given(st.text())
def test_ids_ascend_and_weights_are_positive_and_finite(text: str) -> None:
    for vector in (Bm25Encoder().encode_page(text), Bm25Encoder().encode_query(text)):
        assert list(vector.indices) == sorted(set(vector.indices))
        assert all(type(index) is int and 0 <= index < 2**32 for index in vector.indices)
        assert all(type(value) is float and 0 < value < math.inf for value in vector.values)
        assert len(vector.indices) == len(vector.values) >= 1


def test_another_process_with_another_hash_seed_gives_the_same() -> None:
    program = f"from pipeline.engines.bm25 import Bm25Encoder; print(Bm25Encoder().encode_page({PAGES[1]!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == repr(Bm25Encoder().encode_page(PAGES[1]))
