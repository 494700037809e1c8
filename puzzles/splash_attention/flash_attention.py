"""Rung 5: the same kernel, another grid."""


import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET, find

# %% [markdown]
# ## flash_attention: the body does not change
#
# What does it take to do all blocks of queries? Unfold the cell below: **the kernel is that of
# `attention_one_block`, letter by letter.** It never asked which queries it holds. So give the grid a real first axis:
#
# ```text
#                 k₀ v₀     k₁ v₁     k₂ v₂
#  i = 0   q₀    (0, 0) →  (0, 1) →  (0, 2)  → o₀
#  i = 1   q₁    (1, 0) →  (1, 1) →  (1, 2)  → o₁        → time runs along the rows
# ```
#
# A single set of scratch serves one block of queries after the other. Which lines of the kernel make that safe?
#
# ![For one block of queries, the blocks of k and v are fetched one after another; the output is written after the last, and the next block of queries begins with the first keys again.](diagrams/splash_attention/flash_attention.svg)
#
# All around the kernel is yours this time:
#
# * the grid, the specs, the output's shape; `bq` queries and `bk` keys a block;
# * the scratch: m, l and acc of **one** block of queries, in f32 and in this order;
# * `dimension_semantics` in `compiler_params`, one word for each axis of the grid. Which axis may be shared out among
#   cores? Along which does a step need what the step before it left?

# %%
def flash_attention_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    return find("attention").solution(q, k, v)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (spoils attention_one_block)
def flash_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
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


