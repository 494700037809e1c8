"""Rung 4: one block of queries against all keys and values."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET, find

# %% [markdown]
# ## attention_one_block: three things that stay
#
# The output of attention is a quotient of two sums over the keys, with the same weights:
#
# $$o = \frac{\sum_s e^{x_s - m} \, v_s}{\sum_s e^{x_s - m}} = \frac{\text{acc}}{l}$$
#
# `l` you can keep up to date. `acc` is a row of `H` such sums, one for each column of `v`, and a new maximum makes it wrong by the
# same factor. This leads from online softmax to [FlashAttention](https://arxiv.org/abs/2205.14135)'s forward pass: **whatever was
# summed with the old maximum is corrected by the same `alpha`**.
#
# ```text
#                     j = 0          j = 1          j = 2
#  q (bq, H) ──┬──→ ┌────────┐ ──→ ┌────────┐ ──→ ┌────────┐
#   (stays)    │    │ s   p  │     │ s   p  │     │ s   p  │    o = acc / l
#              │    └────────┘     └────────┘     └────────┘
#              │     k₀    v₀       k₁    v₁       k₂    v₂     (each comes by once)
#
#  in scratch:   m (bq, 1)      l (bq, 1)      acc (bq, H)      (stay, change at every j)
# ```
#
# The scores `s` of one block live in VMEM for one step. The full matrix of scores never exists.
#
# The work has three parts, as in `tiled_matmul`: start at the first j, update at every j, store the
# quotient at the last. The grid is `(1, S // bk)`: j is axis **1**.
#
# `q @ k.T` needs no transpose: `jax.lax.dot_general` contracts any axis with any other,
# `dimension_numbers=(((a,), (b,)), ((), ()))` for axis a of the left operand with axis b of the right. Multiply the
# scores by 1/√H, in f32.

# %%
def attention_one_block_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    return find("attention").solution(q, k, v)


# %%
def attention_one_block_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    ### BEGIN SOLUTION
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    last_axes = (((1,), (1,)), ((), ()))  # q @ k.T
    s = jax.lax.dot_general(q_ref[...], k_ref[...], last_axes, preferred_element_type=jnp.float32)
    s *= q_ref.shape[-1] ** -0.5

    m_old = m_ref[...]
    m_new = jnp.maximum(m_old, jnp.max(s, axis=1, keepdims=True))
    p = jnp.exp(s - m_new)
    alpha = jnp.exp(m_old - m_new)

    m_ref[...] = m_new
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
    acc_ref[...] = alpha * acc_ref[...] + pv

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[...]
    ### END SOLUTION


def attention_one_block(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    (bq, H), (S, _) = q.shape, k.shape
    bk = 128
    return pl.pallas_call(
        attention_one_block_kernel,
        grid=(1, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (0, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec((bq, H), lambda i, j: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((bq, H), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((bq, 1), jnp.float32),  # m
            pltpu.VMEM((bq, 1), jnp.float32),  # l
            pltpu.VMEM((bq, H), jnp.float32),  # acc
        ],
        interpret=INTERPRET,
    )(q, k, v)


# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Mistake, Puzzle, array
from puzzles.splash_attention import attention
from puzzles.splash_attention.attention import root


def make_inputs(key, T, S, H, large=False, stairs=False):
    """As for `attention`; `stairs`: for every query the second of three blocks of keys lies lower, the third higher."""
    q, k, v = attention.make_inputs(key, T, S, H, large)
    if stairs:
        q, k = np.array(q), np.array(k)
        q[:, 1:5], q[:, 5], k[:, 5] = 0, root(H), np.repeat((0, -4, 4), S // 3)
        q, k = array(q, jnp.float32), array(k, jnp.float32)
    return q, k, v


def scale(T=512, S=65536, H=128):
    return tuple(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=64, S=384, H=256, large=bool(r.integers(2)))
    T, S, H = r.choice([(32, 1152, 128), (128, 256, 32), (96, 128, 8)])
    return dict(T=int(T), S=int(S), H=int(H), large=bool(r.integers(2)))


def fetches(launch):
    """How many blocks of keys there are, and how often one is fetched."""
    k = launch.inputs[1]
    blocks = -(-k.shape[-2] // k.block[-2])
    times = f"{k.transfers:,} time{'' if k.transfers == 1 else 's'}"
    return f"{blocks:,} block{'' if blocks == 1 else 's'} of k, fetched {times}"


# The matrix unit may sum the rows, too: 1 / 2H more for it to multiply.
ONES = Alternative(
    "sums with a column of ones",
    old="jnp.sum(p, axis=1, keepdims=True)",
    new="jnp.dot(p, jnp.ones((p.shape[1], 1), jnp.float32))",
)


_START = """    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

