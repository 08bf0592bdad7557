"""What text becomes before it is encoded."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.terms import LONGEST_WORD, is_stop_word, is_unspaced, terms


def found(text: str) -> list[str]:
    return list(terms(text))


def test_words_are_case_folded_and_lose_their_plural() -> None:
    assert found("Drives, CABLES; batteries status glass") == ["drive", "cable", "battery", "status", "glass"]


def test_a_stop_word_is_not_taken_for_a_plural() -> None:
    assert found("does this") == ["does", "this"]
    assert all(map(is_stop_word, found("How does this")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh-keygen", ["ssh-keygen", "ssh", "keygen"]),
        ("version 4.0.3.", ["version", "4.0.3"]),
        ("linux-2.8.4", ["linux-2.8.4", "linux", "2.8.4"]),
        ("\\Huge", ["huge"]),
        ("__Host-", ["__host", "host"]),
        ("18,870 of", ["18,870", "18", "870", "of"]),
        ("red, green", ["red", "green"]),
        ("don\u2019t", ["don\u2019t", "don", "t"]),
    ],
)
def test_an_identifier_stays_whole_and_gives_its_parts(text: str, expected: list[str]) -> None:
    assert found(text) == expected


def test_chinese_gives_characters_and_pairs() -> None:
    assert found("磁盘空间") == ["磁", "磁盘", "盘", "盘空", "空", "空间", "间"]


def test_chinese_goes_on_over_the_end_of_a_line() -> None:
    assert found("磁\n 盘") == found("磁盘")


def test_chinese_and_latin_are_told_apart_without_a_blank() -> None:
    assert found("按Enter键") == ["按", "enter", "键"]


def test_full_width_and_half_width_are_the_same() -> None:
    assert found("ＵＳＢ２．０") == found("usb2.0")


def test_a_letter_with_a_combining_mark_is_the_composed_letter() -> None:
    assert found("cafe\u0301") == found("caf\u00e9") == ["caf\u00e9"]


def test_a_soft_hyphen_is_no_boundary() -> None:
    assert found("con\u00adfigure") == ["configure"]


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x01\x1f", "…—。", "\ud800"])
def test_text_without_words_has_no_terms(text: str) -> None:
    assert found(text) == []


def test_control_characters_separate() -> None:
    assert found("one\x00two\x08three") == ["one", "two", "three"]


def test_function_words_are_stop_words_in_both_languages() -> None:
    assert is_stop_word("the") and is_stop_word("的") and is_stop_word("什么") and is_stop_word("什麼")
    assert not is_stop_word("spindle") and not is_stop_word("磁盘") and not is_stop_word("的磁")


def test_unspaced_scripts_are_known() -> None:
    assert all(map(is_unspaced, ["汉", "かな", "한글", "\U00020000"]))
    assert not any(map(is_unspaced, ["usb", "4.0.3", ""]))


@given(st.text())
def test_no_term_is_empty_long_or_unencodable(text: str) -> None:
    for term in terms(text):
        assert 0 < len(term.encode()) <= 8 * 20 * LONGEST_WORD


@given(st.text(), st.text())
def test_lines_without_unspaced_script_are_independent(first: str, second: str) -> None:
    if any(map(is_unspaced, first + second)) or max(first + second, default="") > "\u3000":
        return
    assert found(f"{first}\n\n{second}") == found(first) + found(second)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "a-" * 500_000,
        "1," * 500_000,
        "汉" + " " * 1_000_000,
        "汉 " * 500_000,
        "a" + "\u0315\u0300" * 500_000,
    ],
    ids=["one word", "joiners", "commas", "blanks", "spaced out", "combining marks"],
)
def test_a_megabyte_without_a_break_takes_linear_time(text: str) -> None:
    """Quadratic time would be hours; the limit is generous, for machines that are shared."""
    began = time.monotonic()
    for _ in terms(text):
        pass
    assert time.monotonic() - began < 20
