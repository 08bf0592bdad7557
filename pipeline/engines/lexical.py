"""Late interaction without a model: a page's distinct terms are its rows, MaxSim finds a question's terms.

A row is a signed random projection of the word and of its character n-grams (Bojanowski et al., "Enriching
Word Vectors with Subword Information", TACL 2017), so inflections and compounds are nearer than any other two
terms, whose cosine has a standard deviation of 1/sqrt(128) = 0.09. There is nothing to download and nothing
to train, and equal text gives equal bytes on every machine.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.domain import EncoderContract, Floats
from pipeline.engines.terms import TERMS_VERSION, is_stop_word, is_unspaced, terms
from pipeline.errors import ConfigurationError, EncodeFailed

DIM = 128

MOST_TOKENS = 1_048_576 // DIM - 1
"""Qdrant refuses a multivector of 1,048,576 numbers."""

_GRAM_SIZES = (3, 4, 5)
_GRAM_CHARACTERS = 32
"""A term's n-grams are those of its beginning; its identity is hashed in full."""
_GRAM_SHARE = 0.5
"""Length of the n-grams' part against the word's own: inflections are found, the word itself is preferred."""
_DIGIT_WEIGHT = 1.3
"""Numbers and identifiers are rarer than words of their length."""
_CHARACTER_WEIGHT = 0.4
_STOP_WORD_WEIGHT = 0.1
_ORDINARY_LENGTH, _GREATEST_LENGTH = 6, 10
_CACHED_TERMS = 32_768
"""About 25 MB a process, computed from the size of an entry."""

_NO_TERM = "\x00"
"""Stands for a text without any term; no term has a control character in it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LexicalOptions:
    max_tokens: int = 512
    """Rows of a page at most: its most frequent terms, of equally frequent ones those that come first."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_tokens <= MOST_TOKENS:
            raise ConfigurationError(f"max_tokens is {self.max_tokens}; choose 1 to {MOST_TOKENS}")


class LexicalEncoder:
    """A `PageEncoder` of a page's text record: UTF-8 JSON with the key ``text``; other keys are not read."""

    def __init__(self, options: LexicalOptions | None = None) -> None:
        self._options = options or LexicalOptions()
        self.contract = _contract(self._options)

    def encode_pages(self, contents: Sequence[bytes]) -> list[Floats]:
        """One array ``(n_tokens, 128)`` a page: a unit row a distinct term, 1 <= n_tokens <= max_tokens.

        A page without terms has one marker row, the same for all. Raises `EncodeFailed`.
        """
        return [self._encode_page(content) for content in contents]

    def encode_queries(self, questions: Sequence[str]) -> list[Floats]:
        """One array ``(n_terms, 128)`` a question, n_terms >= 1; the length of a row is its term's weight."""
        return [_encode_query(question) for question in questions]

    def _encode_page(self, content: bytes) -> Floats:
        counts = _telling_terms(_text_of(content))
        return np.stack([_term_vector(term) for term, _ in counts.most_common(self._options.max_tokens)])


def _contract(options: LexicalOptions) -> EncoderContract:
    return EncoderContract(
        name="lexical",
        version=1,
        dim=DIM,
        reads="text",
        options={
            **dataclasses.asdict(options),
            "terms": TERMS_VERSION,
            "gram_sizes": list(_GRAM_SIZES),
            "gram_characters": _GRAM_CHARACTERS,
            "gram_share": _GRAM_SHARE,
            "digit_weight": _DIGIT_WEIGHT,
            "character_weight": _CHARACTER_WEIGHT,
            "stop_word_weight": _STOP_WORD_WEIGHT,
            "lengths": [_ORDINARY_LENGTH, _GREATEST_LENGTH],
        },
    )


def _text_of(content: bytes) -> str:
    try:
        record = json.loads(content)
    except ValueError as error:
        raise EncodeFailed("a page's text record is not UTF-8 JSON: redo its text stage") from error
    if not (isinstance(record, dict) and isinstance(record.get("text"), str)):
        raise EncodeFailed("a page's text record has no string under 'text': redo its text stage")
    return str(record["text"])


def _encode_query(question: str) -> Floats:
    return np.stack([_term_vector(term) * np.float32(_weight(term)) for term in _telling_terms(question)])


def _telling_terms(text: str) -> Counter[str]:
    """Terms that get a row, in the order of their first places: no stop words where there are others, and no
    character that stands in a pair. Never empty.
    """
    counts = Counter(terms(text))
    paired = {character for term in counts if len(term) == 2 and is_unspaced(term) for character in term}
    rows = Counter({term: count for term, count in counts.items() if term not in paired})
    telling = Counter({term: count for term, count in rows.items() if not is_stop_word(term)})
    return telling or rows or Counter([_NO_TERM])


def _weight(term: str) -> float:
    """How much finding `term` means. Without statistics: longer words are rarer (Zipf), so are numbers."""
    if is_stop_word(term):
        return _STOP_WORD_WEIGHT
    if is_unspaced(term):
        return 1.0 if len(term) > 1 else _CHARACTER_WEIGHT
    rarity = math.sqrt(min(len(term), _GREATEST_LENGTH) / _ORDINARY_LENGTH)
    return rarity * (_DIGIT_WEIGHT if any(map(str.isdigit, term)) else 1.0)


@functools.lru_cache(maxsize=_CACHED_TERMS)
def _term_vector(term: str) -> Floats:
    """Unit vector ``(128,)`` of a term; read-only, because it is shared."""
    grams = list(_grams(term))
    signs = _signs([f"={term}", *grams])
    mixed = signs[0] + _GRAM_SHARE / math.sqrt(len(grams)) * signs[1:].sum(axis=0)
    unit: Floats = (mixed / math.sqrt(math.fsum(mixed * mixed))).astype(np.float32)
    unit.flags.writeable = False
    return unit


def _grams(term: str) -> Iterator[str]:
    """The characters of a gram of unspaced script; else the n-grams of the marked word. At least one."""
    if is_unspaced(term):
        yield from term
        return
    marked = f"<{term[:_GRAM_CHARACTERS]}>"
    for size in _GRAM_SIZES:
        yield from (marked[start : start + size] for start in range(len(marked) - size + 1))


def _signs(features: Sequence[str]) -> npt.NDArray[np.float64]:
    """``(n_features, 128)`` of +1 and -1: the bits of each feature's BLAKE2b, so there is no random stream.

    "=" cannot stand in an n-gram, so a word and its n-gram of the same letters are two features.
    """
    digests = b"".join(
        hashlib.blake2b(feature.encode(), digest_size=DIM // 8, person=b"pagegate.lexical").digest()
        for feature in features
    )
    bits = np.unpackbits(np.frombuffer(digests, dtype=np.uint8)).reshape(len(features), DIM)
    return np.where(bits == 1, 1.0, -1.0)