"""
_L = "l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)"
_ACC = "acc_ref[...] = alpha * acc_ref[...] + pv"
_SCALE = "    s *= q_ref.shape[-1] ** -0.5\n"
_NEW = "m_new = jnp.maximum(m_old, jnp.max(s, axis=1, keepdims=True))"
_STORE = "o_ref[...] = acc_ref[...] / l_ref[...]"

PUZZLE = Puzzle(
    spec=attention_one_block_spec,
    solution=attention_one_block,
    inputs=make_inputs,
    cases=[
        dict(T=64, S=384, H=256),
        dict(T=192, S=128, H=64, large=True),
        dict(T=64, S=384, H=256, stairs=True),
    ],
    fresh=fresh,
    scale=scale,
    par=fetches,
    tolerance=2e-4,
    waivers={"blocks": "one block of queries is the rung's idea; flash_attention has all of them"},
    hints=[
        "It is online_softmax on the block of scores, with one more sum to correct. Which shape has "
        "that sum, and how does alpha, a column, multiply it?",
        "`jax.lax.dot_general` gives the scores, `jnp.dot` the product of the exponentials with "
        "`v_ref[...]`, both with `preferred_element_type=jnp.float32`. `pl.num_programs(1) - 1` is "
        "the last j.",
        "At the first j, start the three scratch Refs. At every j: scaled scores; old and new maximum; "
        "exponentials and alpha; store the new maximum; l and acc become alpha times the old value plus "
        "the new sum, for acc a product of two blocks. At the last j, store the quotient.",
    ],
    explain="""Numerator and denominator of a softmax are sums with the same exponentials, so the
    same alpha corrects both when the maximum changes. The reference divides them once, at the end. The
    scores never leave VMEM.""",
    mistakes=[
        Mistake(
            "does not correct acc",
            old=_ACC,
            new="acc_ref[...] = acc_ref[...] + pv",
            says="acc is a sum with the old maximum, as l is: it needs the same alpha",
        ),
        Mistake(
            "does not correct l",
            old=_L,
            new=_L.replace("alpha * ", ""),
            says="l is a sum with the old maximum, as acc is: it needs the same alpha",
        ),
        Mistake(
            "corrects neither l nor acc",
            edits=((_L, _L.replace("alpha * ", "")), (_ACC, "acc_ref[...] = acc_ref[...] + pv")),
            says="what was summed before a larger maximum came is too large; if alpha is there, it "
            "was computed after m_ref had been overwritten, and is 1",
        ),
        Mistake(
            "corrects the new sums, too",
            edits=(
                (_L, "l_ref[...] = alpha * (l_ref[...] + jnp.sum(p, axis=1, keepdims=True))"),
                (_ACC, "acc_ref[...] = alpha * (acc_ref[...] + pv)"),
            ),
            says="this block's exponentials are already shifted by the new maximum: alpha is for what was summed before",
        ),
        Mistake(
            "corrects the new part of acc, too",
            old=_ACC,
            new="acc_ref[...] = alpha * (acc_ref[...] + pv)",
            says="this block's exponentials are already shifted by the new maximum: alpha is for the old acc alone",
        ),
        Mistake(
            "corrects the new part of l, too",
            old=_L,
            new="l_ref[...] = alpha * (l_ref[...] + jnp.sum(p, axis=1, keepdims=True))",
            says="this block's exponentials are already shifted by the new maximum: alpha is for the old l alone",
        ),
        Mistake(
            "skips a block in which no score is above the maximum",
            edits=(
                (_ACC, "@pl.when(jnp.any(m_new > m_old))\n    def _():\n        " + _ACC),
                (_L, "@pl.when(jnp.any(m_new > m_old))\n    def _():\n        " + _L),
            ),
            says="scores below the running maximum count, too: only their exponentials are smaller. Add "
            "every block to both sums",
        ),
        Mistake(
            "starts the maximum at 0",
            old="jnp.full_like(m_ref, -1e30)",
            new="jnp.zeros_like(m_ref)",
            says="where all scores of a row lie far below 0, every exp(s - 0) is 0, and so is the sum: start below any score",
        ),
        Mistake(
            "starts the maximum at -10000",
            old="m_ref, -1e30)",
            new="m_ref, -1e4)",
            says="all scores of a row may lie lower still: start at -1e30, below any score",
        ),
        Mistake(
            "divides by the last block's sum",
            old=_STORE,
            new="o_ref[...] = acc_ref[...] / jnp.sum(p, axis=1, keepdims=True)",
            says="the weights sum to 1 over all keys, and that sum is l",
        ),
        Mistake(
            "stores at the first step",
            old="pl.num_programs(1) - 1)",
            new="0)",
            says="only the first block of keys is in the result: store at the last j, pl.num_programs(1) - 1",
        ),
        Mistake(
            "divides acc by l at every step",
            edits=(
                (_ACC, "acc_ref[...] = (alpha * acc_ref[...] + pv) / l_ref[...]"),
                (_STORE, "o_ref[...] = acc_ref[...]"),
            ),
            says="what was divided once is divided again: keep acc and l as they are, and divide "
            "at the end",
        ),
        Mistake(
            "normalises each block on its own",
            edits=(
                ("pv = jnp.dot(p, v", "pv = jnp.dot(p / jnp.sum(p, axis=1, keepdims=True), v"),
                (_STORE, "o_ref[...] = acc_ref[...]"),
            ),
            says="weights sum to 1 over the whole row, not over each block of keys",
        ),
        Mistake(
            "divides only the new part of acc by l",
            edits=((_ACC, "acc_ref[...] = alpha * acc_ref[...] + pv / l_ref[...]"), (_STORE, "o_ref[...] = acc_ref[...]")),
            says="l is not complete yet, and the old part was divided by another one: keep sums, and divide both at the end",
        ),
        Mistake(
            "does not divide by l",
            old=_STORE,
            new="o_ref[...] = acc_ref[...]",
            says="acc is the numerator alone",
        ),
        Mistake(
            "has no running maximum",
            edits=(
                ("p = jnp.exp(s - m_new)", "p = jnp.exp(s)"),
                (_L, _L.replace("alpha * ", "")),
                (_ACC, "acc_ref[...] = acc_ref[...] + pv"),
            ),
            says="scores above 88 overflow, and rows with very negative scores become 0 / 0: shift "
            "by the maximum so far",
        ),
        Mistake(
            "shifts by the maximum of the current block",
            old=_NEW,
            new="m_new = jnp.max(s, axis=1, keepdims=True)",
            says="it may lie far below an earlier one, and alpha then overflows: keep the larger of "
            "the old maximum and this block's",
        ),
        Mistake(
            "forgets the scale",
            old=_SCALE,
            new="",
            says="the scores are not multiplied by 1/√H",
        ),
        Mistake(
            "scales by 1/H",
            old=_SCALE,
            new=_SCALE.replace("-0.5", "-1.0"),
            says="the scale is 1/√H",
        ),
        Mistake(
            "gives NaN everywhere",
            old=_START,
            new="",
            says="there is more than one way to get it. Scratch that is read before it was started holds "
            "garbage (NaN here), and so does an output that is never stored: j is the program id of axis 1. "
            "alpha upside down overflows in the first step, and so does p shifted by the old maximum. And -inf - (-inf) is NaN",
        ),
        Mistake(
            "starts over at every step",
            old="    @pl.when(j == 0)\n",
            new="    @pl.when(j >= 0)\n",
            says="only the last block of keys is in the result: start m, l and acc at the first j alone, "
            "which counts along grid axis 1, and store each new maximum",
        ),
        Mistake(
            "stores one step early",
            old="pl.num_programs(1) - 1)",
            new="pl.num_programs(1) - 2)",
            says="the last block of keys is not in the result; the last j is num_programs - 1",
        ),
        Mistake(
            "multiplies q and k as they lie",
            old="(((1,), (1,)), ((), ()))  #",
            new="(((1,), (0,)), ((), ()))  #",
            says="The axes that are summed over must be equally long",
            stage="error",
        ),
        Mistake(
            "drops the axis it reduces",
            old=_NEW,
            new=_NEW.replace(", keepdims=True", ""),
            says="is a column, (rows, 1), as `keepdims=True` gives it",
            stage="error",
        ),
        Mistake(
            "divides outside",
            code="""
