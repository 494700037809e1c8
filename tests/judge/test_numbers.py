"""When two numbers are equal: up to rounding, infinities by sign, NaN to NaN."""

from __future__ import annotations

import numpy as np
import pytest

from puzzles._judge.numbers import compare

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize(
    ("want", "got", "equal"),
    [
        (1, 1 + 1e-6, True),
        (1, 1 + 1e-3, False),
        (NAN, NAN, True),
        (NAN, 1, False),
        (1, NAN, False),
        (INF, INF, True),
        (INF, -INF, False),
        (INF, 1, False),
        (1, INF, False),
    ],
)
def test_what_is_not_finite_is_near_to_itself_alone(shape, want, got, equal) -> None:
    one, other = (np.full(shape, x, np.float32) for x in (want, got))
    assert (compare(one, other, None) is None) == equal
