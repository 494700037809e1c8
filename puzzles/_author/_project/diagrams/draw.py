"""Every diagram, drawn from the reference launches by `python -m puzzles build`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from puzzles._author import strip

# By '<ladder>/<rung>'; the rung links `diagrams/<ladder>/<rung>.svg`, with words for who cannot see
# it. Each says which rung, the shapes of its arguments, the first step, a note a step, the title.
DIAGRAMS = {
    "my_ladder/my_rung": strip(
        "my_rung",
        [jax.ShapeDtypeStruct((16, 384), jnp.float32)],
        2,
        [
            "The last block of the first row of blocks,",
            "and the first of the second.",
        ],
        "Block by block, row by row",
    ),
}