def attention_one_block(q, k, v):
    (bq, H), (S, _) = q.shape, k.shape
    keys = pl.BlockSpec((128, H), lambda i, j: (j, 0))
    rows, column = (pl.BlockSpec((bq, n), lambda i, j: (0, 0)) for n in (H, 1))

    def kernel(q_ref, k_ref, v_ref, acc_ref, l_ref, m_ref, o_ref):
        attention_one_block_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref)

    acc, l = pl.pallas_call(
        kernel,
        grid=(1, S // 128),
        in_specs=[rows, keys, keys],
        out_specs=(rows, column),
        out_shape=tuple(jax.ShapeDtypeStruct((bq, n), jnp.float32) for n in (H, 1)),
        scratch_shapes=[pltpu.VMEM((bq, n), jnp.float32) for n in (1, H)],
        interpret=INTERPRET,
    )(q, k, v)
    return acc / l
""",
            says="outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "takes all keys in one block",
            old="bk = 128",
            new="bk = S",
            says="all of it as one block",
            stage="work",
        ),
        Mistake(
            "multiplies by l",
            old="acc_ref[...] / l_ref[...]",
            new="acc_ref[...] * l_ref[...]",
            says="l is the sum of the weights: divide by it, and they sum to 1",
        ),
        Mistake(
            "weights the keys",
            old="jnp.dot(p, v_ref[...]",
            new="jnp.dot(p, k_ref[...]",
            says="the output is a mean of the values: multiply p by v",
        ),
        Mistake(
            "takes the number of keys in a block for H",
            old="q_ref.shape[-1] ** -0.5",
            new="k_ref.shape[0] ** -0.5",
            says="H is the last axis of q and k, `q_ref.shape[-1]`",
        ),
        Mistake(
            "takes the number of queries for H",
            old="q_ref.shape[-1] ** -0.5",
            new="q_ref.shape[0] ** -0.5",
            says="H is the last axis of q and k, `q_ref.shape[-1]`",
        ),
        Mistake(
            "scales after the maximum",
            edits=(
                ("    s *= q_ref.shape[-1] ** -0.5", "    scale = q_ref.shape[-1] ** -0.5"),
                ("p = jnp.exp(s - m_new)", "p = jnp.exp(s * scale - m_new)"),
            ),
            says="m is then the maximum of other scores than those that go into `exp`: multiply s by "
            "1/√H first",
        ),
        Mistake(
            "keeps the product of the last block alone",
            old="acc_ref[...] = alpha * acc_ref[...] + pv",
            new="acc_ref[...] = pv",
            says="it takes the place of acc: add alpha times what acc holds",
        ),
        Mistake(
            "corrects the new part of acc instead of the old",
            old="acc_ref[...] = alpha * acc_ref[...] + pv",
            new="acc_ref[...] += alpha * pv",
            says="p is shifted by m_new already: alpha belongs to what acc holds",
        ),
        Mistake(
            "takes one maximum for all rows",
            old="jnp.max(s, axis=1, keepdims=True)",
            new="jnp.max(s)",
            says="a row far below it underflows, and 0 / 0 is NaN: reduce along axis 1, and keep that "
            "axis",
        ),
        Mistake(
            "adds up scores in l",
            old="jnp.sum(p, axis=1, keepdims=True)",
            new="jnp.sum(s, axis=1, keepdims=True)",
            says="l is the sum of the weights, p",
        ),
        Mistake(
            "multiplies by √H",
            old="** -0.5",
            new="** 0.5",
            says="the scores grow by √H where they should shrink by it",
        ),
    ],
    alternatives=[
        Alternative(
            "stores the quotient at every step",
            old=f"    @pl.when(j == pl.num_programs(1) - 1)\n    def _():\n        {_STORE}",
            new=f"    {_STORE}",
        ),
        Alternative(
            "keeps the mean instead of the sum",
            edits=(
                ("    m_ref[...] = m_new\n", "    m_ref[...] = m_new\n    l_old = l_ref[...]\n"),
                (_ACC, "acc_ref[...] = (acc_ref[...] * (alpha * l_old) + pv) / l_ref[...]"),
                (_STORE, "o_ref[...] = acc_ref[...]"),
            ),
        ),
        Alternative(
            "scales q, starts at -inf, and accumulates in o_ref",
            code="""
def attention_one_block_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        m_ref[...] = jnp.full(m_ref.shape, -jnp.inf)
        l_ref[...] = jnp.zeros(l_ref.shape)
        o_ref[...] = jnp.zeros(o_ref.shape)

    q = q_ref[...] / q_ref.shape[1] ** 0.5
    s = jnp.dot(q, k_ref[...].T, preferred_element_type=jnp.float32)
    m = jnp.maximum(m_ref[...], s.max(axis=-1, keepdims=True))
    correct = jnp.exp(m_ref[...] - m)
    m_ref[...] = m
    p = jnp.exp(s - m)
    l_ref[...] = l_ref[...] * correct + p.sum(axis=-1, keepdims=True)
    o_ref[...] = o_ref[...] * correct + p @ v_ref[...]

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        o_ref[...] /= l_ref[...]
""",
        ),
        Alternative(
            "stores the first block's sums and merges the others",
            code="""
def attention_one_block_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    s = jax.lax.dot_general(
        q_ref[...], k_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    ) / jnp.sqrt(1.0 * q_ref.shape[1])
    m_block = jnp.max(s, axis=1, keepdims=True)
    p = jnp.exp(s - m_block)
    l_block = jnp.sum(p, axis=1, keepdims=True)
    acc_block = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
    first = pl.program_id(1) == 0

    @pl.when(first)
    def _():
        m_ref[...], l_ref[...], acc_ref[...] = m_block, l_block, acc_block

    @pl.when(jnp.logical_not(first))
    def _():
        m = jnp.maximum(m_ref[...], m_block)
        old, new = jnp.exp(m_ref[...] - m), jnp.exp(m_block - m)
        l_ref[...] = old * l_ref[...] + new * l_block
        acc_ref[...] = old * acc_ref[...] + new * acc_block
        m_ref[...] = m

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[...]
""",
        ),
        Alternative(
            "takes powers of 2, with log2(e) in the scale",
            edits=(
                (_SCALE, "    s *= 1.4426950408889634 * q_ref.shape[-1] ** -0.5\n"),
                ("p = jnp.exp(s - m_new)", "p = jnp.exp2(s - m_new)"),
                ("alpha = jnp.exp(m_old - m_new)", "alpha = jnp.exp2(m_old - m_new)"),
            ),
        ),
        ONES,
        Alternative("takes other blocks", old="bk = 128", new="bk = 64"),
    ],
)
