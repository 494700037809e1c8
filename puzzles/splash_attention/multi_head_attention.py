"""Puzzle 6: heads on the grid, grouped queries, bf16."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, BFloat16

from puzzles import INTERPRET, find

# %% [markdown]
# ## multi_head_attention: who reads whose keys
#
# The heads of a model do not depend on each other: add a grid axis, and `None` in the blocks, as in
# `batched_matmul`. To save memory, a **group** of query heads shares one head of keys and values
# ([grouped-query attention](https://arxiv.org/abs/2305.13245)). With `N` = 6 and `K` = 2, a group has `N // K` = 3 heads:
#
# ```text
# q head    h =  0   1   2   3   4   5
#                └───┼───┘   └───┼───┘
# k, v head      0   0   0   1   1   1
# ```
#
# `jnp.repeat(k, N // K, axis=0)` writes a copy `N / K` times as large to HBM before the first score is computed. You
# need no copy: an **index map** may choose the same block for several heads.
#
# ![Query heads 0 and 1 both use key head 0, whose blocks stay in VMEM; query head 2 fetches key head 1.](diagrams/splash_attention/multi_head_attention.svg)
#
# The arrays are **bf16** now:
#
# * **bf16** is for the matrix unit, which multiplies `q` by `k` and `p` by `v`. So cast `p` for its dot. A weight
#   is between 0 and 1, and keeps 8 significant bits, as `v` itself does.
# * **f32** is for comparing, exponentiating and summing: `m`, `l`, `acc`, and both dots' results.
#
# In `flash_attention`'s kernel, fill in the lines that depend on dtypes, then the specs of `k` and `v`.
#
# <details><summary>More: the right type for each number</summary>
#
# Between 128 and 256, bf16 numbers are 1 apart, and an exponential whose argument is off by 1/2 is off by a factor of 1.6.
# So scores stay in f32.
#
# What if `p` stays in f32 as well? By default a TPU rounds the f32 operands of a dot to bf16, so `pv` gains nothing. (`l` is a sum in f32
# either way.) JAX's SplashAttention keeps `p` in f32, casts `v` to f32, and leaves the rounding to the matrix unit. Here you round
# `p` yourself, and the check requires it.
#
# </details>


# %%
def multi_head_attention_spec(
    q: BFloat16[Array, "N T H"], k: BFloat16[Array, "K S H"], v: BFloat16[Array, "K S H"]
) -> BFloat16[Array, "N T H"]:
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, len(q) // len(x), axis=0) for x in (k, v))
    return jax.vmap(find("attention").solution)(q, k, v).astype(jnp.bfloat16)


# %%
from puzzles.splash_attention.flash_attention import spread


def multi_head_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    j = pl.program_id(2)

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    last_axes = (((1,), (1,)), ((), ()))  # q @ k.T
    # s: the scores of the block
    ### BEGIN SOLUTION
    s = jax.lax.dot_general(q_ref[...], k_ref[...], last_axes, preferred_element_type=jnp.float32)
    ### END SOLUTION
    s *= q_ref.shape[-1] ** -0.5

    m_old = m_ref[...]
    m_new = jnp.maximum(m_old, jnp.max(s, axis=1, keepdims=True))
    p = jnp.exp(s - spread(m_new, s))
    alpha = jnp.exp(m_old - m_new)

    m_ref[...] = m_new
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    # pv: the product of p and v
    ### BEGIN SOLUTION
    pv = jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)
    ### END SOLUTION
    acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        l = l_ref[:, :1]
        ### BEGIN SOLUTION
        o_ref[...] = (acc_ref[...] / l).astype(o_ref.dtype)
        ### END SOLUTION


def multi_head_attention(
    q: BFloat16[Array, "N T H"],
    k: BFloat16[Array, "K S H"],
    v: BFloat16[Array, "K S H"],
    *,
    bq: int = 64,
    bk: int = 128,
) -> BFloat16[Array, "N T H"]:
    (N, T, H), (K, S, _) = q.shape, k.shape
    return pl.pallas_call(
        multi_head_attention_kernel,
        grid=(N, T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((None, bq, H), lambda h, i, j: (h, i, 0)),
            ### BEGIN SOLUTION
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            ### END SOLUTION
        ],
        out_specs=pl.BlockSpec((None, bq, H), lambda h, i, j: (h, i, 0)),
        out_shape=jax.ShapeDtypeStruct((N, T, H), q.dtype),
        scratch_shapes=[
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=INTERPRET,
    )(q, k, v)


# %% [markdown]
# How much was saved? For 32 query heads and 8 heads of keys and values, 8192 tokens and `H` = 128, keys and values
# take 32 MiB. Their repeated copy would take 128 MiB, written to HBM before the kernel starts. The traffic *inside*
# the launch is the same either way: every block of queries still fetches all keys and values of its head, unless
# they are a single block, as in the picture.

# %% active="ipynb"
# q = jax.ShapeDtypeStruct((32, 8192, 128), jnp.bfloat16)
# k = v = jax.ShapeDtypeStruct((8, 8192, 128), jnp.bfloat16)
# receipt(functools.partial(find("multi_head_attention").solution, bq=1024, bk=512), q, k, v)

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array
from puzzles.splash_attention import attention as first_puzzle


def make_inputs(key, N, K, T, S, H, large=False):
    q, k, v = map(np.array, first_puzzle.make_inputs(key, N * T, K * S, H, large))
    if first_puzzle.root(H) ** 2 != H:
        q /= 64  # its scale is no power of 2: scores so small that bf16 may round them
    for n in (1, 3):  # every head drifts over its whole length, and jumps in the middle of it
        k[:, n] = np.tile(k[::K, n], K)
    shapes = ((N, T, H), (K, S, H), (K, S, H))
    return tuple(array(x.reshape(s), jnp.bfloat16) for x, s in zip((q, k, v), shapes, strict=True))


def scale(N=16, K=4, T=1024, S=16384, H=128):
    return tuple(
        jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((N, T, H), (K, S, H), (K, S, H))
    )


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(N=6, K=2, T=128, S=256, H=64)
    shapes = [(8, 2, 64, 256, 128), (4, 1, 128, 384, 32), (2, 2, 192, 256, 8), (6, 3, 64, 1152, 32)]
    N, K, T, S, H = (int(n) for n in r.choice(shapes))
    return dict(N=N, K=K, T=T, S=S, H=H)


def keys_kept(launch):
    """Heads of queries, and how many bytes of keys reach the kernel."""
    q, k = launch.inputs[:2]
    size = np.prod(k.shape) * np.dtype(k.dtype).itemsize
    return f"k takes {size / 2**20:,.0f} MiB of HBM for {q.shape[0]} heads of queries"


def audit(launch: Launch) -> None:
    for dot in launch.dots:
        kinds = {str(dtype) for dtype in dot.dtypes[:2]}
        assert kinds == {"bfloat16"}, (
            f"a dot multiplies {' by '.join(dot.dtypes[:2])}: give the matrix unit bf16 on "
            "both sides, and ask for an f32 result"
        )
        assert dot.dtypes[2] == "float32", (
            f"a dot returns {dot.dtypes[2]}: ask for preferred_element_type=jnp.float32"
        )
    narrow = [o.name for o in launch.scratch if str(o.dtype) != "float32"]
    assert not narrow, f"`{narrow[0]}` is no float32: m, l and acc are changed at every step"


PUZZLE = Puzzle(
    spec=multi_head_attention_spec,
    solution=multi_head_attention,
    inputs=make_inputs,
    cases=[
        dict(N=6, K=2, T=128, S=256, H=64),
        dict(N=5, K=5, T=64, S=512, H=256, large=True, bq=32, bk=512),
    ],
    fresh=fresh,
    scale=scale,
    par=keys_kept,
    tolerance=2e-2,  # p has 8 bits in its dot, which takes most of bf16's 1e-2
    hints=[
        "Heads 0, 1, 2 share one head of keys, heads 3, 4, 5 the next. Which integer operation "
        "on h gives 0, 0, 0, 1, 1, 1? And which numbers of the kernel are f32, which bf16?",
        "An index map may use `N` and `K`, and `//`. A block of one head is `(None, rows, H)`. "
        "`.astype(ref.dtype)` casts; `preferred_element_type=jnp.float32` makes a dot of bf16 "
        "blocks return f32.",
        "First dot: as in attention_one_block. Second dot: cast the exponentials to `v`'s dtype "
        "there, and nowhere else. Store: cast the quotient to the output's dtype. The two specs "
        "are alike: head of the group, then j, then 0.",
    ],
    explain="""Index maps choose blocks freely, so several query heads can name the same head of
    keys, and no copy is ever made. Dots take bf16 and return f32. Everything that is summed or
    exponentiated stays in f32.""",
    audit=audit,
)
