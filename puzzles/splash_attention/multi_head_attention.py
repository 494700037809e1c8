"""Rung 6: heads on the grid, grouped queries, bf16."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, BFloat16

from puzzles import INTERPRET, find

# %% [markdown]
# ## multi_head_attention: who reads whose keys
#
# A model has many heads, and they do not know of each other: one more grid axis, and `None` in the blocks, as in
# `batched_matmul`. To save memory, a **group** of query heads shares one head of keys and values
# ([grouped-query attention](https://arxiv.org/abs/2305.13245)). With `N` = 6 and `K` = 2, groups have `N // K` = 3 heads:
#
# ```text
# q head    h =  0   1   2   3   4   5
#                └───┼───┘   └───┼───┘
# k, v head      0   0   0   1   1   1
# ```
#
# `jnp.repeat(k, N // K, axis=0)` writes a copy `N / K` times as large to HBM before the first score is computed. You
# need none: in its **index maps**, two steps may choose the same block.
#
# ![Query heads 0 and 1 both use key head 0, whose blocks stay in VMEM; query head 2 fetches key head 1.](diagrams/splash_attention/multi_head_attention.svg)
#
# The arrays are **bf16** now:
#
# * **bf16** is what the matrix unit multiplies: `q` by `k`, and `p` by `v`. So cast `p` for its dot. A weight
#   lies between 0 and 1 and keeps 8 bits, as `v` itself does.
# * **f32** is what is compared, exponentiated and summed: `m`, `l`, `acc`, and what both dots return.
#
# In `attention_one_block`'s kernel, fill in what the types change; then the specs of `k` and `v`.
#
# <details><summary>More: what each type is good for</summary>
#
# Between 128 and 256, bf16 numbers are 1 apart, and an exponential whose argument is off by 1/2 is off by a factor of 1.6.
# So scores stay in f32.
#
# And if `p` stays in f32, too? By default a TPU rounds the f32 operands of a dot to bf16, so `pv` gains nothing (and `l` is a sum in f32
# either way). JAX's SplashAttention keeps `p` in f32, casts `v` to f32, and leaves the rounding to the matrix unit. Here you round
# yourself, and the check asks for it.
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
    p = jnp.exp(s - m_new)
    alpha = jnp.exp(m_old - m_new)

    m_ref[...] = m_new
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    # pv: what p makes of v
    ### BEGIN SOLUTION
    pv = jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)
    ### END SOLUTION
    acc_ref[...] = alpha * acc_ref[...] + pv

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
        ### BEGIN SOLUTION
        o_ref[...] = (acc_ref[...] / l_ref[...]).astype(o_ref.dtype)
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
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=INTERPRET,
    )(q, k, v)


# %% [markdown]
# What was saved? For 32 query heads and 8 heads of keys and values, 8192 tokens and `H` = 128, keys and values
# take 32 MiB. Their repeated copy would take 128 MiB, written to HBM before the kernel starts. The traffic *inside*
# the launch is the same either way, where a head's keys take more than one block (in the picture they
# take one): every block of queries still fetches all keys and values of its head.

# %% active="ipynb"
# q = jax.ShapeDtypeStruct((32, 8192, 128), jnp.bfloat16)
# k = v = jax.ShapeDtypeStruct((8, 8192, 128), jnp.bfloat16)
# receipt(functools.partial(find("multi_head_attention").solution, bq=1024, bk=512), q, k, v)

# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Launch, Mistake, Puzzle, array
from puzzles.splash_attention import attention as first_rung


def make_inputs(key, N, K, T, S, H, large=False):
    q, k, v = map(np.array, first_rung.make_inputs(key, N * T, K * S, H, large))
    if first_rung.root(H) ** 2 != H:
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
            f"a dot multiplies {' by '.join(dot.dtypes[:2])}: give the matrix unit bf16 on both sides, "
            "and ask for an f32 result"
        )
        assert dot.dtypes[2] == "float32", f"a dot returns {dot.dtypes[2]}: ask for preferred_element_type=jnp.float32"
    narrow = [o.name for o in launch.scratch if str(o.dtype) != "float32"]
    assert not narrow, f"`{narrow[0]}` is no float32: m, l and acc are changed at every step"


_KV = """            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
"""
_K = "            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),\n"
_QK = (
    "s = jax.lax.dot_general(q_ref[...], k_ref[...], last_axes, preferred_element_type=jnp.float32)"
)
_PV = "pv = jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)"
_STORE = "o_ref[...] = (acc_ref[...] / l_ref[...]).astype(o_ref.dtype)"
_SCALE = "    s *= q_ref.shape[-1] ** -0.5\n"
_BODY = "    j = pl.program_id(2)"


def _map(head: str) -> str:
    return _K.replace("h // (N // K)", head) * 2


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
        "Heads 0, 1, 2 share one head of keys, heads 3, 4, 5 the next. Which whole-number operation on h gives "
        "0, 0, 0, 1, 1, 1? And which numbers of the kernel are f32, which bf16?",
        "An index map may use `N` and `K`, and `//`. A block of one head is `(None, rows, H)`. `.astype(ref.dtype)` "
        "casts; `preferred_element_type=jnp.float32` makes a dot of bf16 blocks return f32.",
        "First dot: as in attention_one_block. Second dot: the exponentials cast to `v`'s dtype inside it, and nowhere "
        "else. Store: the quotient cast to the output's dtype. The two specs are alike: head of the group, then j, then 0.",
    ],
    explain="""Index maps choose blocks freely, so several query heads can name the same head of keys
    and no copy is ever made. Dots take bf16 and return f32, and all that is summed or exponentiated
    stays f32.""",
    mistakes=[
        Mistake(
            "deals the key heads out in turn",
            old=_KV,
            new=_map("h % K"),
            says="heads of a group are neighbours: 0, 0, 0, 1, 1, 1 and not 0, 1, 0, 1, 0, 1",
        ),
        Mistake(
            "divides by the number of key heads",
            old=_KV,
            new=_map("h // K"),
            says="divide h by the size of a group, N // K, not by the number of groups",
        ),
        Mistake(
            "takes the query head's own number",
            old=_KV,
            new=_map("h"),
            says="there are fewer heads of keys than of queries; an index beyond the last is out of "
            "bounds",
        ),
        Mistake(
            "uses the first head of keys and values for all",
            old=_KV,
            new=_map("0"),
            says="the index maps of k and v ignore h",
        ),
        Mistake(
            "takes a head's number within its group",
            old=_KV,
            new=_map("h % (N // K)"),
            says="that tells the heads of one group apart; which group it is, the division tells: h // (N // K)",
        ),
        Mistake(
            "moves keys and values with i",
            old=_KV,
            new=_KV.replace("j, 0)", "i, 0)"),
            says="a block of queries has to meet all keys: their map returns j, the innermost axis",
        ),
        Mistake(
            "pairs the group's keys with other values",
            old=_KV,
            new=_K + _K.replace("h // (N // K)", "h % K"),
            says="k is right; v needs the same index map",
        ),
        Mistake(
            "leaves keys and values at their first block",
            old=_KV,
            new=_KV.replace("j, 0)", "0, 0)"),
            says="the maps of k and v ignore j: the same keys are met again and again",
        ),
        Mistake(
            "computes its scores in bf16",
            old=_QK,
            new="s = jax.lax.dot_general(q_ref[...], k_ref[...], last_axes)",
            says="scores near 200 in bf16 are off by up to 1/2, and their exponentials by more than half: "
            "ask the first dot for f32",
        ),
        Mistake(
            "fetches the keys of all heads and chooses in the kernel",
            edits=(
                (_KV, "            pl.BlockSpec((K, bk, H), lambda h, i, j: (0, j, 0)),\n" * 2),
                (_QK, _QK.replace("k_ref[...]", "k_ref[head]")),
                (_PV, _PV.replace("v_ref[...]", "v_ref[head]")),
                (
                    _BODY,
                    "    head = pl.program_id(0) // (pl.num_programs(0) // k_ref.shape[0])\n"
                    "    j = pl.program_id(2)",
                ),
            ),
            says="8.01 GiB are moved between HBM and the kernel, where 2.01 GiB are enough",
            stage="work",
        ),
        Mistake(
            "leaves p in f32",
            old=_PV,
            new=_PV.replace(".astype(v_ref.dtype)", ""),
            says="give the matrix unit bf16 on both sides",
            stage="work",
        ),
        Mistake(
            "casts the inputs to f32",
            old=_QK,
            new=_QK.replace("f[...]", "f[...].astype(jnp.float32)"),
            says="give the matrix unit bf16 on both sides",
            stage="work",
        ),
        Mistake(
            "keeps acc in bf16",
            edits=(
                ("pltpu.VMEM((bq, H), jnp.float32)", "pltpu.VMEM((bq, H), q.dtype)"),
                (
                    "acc_ref[...] = alpha * acc_ref[...] + pv",
                    "acc_ref[...] = (alpha * acc_ref[...] + pv).astype(acc_ref.dtype)",
                ),
            ),
            says="are changed at every step",
            stage="work",
        ),
        Mistake(
            "stores the f32 quotient as it is",
            old=_STORE,
            new="o_ref[...] = acc_ref[...] / l_ref[...]",
            says="What is stored must have the Ref's dtype",
            stage="error",
        ),
        Mistake(
            "repeats keys and values in memory",
            edits=(
                (_KV, _map("h")),
                (
                    "    )(q, k, v)",
                    "    )(q, *(jnp.broadcast_to(x[:, None], (K, N // K, S, H)).reshape(N, S, H) for x in (k, v)))",
                ),
            ),
            says="arrays of 128 MiB are made outside of the kernel, where 0 B are enough",
            stage="work",
        ),
        Mistake(
            "takes all keys in one block",
            edits=(
                (
                    "(N, T, H), (K, S, _) = q.shape, k.shape\n",
                    "(N, T, H), (K, S, _) = q.shape, k.shape\n    bk = S\n",
                ),
            ),
            says="for blocks of (1, 16384, 128)",
            stage="work",
        ),
        Mistake(
            "does not divide by l",
            old=_STORE,
            new="o_ref[...] = acc_ref[...].astype(o_ref.dtype)",
            says="acc is the numerator alone: divide by l, then cast",
        ),
        Mistake(
            "weights the values by the scores",
            old=_PV,
            new=_PV.replace("p.astype", "s.astype"),
            says="the second dot takes the weights p, and s is what they were made of",
        ),
        Mistake(
            "casts v to f32 instead of p to bf16",
            old=_PV,
            new="pv = jnp.dot(p, v_ref[...].astype(p.dtype), preferred_element_type=jnp.float32)",
            says="give the matrix unit bf16 on both sides",
            stage="work",
        ),
        Mistake(
            "lets the second dot return bf16",
            old=_PV,
            new="pv = jnp.dot(p.astype(v_ref.dtype), v_ref[...])",
            says="a dot returns bfloat16",
            stage="work",
        ),
        Mistake(
            "multiplies q and k as they lie",
            old=_QK,
            new="s = jnp.dot(q_ref[...], k_ref[...], preferred_element_type=jnp.float32)",
            says="The axes that are summed over must be equally long",
            stage="error",
        ),
        Mistake(
            "keeps the axis of heads in the blocks of keys and values",
            old=_KV,
            new=_KV.replace("None, bk", "1, bk"),
            says="dot_general requires contracting dimensions",
            stage="error",
        ),
        Mistake(
            "names the block before the head",
            old="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),""",
            new="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (j, h // (N // K), 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (j, h // (N // K), 0)),""",
            says="the array is (K, S, H): the head comes first, then the block of keys",
        ),
        Mistake(
            "multiplies by the size of a group",
            old="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),""",
            new="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (h * (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h * (N // K), j, 0)),""",
            says="N // K query heads share a key head: divide h by that",
        ),
        Mistake(
            "moves the values with i",
            old="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),""",
            new="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), i, 0)),""",
            says="keys and values go by together, with j",
        ),
        Mistake(
            "pairs the group's values with other keys",
            old="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),""",
            new="""            pl.BlockSpec((None, bk, H), lambda h, i, j: (h % K, j, 0)),
            pl.BlockSpec((None, bk, H), lambda h, i, j: (h // (N // K), j, 0)),""",
            says="N // K neighbouring query heads share a key head, for keys and values alike: h // (N "
            "// K)",
        ),
        Mistake(
            "multiplies by l",
            old="(acc_ref[...] / l_ref[...])",
            new="(acc_ref[...] * l_ref[...])",
            says="l is the sum of the weights: divide by it",
        ),
        Mistake(
            "multiplies pv by alpha",
            old="pv = jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)",
            new="pv = alpha * jnp.dot(p.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)",
            says="p is shifted by the new maximum already: alpha corrects what acc holds, and the next "
            "line does that",
        ),
        Mistake(
            "scales twice",
            old="s = jax.lax.dot_general(q_ref[...], k_ref[...], last_axes, preferred_element_type=jnp.float32)",
            new="s = q_ref.shape[-1] ** -0.5 * jax.lax.dot_general(q_ref[...], k_ref[...], last_axes, preferred_element_type=jnp.float32)",
            says="the line after the dot multiplies s by 1/√H",
        ),
        Mistake(
            "weights the keys",
            old="jnp.dot(p.astype(v_ref.dtype), v_ref[...],",
            new="jnp.dot(p.astype(v_ref.dtype), k_ref[...],",
            says="the output is a mean of the values: multiply p by v",
        ),
        Mistake(
            "divides by the last block's sum",
            old="(acc_ref[...] / l_ref[...])",
            new="(acc_ref[...] / jnp.sum(p, axis=1, keepdims=True))",
            says="the weights sum to 1 over all keys, and that sum is l",
        ),
    ],
    alternatives=[
        Alternative(
            "spells the index map otherwise",
            old=_KV,
            new=_map("(h * K) // N"),
        ),
        Alternative(
            "folds the heads of a group into rows of queries",
            code="""
def multi_head_attention(q, k, v):
    (N, T, H), (K, S, _) = q.shape, k.shape
    G, bq, bk = N // K, 64, 128

    keys = pl.BlockSpec((None, bk, H), lambda h, i, j: (h, j, 0))
    rows = pl.BlockSpec((None, bq, H), lambda h, i, j: (h, i, 0))
    o = pl.pallas_call(
        multi_head_attention_kernel,
        grid=(K, G * T // bq, S // bk),
        in_specs=[rows, keys, keys],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct((K, G * T, H), q.dtype),
        scratch_shapes=[pltpu.VMEM((bq, n), jnp.float32) for n in (1, 1, H)],
        interpret=INTERPRET,
    )(q.reshape(K, G * T, H), k, v)
    return o.reshape(N, T, H)
""",
        ),
        Alternative(
            "scales the queries and multiplies by k.T",
            edits=(
                (
                    f"    {_QK}\n",
                    """    q = q_ref[...].astype(jnp.float32) * q_ref.shape[1] ** -0.5
    s = jnp.dot(q.astype(k_ref.dtype), k_ref[...].T, preferred_element_type=jnp.float32)
""",
                ),
                (_SCALE, ""),
            ),
        ),
        Alternative("takes other blocks", old="bk: int = 128", new="bk: int = 64"),
    ],
    audit=audit,
)
