"""Every diagram, drawn from the reference launches by `python -m puzzles build`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from puzzles._author import strip

# By '<ladder>/<puzzle>'; the puzzle links `diagrams/<ladder>/<puzzle>.svg`, with alt text. Give
# the puzzle, the shapes of its arguments, the first step, a note for each step, and the title.
DIAGRAMS = {
    "my_ladder/my_puzzle": strip(
        "my_puzzle",
        [jax.ShapeDtypeStruct((16, 384), jnp.float32)],
        2,
        [
            "The last block of the first row of blocks,",
            "and the first of the second.",
        ],
        "Block by block, row by row",
    ),
}
