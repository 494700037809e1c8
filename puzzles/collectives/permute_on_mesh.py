"""Puzzle 2: a device id has a number for each axis of the mesh."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## permute_on_mesh: along one axis of two
#
# The chips of a TPU form a grid, with links along two or three axes. In large slices the ends of an
# axis are linked, so the axis is a ring. Programs see the chips as a **mesh** with named axes. Here
# it has two, `"y"` and `"x"`, and each row along `"x"` is a ring of its own:
#
# ```text
#            x = 0       x = 1       x = 2
#
# y = 0     (0, 0)  ->  (0, 1)  ->  (0, 2)  ->  back to (0, 0)
#
# y = 1     (1, 0)  ->  (1, 1)  ->  (1, 2)  ->  back to (1, 0)
# ```
#
# Each device gives its block to its right neighbour in its own row.
#
# `device_id` is a tuple with one number for each axis, in the order of the mesh: `(y, x)`. On the
# axis along which the copy does not move, give the sender's own number.


# %%
def permute_on_mesh_spec(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    n = lax.axis_size("x")
    return lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)])


# %%
def permute_on_mesh_kernel(x_ref, o_ref, send_sem, recv_sem):
    # `right`: the place of the right neighbour on the mesh.
    ### BEGIN SOLUTION
    y, x, n = lax.axis_index("y"), lax.axis_index("x"), lax.axis_size("x")
    right = (y, lax.rem(x + 1, n))
    ### END SOLUTION
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, send_sem, recv_sem, device_id=right)
    copy.start()
    copy.wait()


def permute_on_mesh(x: Float[Array, "M N"]) -> Float[Array, "M N"]:
    return pl.pallas_call(
        permute_on_mesh_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        interpret=INTERPRET,
    )(x)


# %% tags=["author"]
import jax.numpy as jnp

from puzzles import Puzzle, array, rng


def make_inputs(key, y, x, M, N):
    return (array(rng(key).normal(0.3, 1, (y * x, M, N)), jnp.float32),)


def scale(M=4096, N=2048):
    return (jax.ShapeDtypeStruct((6, M, N), jnp.float32),)


def fresh(r):
    y, x = ((2, 3), (2, 4), (3, 2))[int(r.integers(3))]
    return dict(M=8 * int(r.choice([1, 3])), N=128, y=y, x=x)


PUZZLE = Puzzle(
    picture=False,  # the mesh above is the picture
    axes={"y": 2, "x": 3},
    spec=permute_on_mesh_spec,
    solution=permute_on_mesh,
    inputs=make_inputs,
    cases=[dict(M=16, N=128), dict(M=8, N=256, y=2, x=4), dict(M=8, N=128, y=3, x=2)],
    fresh=fresh,
    scale=scale,
    hints=[
        "The neighbour is in the same row. Which of its two numbers differs from yours?",
        '`lax.axis_index("y")` and `lax.axis_index("x")` are this device\'s place on the mesh. '
        "`device_id` needs both numbers of the other place, `y` first.",
        "`right` is a tuple: the same row, and the next column modulo the length of the row.",
    ],
    explain="""A device id is a place on the mesh, with one number for each axis. A collective along
    one axis leaves the numbers on the other axes alone, so each row runs a ring of its own.""",
)
