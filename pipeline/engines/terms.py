"""Text to terms, for both lexical engines: what a page and a question must agree on to meet.

A term is a case-folded NFKC word, number, identifier (``ssh-keygen``, ``4.0.3``, ``__host``), or one or two
characters of a script that is written without spaces. Identifiers give their parts as well, words of English
lose their inflection. Everything takes linear time, also on ten megabytes without a blank.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

TERMS_VERSION = 1
"""Grows with every change that gives some text other terms: it is part of each engine's options."""

LONGEST_WORD = 64
"""A longer run of word characters is cut, so that no term is large. A sha256 in hex just fits."""

_LONGEST_IDENTIFIER = 8
"""Words that one identifier joins at most; what follows begins the next one."""

_NORMALIZED_AT_ONCE = 1024
"""Normalising a run of combining marks takes quadratic time in CPython, so runs are cut."""

_UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff"
"""Han, Kana and Hangul: the scripts of Lucene's CJKBigramFilter, whose bigrams and unigrams these are."""

_WORD = rf"[^\W{_UNSPACED}]{{1,{LONGEST_WORD}}}"

_RUN = re.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+(?:\s++[{_UNSPACED}]+)*)"
    rf"|{_WORD}(?:(?:[-.'’]|,(?=[0-9])){_WORD}){{0,{_LONGEST_IDENTIFIER - 1}}}"
)
"""Unspaced characters go on over line ends; words go on over joiners."""

_PIECE = re.compile(rf"\S{{1,{_NORMALIZED_AT_ONCE}}}")

_JOINT = re.compile(r"[-'’,_]+|(?<![0-9])\.|\.(?![0-9])")
"""Where an identifier is taken apart: not at the points of a number or a version."""


def terms(text: str) -> Iterator[str]:
    """The terms of `text` in reading order, repeated as often as they stand there.

    The same in every process. Any string is allowed; one of blanks and punctuation has none.
    """
    for run in _RUN.finditer(_normalized(text)):
        unspaced = run["unspaced"]
        yield from _grams("".join(unspaced.split())) if unspaced else _words(run[0])


def is_stop_word(term: str) -> bool:
    """Whether `term` says how something is asked or joined, not what about."""
    return term in _STOP_WORDS or (is_unspaced(term) and all(char in _FUNCTION_CHARACTERS for char in term))


def is_unspaced(term: str) -> bool:
    """Whether `term` is a gram of a script written without spaces."""
    return _UNSPACED_START.match(term) is not None


_UNSPACED_START = re.compile(rf"[{_UNSPACED}]")


def _normalized(text: str) -> str:
    if not text.isascii():
        text = _PIECE.sub(lambda piece: unicodedata.normalize("NFKC", piece[0]), text.replace("\u00ad", ""))
    return text.casefold()


def _grams(characters: str) -> Iterator[str]:
    """Every character and every pair of neighbours."""
    for index, character in enumerate(characters):
        yield character
        if index + 1 < len(characters):
            yield characters[index : index + 2]


def _words(identifier: str) -> Iterator[str]:
    """A plain word without its inflection; an identifier as it stands, and then its parts."""
    parts = [part for part in _JOINT.split(identifier) if part]
    if parts != [identifier]:
        yield identifier
    for part in parts:
        yield _stem(part)


def _stem(word: str) -> str:
    """`word` without an English plural ending (Harman's S-stemmer, "How effective is suffixing?", 1991)."""
    if not (len(word) > 3 and word.endswith("s") and word.isascii() and word.isalpha()):
        return word
    if word in _STOP_WORDS:
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    return word if word.endswith(("us", "ss")) else word[:-1]


_ENGLISH = (
    "a about above after again against all also am an and any are as at be because been before being "
    "below between both but by can cannot could did do does doing done down during each either else "
    "ever every few for from further get had has have having he her here hers him his how however i "
    "if in into is it its itself just let many may me might more most much must my no nor not of off "
    "often on once one only or other our ours out over own per same shall she should so some such "
    "than that the their them then there these they this those through to too under until up upon us "
    "use very was we were what when where whether which while who whom whose why will with within "
    "without would yes yet you your "
)
"""Function words, chosen after the Snowball project's English list."""

_CHINESE = "的了是在和与與及或之其这這那哪也都就而且被把为為于於以等个個吗嗎呢吧啊么麼怎什多少几幾很得地着"
"""Particles, pronouns, conjunctions and question words, simplified and traditional."""

_STOP_WORDS = frozenset(_ENGLISH.split())
_FUNCTION_CHARACTERS = frozenset(_CHINESE)
