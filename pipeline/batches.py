"""Long sequences in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SQL_BATCH = 500
"""Values in one ``IN (…)``: SQLite takes 32,766 parameters, and a plan for thousands of values is slow anyway."""


def batches(items: Sequence[T], size: int = SQL_BATCH) -> Iterator[Sequence[T]]:
    """`items` in order, `size` at a time; the last piece may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))
