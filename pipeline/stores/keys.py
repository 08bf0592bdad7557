"""What an object's key may look like, the same in every store."""

from __future__ import annotations

import re
from typing import ClassVar

from pipeline.errors import PagegateError

KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""Segments of plain characters, none empty, none that begins with a dot: no ``..``, and nothing that a store
keeps for itself under a dotted name."""


class BadKey(PagegateError, ValueError):
    """A key that could leave the store's folder, or that another store might not take."""

    code: ClassVar[str] = "bad_key"


def check_key(key: str) -> str:
    """The key itself. Raises `BadKey` for an odd one."""
    if not KEY.fullmatch(key):
        raise BadKey(f"{key!r} is no object key: use letters, digits and ._- between single slashes", key=key)
    return key
