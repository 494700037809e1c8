"""Puzzle 17: a kernel that trains."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from puzzles import find

# %% [markdown]
# ## trainable_matmul: tell JAX the gradient
#
# `jax.grad` does not get through your `pallas_call`. With `jax.custom_vjp` you give it two
# functions:
#
# * **forward** gets the arguments. It returns the result, and a tuple of the values that the
#   backward pass will need: the *residuals*.
# * **backward** gets the residuals and `g`, the gradient with respect to the result. It returns a
#   tuple: one gradient for each argument.
#
# `defvjp` attaches them. Then `jax.grad`, `jax.jit` and `jax.vmap` work. Forward mode, `jax.jvp`, and
# second derivatives do not: JAX has not been given those rules.
#
# Write both rules, with `product` and with `find("matmul_gradients").solution`, the previous
# puzzle's answer.


# %%
def trainable_matmul_spec(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return jnp.dot(a, b)


# %%
@jax.custom_vjp
def product(a, b):
    return find("tiled_matmul").solution(a, b)


def product_forward(a, b):
    ### BEGIN SOLUTION
    return product(a, b), (a, b)
    ### END SOLUTION


def product_backward(residuals, g):
    ### BEGIN SOLUTION
    a, b = residuals
    return find("matmul_gradients").solution(a, b, g)
    ### END SOLUTION


product.defvjp(product_forward, product_backward)


def trainable_matmul(a: Float[Array, "M K"], b: Float[Array, "K N"]) -> Float[Array, "M N"]:
    return product(a, b)


# %% [markdown]
# Now train: a tiny model of two products and a GELU learns random numbers, and its loss falls. It
# uses the reference; the last comment shows how to use your own function.

# %% active="ipynb"
# from puzzles import plot
#
#
# def train(matmul, steps=8, rate=5.0):
#     """The loss before each step."""
#     r = np.random.default_rng(0)
#     x, target = (jnp.asarray(r.normal(size=(128, 256)), jnp.float32) for _ in range(2))
#     weights = [jnp.asarray(r.normal(size=(256, 256)) / 16, jnp.float32) for _ in range(2)]
#
#     @jax.jit
#     def step(weights):
#         def loss(weights):
#             hidden = jax.nn.gelu(matmul(x, weights[0]))
#             return jnp.mean((matmul(hidden, weights[1]) - target) ** 2)
#
#         value, gradients = jax.value_and_grad(loss)(weights)
#         return value, [w - rate * g for w, g in zip(weights, gradients)]
#
#     losses = []
#     for _ in range(steps):
#         value, weights = step(weights)
#         losses.append(float(value))
#     return losses
#
#
# # With your own: train(trainable_matmul)
# plot(train(find("trainable_matmul").solution), "loss by step")

# %% [markdown]
# **When not to write a kernel.** XLA fuses the operations around a product: the layer of
# `fused_matmul`, in plain JAX, compiles to one fusion, with no temporary array. And it fuses
# elementwise work. Here is `x + y + z` by two launches of `launch_vector_add`. The sum between them
# goes to HBM and back, so 768 MiB are moved. XLA makes one loop of it, which reads three
# arrays and writes one: 512 MiB.

# %% active="ipynb"
# big = jax.ShapeDtypeStruct((8192, 4096), jnp.float32)
# add = find("launch_vector_add").solution
# receipt(lambda x, y, z: add(add(x, y), z), big, big, big)

# %% [markdown]
# A kernel earns its place where XLA cannot see the trick: blocks that need not be computed, an
# index map that looks up a table, a softmax that never stores its scores.

# %% tags=["author"]
from puzzles import Puzzle, array, rng, vjp


def make_inputs(key, M, K, N):
    r = rng(key)
    return tuple(array(r.normal(size=shape), jnp.float32) for shape in ((M, K), (K, N)))


def observe(fn):
    """Value and gradients, the same under jit, and under vmap over a leading axis of both."""

    def with_gradients(a, b):
        y, pullback = vjp(fn, a, b)
        return y, *pullback(
            jax.lax.rev(y, (0, 1))
        )  # a gradient at the result that is nobody's operand

    def all_three(a, b):
        two = (jnp.concatenate([x[None], jax.lax.rev(x, (0,))[None]]) for x in (a, b))
        return (
            *with_gradients(a, b),
            *jax.jit(with_gradients)(a, b),
            *jax.vmap(with_gradients)(*two),
        )

    return all_three


def scale(M=2048, K=2048, N=4096):
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (K, N)))


def fresh(r):
    M, K, N = [(128, 128, 512), (128, 256, 768), (256, 128, 256), (384, 128, 256)][r.integers(4)]
    return dict(M=M, K=K, N=N)


PUZZLE = Puzzle(
    spec=trainable_matmul_spec,
    solution=trainable_matmul,
    inputs=make_inputs,
    cases=[dict(M=256, K=256, N=512)],
    fresh=fresh,
    scale=scale,
    observe=observe,
    outside=[
        "mul",
        "div",
        "neg",
        "max",
        "min",
    ],  # a gradient that is scaled or clipped is told as such
    picture=False,  # two functions of whole arrays: nothing new moves through space
    results=[
        f"{what}{how}"
        for how in ("", " under jit", " under vmap")
        for what in ("the product", "da", "db")
    ],
    hints=[
        "Which of a, b and the result do the two gradients need? Look at the arguments of the "
        "previous puzzle.",
        "forward returns two things, `(result, residuals)`; backward returns one gradient for each "
        "argument, in the order of the arguments.",
        "Forward: the product, and a tuple of both operands. Backward: unpack them, and hand them "
        "with g to the previous puzzle's solution; return its pair.",
    ],
    explain="""The forward rule says what to save, the backward rule how to use it. Around them,
    `jax.grad` works as with any other function. Both operands are saved: each is needed for the
    other's gradient.""",
)
