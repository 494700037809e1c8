"""Checks of the integers that steer a grouped matmul."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, Int


def check_sizes(group_sizes: Int[Array, " E"], M: int) -> None:
    """Raise ValueError if sizes are negative or add up to more than `M` rows.

    Under `jit` the sizes are traced, and nothing is checked.
    """
    if isinstance(group_sizes, jax.core.Tracer | jax.ShapeDtypeStruct):
        return
    sizes = np.asarray(group_sizes, np.int64)
    if (sizes < 0).any():
        g = int(np.argmax(sizes < 0))
        raise ValueError(f"group_sizes[{g}] is {sizes[g]}: a group has 0 rows or more")
    if sizes.sum() > M:
        raise ValueError(
            f"group_sizes add up to {sizes.sum()}, and there are {M} rows: cut the sizes, or pad "
            "the rows"
        )


def check_first(first: Int[Array, ""], L: int, E: int) -> None:
    """Raise ValueError if experts `first` to `first + L - 1` are not all among the `E` groups.

    Under `jit` the number is traced, and nothing is checked.
    """
    if not isinstance(first, jax.core.Tracer | jax.ShapeDtypeStruct) and not 0 <= first <= E - L:
        raise ValueError(
            f"first is {first}: rhs has the weights of {L} of the {E} groups, "
            f"so first is 0 to {E - L}"
        )
