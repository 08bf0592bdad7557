"""The lexical late-interaction encoder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.domain import Floats
from pipeline.engines.lexical import MOST_TOKENS, LexicalEncoder, LexicalOptions
from pipeline.errors import ConfigurationError, EncodeFailed

ENCODER = LexicalEncoder()
TEXT = "Spindle speed 4.0.3; 磁盘"
GOLDEN_SHA256 = "421205422f0dfe0cc9f6e00ab64364d4755006426b0b0fdf31618d47e701b5ba"


def record(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def page(text: str) -> Floats:
    return ENCODER.encode_pages([record(text)])[0]


def query(question: str) -> Floats:
    return ENCODER.encode_queries([question])[0]


def max_sim(question: str, text: str) -> float:
    return float((query(question) @ page(text).T).max(axis=1).sum())


def cosine(one: str, other: str) -> float:
    return float(page(one)[0] @ page(other)[0])


def test_the_contract_names_all_that_changes_a_vector() -> None:
    contract = ENCODER.contract
    assert (contract.name, contract.version, contract.dim, contract.reads) == ("lexical", 1, 128, "text")
    assert contract.options == {
        "max_tokens": 512,
        "terms": 1,
        "gram_sizes": [3, 4, 5],
        "gram_characters": 32,
        "gram_share": 0.5,
        "digit_weight": 1.3,
        "character_weight": 0.4,
        "stop_word_weight": 0.1,
        "lengths": [6, 10],
    }


def test_a_page_has_a_unit_row_for_each_distinct_term() -> None:
    rows = page("spindle speed spindle torque")
    assert rows.shape == (3, 128) and rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_a_row_is_the_word_and_its_n_grams_recomputed() -> None:
    """``<abc>`` has n-grams of 3, 4 and 5 characters: six of them."""

    def signs(feature: str) -> list[int]:
        digest = hashlib.blake2b(feature.encode(), digest_size=16, person=b"pagegate.lexical").digest()
        return [1 if bit == "1" else -1 for byte in digest for bit in f"{byte:08b}"]

    grams = [signs(gram) for gram in ("<ab", "abc", "bc>", "<abc", "abc>", "<abc>")]
    mixed = [own + 0.5 / 6**0.5 * sum(parts) for own, *parts in zip(signs("=abc"), *grams, strict=True)]
    length = sum(number**2 for number in mixed) ** 0.5
    np.testing.assert_allclose(page("abc")[0], [number / length for number in mixed], atol=1e-6)


def test_golden_bytes_of_a_small_page() -> None:
    assert hashlib.sha256(page(TEXT).tobytes()).hexdigest() == GOLDEN_SHA256


def test_another_process_with_another_hash_seed_gives_the_same_bytes() -> None:
    program = (
        "import sys; from pipeline.engines.lexical import LexicalEncoder as E;"
        f"sys.stdout.buffer.write(E().encode_pages([{record(TEXT)!r}])[0].tobytes())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert run.stdout == page(TEXT).tobytes()


@given(st.lists(st.text(max_size=60), min_size=1, max_size=5))
def test_a_page_does_not_depend_on_its_batch(texts: list[str]) -> None:
    together = ENCODER.encode_pages([record(text) for text in texts])
    for rows, text in zip(together, texts, strict=True):
        assert rows.tobytes() == LexicalEncoder().encode_pages([record(text)])[0].tobytes()


@given(st.text())
def test_every_page_and_question_has_finite_rows_that_are_not_zero(text: str) -> None:
    for rows in (page(text), query(text)):
        assert rows.ndim == 2 and rows.shape[0] >= 1 and rows.shape[1] == 128
        assert np.isfinite(rows).all() and (np.linalg.norm(rows, axis=1) > 0.01).all()


@pytest.mark.parametrize("text", ["", " \n", "\x00\x01\x1f", "…"])
def test_a_page_without_terms_is_one_marker_row(text: str) -> None:
    assert page(text).shape == (1, 128)
    assert page(text).tobytes() == page("").tobytes()
    assert query(text).shape == (1, 128)


def test_control_characters_between_words_change_nothing() -> None:
    assert page("spindle\x00speed\x0b").tobytes() == page("spindle speed").tobytes()


def test_a_page_keeps_its_most_frequent_terms_and_of_equals_the_first() -> None:
    short = LexicalEncoder(LexicalOptions(max_tokens=2))
    rows = short.encode_pages([record("alpha beta gamma delta gamma")])[0]
    assert rows.tobytes() == page("gamma gamma alpha").tobytes()


def test_a_huge_page_stays_under_the_cap() -> None:
    assert page(" ".join(f"word{number}" for number in range(20_000))).shape == (512, 128)


def test_a_huge_token_is_cut() -> None:
    assert 1 <= page("x" * 1_000_000).shape[0] <= 512


@pytest.mark.parametrize("max_tokens", [0, MOST_TOKENS + 1])
def test_a_cap_that_the_index_could_not_hold_is_refused(max_tokens: int) -> None:
    with pytest.raises(ConfigurationError, match="max_tokens"):
        LexicalOptions(max_tokens=max_tokens)


def test_a_full_page_is_below_the_limit_of_the_index() -> None:
    assert MOST_TOKENS * 128 < 1_048_576


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"text": 1}'])
def test_a_record_without_text_fails_its_encoding(content: bytes) -> None:
    with pytest.raises(EncodeFailed):
        ENCODER.encode_pages([content])


def test_an_inflection_is_nearer_than_a_stranger() -> None:
    assert cosine("encode", "encode") == pytest.approx(1, abs=1e-6)
    assert cosine("configure", "configured") > cosine("configure", "hydraulic") + 0.05


def test_the_page_that_says_it_is_first() -> None:
    question = "maximum spindle speed"
    assert max_sim(question, "the maximum speed of the spindle") > max_sim(question, "maximum coolant flow")
    assert max_sim("磁盘空间", "至少需要磁盘空间") > max_sim("磁盘空间", "至少需要内存")


def test_a_question_weighs_longer_words_and_numbers_higher_and_leaves_stop_words_out() -> None:
    ups, overvoltage, version = np.linalg.norm(query("the ups of overvoltage 2.8"), axis=1)
    assert overvoltage > ups and version > ups
    assert np.linalg.norm(query("what is"), axis=1) == pytest.approx([0.1, 0.1], abs=1e-6)
