"""The rows that the graph sees in place of a page's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pipeline.domain import Floats
from pipeline.pooling import pool_rows

Pages = arrays(np.float32, st.tuples(st.integers(1, 40), st.just(3)), elements=st.sampled_from((-1.0, 0.0, 0.5, 2.0)))


def test_two_rows_become_the_direction_between_them() -> None:
    pooled = pool_rows(np.array([[1, 0], [0, 1], [0, -3], [0, -3]], dtype=np.float32), run=2)

    half = 1 / math.sqrt(2)
    assert pooled.tolist() == pytest.approx(np.array([[half, half], [0, -1]]))


def test_a_last_row_alone_stands_for_itself() -> None:
    pooled = pool_rows(np.array([[1, 0], [1, 0], [0, 5]], dtype=np.float32), run=2)

    assert pooled.tolist() == [[1, 0], [0, 1]]


def test_the_length_of_a_row_is_not_its_weight() -> None:
    pooled = pool_rows(np.array([[60_000, 0], [0, 1e-4]], dtype=np.float32), run=2)

    assert pooled[0, 0] == pytest.approx(pooled[0, 1])


def test_where_rows_cancel_out_the_first_stands_for_them() -> None:
    pooled = pool_rows(np.array([[3, 4], [-3, -4], [1, 0], [0, 1]], dtype=np.float32), run=2)

    assert pooled[0].tolist() == pytest.approx([0.6, 0.8])


@given(rows=Pages, run=st.integers(1, 9))
def test_no_pooled_row_is_zero_and_every_row_is_in_one_run(rows: Floats, run: int) -> None:
    rows[~rows.any(axis=1)] = 1.0

    pooled = pool_rows(rows, run=run)

    assert pooled.shape == (math.ceil(len(rows) / run), 3)
    assert pooled.dtype == np.float32
    assert np.linalg.norm(pooled.astype(np.float16).astype(np.float64), axis=1) == pytest.approx(1, abs=2e-3)


def test_runs_of_one_keep_the_rows() -> None:
    rows = np.eye(4, dtype=np.float32)

    assert np.array_equal(pool_rows(rows, run=1), rows)


def test_a_run_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="run"):
        pool_rows(np.eye(2, dtype=np.float32), run=0)