# %%
def flash_attention(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    *,
    bq: int = 64,
    bk: int = 128,
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    return pl.pallas_call(
        flash_attention_kernel,
        ### BEGIN SOLUTION
        grid=(T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        ### END SOLUTION
        interpret=INTERPRET,
    )(q, k, v)


# %% [markdown]
# Is it worth it? For 8192 queries and keys, the matrix of scores has 256 MiB in f32. Plain attention
# would write it, read it, write the weights and read those. Flash attention reads the queries once, and
# all keys and values **once for every block of queries**. So `bq` decides the traffic, and small blocks
# move as many bytes as the plain way.
#
# What stops you is VMEM. It holds the blocks and the scratch, and, where blocks are large, what the body computes: `s` and
# `p` have bq × bk numbers each. The last blocks do not fit into the 16 MiB that a v5e gives a kernel unasked. This is the
# reference, counted; try other blocks.

# %% active="ipynb"
# flash = find("flash_attention").solution
# q = k = v = jax.ShapeDtypeStruct((8192, 128), jnp.float32)
# print("   bq    bk   steps  HBM MiB   VMEM MiB: blocks and scratch   s and p")
# for bq, bk in [(64, 128), (256, 256), (512, 512), (1024, 512), (2048, 1024)]:
#     (launch,) = trace(functools.partial(flash, bq=bq, bk=bk), q, k, v)
#     vmem, body, hbm = (x / 2**20 for x in (launch.vmem_bytes, 2 * 4 * bq * bk, launch.hbm_bytes))
#     print(f"{bq:5}{bk:6}{launch.steps:8}{hbm:9.0f}{vmem:31.1f}{body:10.1f}")
# print(f"  plain, scores and weights:{4 * 4 * 8192**2 / 2**20:.0f}")

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle
from puzzles.splash_attention.attention import make_inputs
from puzzles.splash_attention.attention_one_block import fetches


def scale(T=8192, S=16384, H=128):
    return tuple(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=192, S=640, H=64, large=bool(r.integers(2)))
    T, S, H = r.choice([(64, 1152, 128), (576, 128, 32), (320, 256, 8)])
    return dict(T=int(T), S=int(S), H=int(H), large=bool(r.integers(2)))


def audit(launch: Launch) -> None:
    narrow = [o.name for o in launch.scratch if str(o.dtype) != "float32"]
    assert not narrow, f"`{narrow[0]}` is {launch.scratch[-1].dtype}: keep m, l and acc in float32"
    semantics = launch.dimension_semantics
    assert semantics is not None, (
        "the launch promises nothing about its axes: pass "
        "compiler_params=pltpu.CompilerParams(dimension_semantics=...)"
    )
    assert len(launch.grid) == 2, (
        f"the grid is {launch.grid}, and this rung asks for two axes: blocks of queries, and for each of "
        "them the blocks of keys"
    )
    assert semantics == ("parallel", "arbitrary"), (
        f"dimension_semantics is {semantics}: blocks of queries do not depend on each other, so axis 0 "
        "can be shared out among cores; the steps along the keys have to stay in order"
    )


_GRID = "grid=(T // bq, S // bk)"
_Q = """        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
"""
_KV = """            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
"""
_K = "            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),\n"
_OUT = "out_specs=pl.BlockSpec((bq, H), lambda i, j: (i, 0))"
_SCRATCH = """            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
"""
_SEMANTICS = 'dimension_semantics=("parallel", "arbitrary")'
_BLOCKS = "    bq: int = 64,\n    bk: int = 128,\n"

PUZZLE = Puzzle(
    spec=flash_attention_spec,
    solution=flash_attention,
    inputs=make_inputs,
    cases=[dict(T=192, S=640, H=64), dict(T=128, S=1024, H=256, large=True, bq=32, bk=512)],  # unequal numbers of blocks
    fresh=fresh,
    scale=scale,
    par=fetches,
    tolerance=2e-4,
    hints=[
        "Step (i, j) brings block i of the queries together with block j of the keys and values. Which "
        "operands does i move, which does j?",
        "Six keywords: grid, in_specs, out_specs, out_shape, scratch_shapes, compiler_params. Copy the "
        "call of attention_one_block and change what depends on i. The kernel reads j from axis 1.",
        "The grid counts T in blocks of bq, then S in blocks of bk. The maps of queries and output "
        "return i, those of keys and values j. Three f32 VMEM scratch shapes, two columns and a block "
        "like the output's. The words: i is free, j is in order.",
    ],
    explain="""The kernel starts its scratch at every j = 0, so each block of queries finds a fresh
    set and the body does not change. That is also why i is parallel: nothing passes from one i to the
    next.""",
    mistakes=[
        Mistake(
            "counts blocks of keys where the grid counts blocks of queries",
            old="grid=(T // bq, S // bk)",
            new="grid=(S // bk, T // bq)",
            says="the grid's first axis counts the queries' blocks, T // bq, its second the keys', S // bk; the other way "
            "round, the kernel stores before the last keys or asks for queries that are not there",
        ),
        Mistake(
            "uses the first block of queries throughout",
            old=_Q,
            new=_Q.replace("(i, 0)", "(0, 0)"),
            says="the queries' index map ignores i: every block of rows gets the answer of the first",
        ),
        Mistake(
            "moves the queries with j",
            old=_Q,
            new=_Q.replace("(i, 0)", "(j, 0)"),
            says="one block of queries has to stay while j runs over the keys",
        ),
        Mistake(
            "moves the keys with i",
            old=_KV,
            new=_K.replace("(j, 0)", "(i, 0)") + _K,
            says="a query has to meet all keys: the keys' index map returns j",
        ),
        Mistake(
            "moves keys and values with i",
            old=_KV,
            new=_K.replace("(j, 0)", "(i, 0)") * 2,
            says="each block of queries sees one block of keys and values, again and again",
        ),
        Mistake(
            "leaves the values behind",
            old=_KV,
            new=_K + _K.replace("(j, 0)", "(0, 0)"),
            says="the values' index map ignores j: all keys are paired with the first block of values",
        ),
        Mistake(
            "writes every result to the first block",
            old=_OUT,
            new=_OUT.replace("(i, 0)", "(0, 0)"),
            says="the output's index map ignores i: one block is written by all, the others by none",
        ),
        Mistake(
            "stops one block of keys short",
            old=_GRID,
            new="grid=(T // bq, S // bk - 1)",
            says="the last block of keys is never visited",
        ),
        Mistake(
            "counts queries by bk and keys by bq",
            old=_GRID,
            new="grid=(T // bk, S // bq)",
            says="T is cut into blocks of bq, S into blocks of bk: there are fewer blocks of queries "
            "in this grid than in the array",
        ),
        Mistake(
            "counts the queries again where the keys belong",
            old=_GRID,
            new="grid=(T // bq, T // bk)",
            says="the number of keys is S, not T",
        ),
        Mistake(
            "puts the keys first",
            edits=(
                (_GRID, "grid=(S // bk, T // bq)"),
                (_Q, _Q.replace("lambda i, j", "lambda j, i")),
                (_KV, _KV.replace("lambda i, j", "lambda j, i")),
                (_OUT, _OUT.replace("lambda i, j", "lambda j, i")),
                (_SEMANTICS, 'dimension_semantics=("arbitrary", "arbitrary")'),
            ),
            says="the kernel reads j from grid axis 1, and its scratch belongs to one block of queries: "
            "the keys' axis comes last",
        ),
        Mistake(
            "forgets the scratch",
            old=f"        scratch_shapes=[\n{_SCRATCH}        ],\n",
            new="",
            says="A kernel receives one Ref",
            stage="error",
        ),
        Mistake(
            "lists the scratch of acc first",
            old=_SCRATCH,
            new="".join(sorted(_SCRATCH.splitlines(True), reverse=True)),
            says="the Refs stand in the order of `scratch_shapes`",
            stage="error",
        ),
        Mistake(
            "makes the statistics as long as a block of keys",
            old=_SCRATCH,
            new=_SCRATCH.replace("(bq, 1)", "(bk, 1)"),
            says="how many a scratch buffer has",
            stage="error",
        ),
        Mistake(
            "promises that both axes are parallel",
            old=_SEMANTICS,
            new='dimension_semantics=("parallel", "parallel")',
            says="which differ along axis 1, marked 'parallel'",
            stage="memory",
        ),
        Mistake(
            "promises too little",
            old=_SEMANTICS,
            new='dimension_semantics=("arbitrary", "arbitrary")',
            says="can be shared out among cores",
            stage="work",
        ),
        Mistake(
            "takes all keys in one block",
            old="(T, H), (S, _) = q.shape, k.shape\n",
            new="(T, H), (S, _) = q.shape, k.shape\n    bk = S\n",
            says="all of it as one block",
            stage="work",
        ),
        Mistake(
            "takes all queries in one block",
            old="(T, H), (S, _) = q.shape, k.shape\n",
            new="(T, H), (S, _) = q.shape, k.shape\n    bq = T\n",
            says="`q_ref` takes 4 MiB, all of it as one block",
            stage="work",
        ),
        Mistake(
            "takes blocks of bq keys",
            old="""            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),""",
            new="""            pl.BlockSpec((bq, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bq, H), lambda i, j: (j, 0)),""",
            says="the grid counts S // bk blocks of keys, so bk rows belong into each: where bq is "
            "smaller, the last keys are in none",
        ),
        Mistake(
            "moves keys and values along H",
            old="""            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),""",
            new="""            pl.BlockSpec((bk, H), lambda i, j: (0, j)),
            pl.BlockSpec((bk, H), lambda i, j: (0, j)),""",
            says="block (j, 0) is the j-th from the top; there is one block along H, number 0",
        ),
    ],
    alternatives=[
        Alternative(
            "takes other blocks",
            old=_BLOCKS,
            new=_BLOCKS.replace("64", "32"),
        ),
        Alternative(
            "walks the keys from the last to the first",
            old=_KV,
            new=_KV.replace("(j, 0)", "(S // bk - 1 - j, 0)"),
        ),
        Alternative(
            "binds the specs to names and a grid spec",
            code="""
def flash_attention(q, k, v):
    (T, H), S, (bq, bk) = q.shape, len(k), (64, 128)
    rows = pl.BlockSpec((bq, H), index_map=lambda i, j: (T // bq - 1 - i, 0))
    keys = pl.BlockSpec((bk, H), index_map=lambda i, j: (j, 0))
    column = pltpu.VMEM((bq, 1), jnp.float32)
    return pl.pallas_call(
        flash_attention_kernel,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(pl.cdiv(T, bq), pl.cdiv(S, bk)),
            in_specs=[rows, keys, keys],
            out_specs=rows,
            scratch_shapes=[column, column, pltpu.VMEM((bq, H), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v)
""",
        ),
    ],
    audit=audit,
)
