"""How long to wait before something is tried again."""

from __future__ import annotations

import random

FIRST_S, LONGEST_S = 0.5, 30.0


def pause_s(failures: int) -> float:
    """Seconds after so many failures in a row: doubling from 0.5 to 30, each shortened at random by up to a half.

    Chance keeps the workers of a cluster from coming back all at once.
    """
    longest = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 16))
    return longest * random.uniform(0.5, 1)  # noqa: S311 - no secret
