"""Rung 18: what the forward pass keeps for the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float

from puzzles import INTERPRET, find

# %% [markdown]
# ## attention_lse: one number a row
#
# A gradient needs the weights again. Nobody has stored them: for 32,768 queries and keys they take 4 GiB a head. The backward pass
# computes them anew, tile by tile, and has to know of the row's softmax its maximum m and its sum l. Two numbers a row, or is one
# enough?
#
# $$\frac{e^{s_{ts} - m_t}}{l_t} = e^{s_{ts} - \text{lse}_t} \qquad\qquad \text{lse}_t = \log \sum_s e^{s_{ts}}$$
#
# This number is the row's **logsumexp**. With it, a weight is one exponential of one score, in whatever tile you stand:
#
# ```text
#   forward                               backward, in any tile
#
#   q  k  v ──→ o    (T, Hv)              q  k ──────→ s ─┐
#           ──→ lse  (T, 1) ─── kept ──────────────────→ exp(s - lse) = p
# ```
#
# How does it follow from m and l? The sum itself may overflow. And what is it in a row that sees nothing, where the sum
# has no terms?
#
# The kernel is that of `splash_attention`, with values of a width Hv of their own. Fill in what the last visit of a row
# stores, and the launch's second output.

# %%
Tiles = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # as active_tiles gives them


def attention_lse_spec(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S Hv"],
    tiles: Tiles,
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> tuple[Float[Array, "T Hv"], Float[Array, "T 1"]]:
    (T, H), (S, _), (_, bq, bk) = q.shape, k.shape, partial_masks.shape
    seen = np.zeros((T // bq, bq, S // bk, bk), bool)
    for row, col, mask, flag in zip(*tiles, strict=True):
        kind = flag & 3
        seen[row, :, col] = partial_masks[mask] if kind == 1 else kind == 2
    seen = seen.reshape(T, S)
    scores = jnp.where(seen, jnp.dot(q, k.T) / H**0.5, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=1, keepdims=True)
    return jnp.dot(jnp.where(seen, jnp.exp(scores - lse), 0.0), v), lse


# %%
def attention_lse_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref,
    q_ref, k_ref, v_ref, mask_ref, o_ref, lse_ref, m_ref, l_ref, acc_ref,
):  # fmt: skip
    flags = flags_ref[pl.program_id(0)]
    kind = flags & 3

    @pl.when(flags & 4 != 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(kind != 0)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        s *= q_ref.shape[1] ** -0.5
        s = jnp.where(mask_ref[...] | (kind == 2), s, -jnp.inf)
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - m_new)
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = alpha * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(flags & 8 != 0)
    def _():
        l = l_ref[...]
        o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)
        ### BEGIN SOLUTION
        lse_ref[...] = m_ref[...] + jnp.log(l)
        ### END SOLUTION


def attention_lse(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S Hv"],
    tiles: Tiles,
    partial_masks: Bool[np.ndarray, "P bq bk"],
) -> tuple[Float[Array, "T Hv"], Float[Array, "T 1"]]:
    (T, H), (_, Hv), (_, bq, bk) = q.shape, v.shape, partial_masks.shape

    def by_row(t, rows, cols, masks, flags):
        return rows[t], 0

    def by_column(t, rows, cols, masks, flags):
        return cols[t], 0

    o, lse = pl.pallas_call(
        attention_lse_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(len(tiles[0]),),
            in_specs=[
                pl.BlockSpec((bq, H), by_row),
                pl.BlockSpec((bk, H), by_column),
                pl.BlockSpec((bk, Hv), by_column),
                pl.BlockSpec((None, bq, bk), lambda t, rows, cols, masks, flags: (masks[t], 0, 0)),
            ],
            out_specs=[
                pl.BlockSpec((bq, Hv), by_row),
                ### BEGIN SOLUTION
                pl.BlockSpec((bq, 1), by_row),
                ### END SOLUTION
            ],
            scratch_shapes=[
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, 1), jnp.float32),
                pltpu.VMEM((bq, Hv), jnp.float32),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((T, Hv), jnp.float32),
            ### BEGIN SOLUTION
            jax.ShapeDtypeStruct((T, 1), jnp.float32),
            ### END SOLUTION
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        interpret=INTERPRET,
    )(*tiles, q, k, v, partial_masks)
    return o, lse


# %% [markdown]
# Is one number a row really all? Below are the weights again, from q, k and the reference's lse: no maximum, no sum, and
# rows that see nothing give no weights. JAX's kernel writes the same number in 128 copies, one a lane, and XLA keeps one of them:
# (heads, T), 4 bytes a row. Yours is a column: as the output of a kernel it lies 128 lanes wide in HBM, too. The
# backward pass gets it as a row.

# %% active="ipynb"
# T, H = 512, 64
# t, s = np.indices((T, T))
# mask = (s <= t) & (t - s < 200) & (t >= 100)  # the first rows see nothing
# block_mask, mask_index, patterns = find("classify_blocks").solution(mask, 128, 128)
# tiles = find("active_tiles").solution(block_mask, mask_index)
# q, k, v = np.random.default_rng(0).normal(size=(3, T, H)).astype(np.float32)
# o, lse = map(np.asarray, find("attention_lse").solution(q, k, v, tiles, patterns))
# p = np.where(mask, np.exp(q @ k.T / H**0.5 - lse), 0.0)
# sums = p.sum(axis=1)
# print(f"lse of row 0: {lse[0, 0]}, of row 511: {lse[511, 0]:.4f}")
# print(f"weights of rows 0 to 99 sum to {sums[:100].max()}, the others' to {sums[100:].min():.5f} … {sums[100:].max():.5f}")
# print(f"p @ v differs from o by at most {abs(p @ v - o).max():.0e}")

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.splash_attention._production import moved
from puzzles.splash_attention.attention import root
from puzzles.splash_attention.attention_one_block import ONES
from puzzles.splash_attention.block_sparse_attention import packed
from puzzles.splash_attention.splash_attention import make_mask


def listed(mask, bq, bk):
    """The flat list of a dense mask, and its partial blocks."""
    block_mask, mask_index, partial_masks = find("classify_blocks").solution(mask, bq, bk)
    return find("active_tiles").solution(block_mask, mask_index), partial_masks


def make_inputs(key, R, S, H, Hv, bq, bk, first, blind=True):
    """Scores near ±1; in one row of eight all of them lie far above 0, or far below. Not `blind`: no row is empty.

    All numbers of q and k are eighths of small integers: exact in bf16, too.
    """
    T, r = R * bq, rng(key)
    q, k = (np.round(8 * r.normal(size=(n, H))) / 8 for n in (T, S))
    k[:, 0], q[:, 0] = root(H), r.integers(-4, 5, T)
    q[3::16, 0], q[11::16, 0] = r.integers(90, 151, (2, T // 16)) * np.array([[1], [-1]])
    q[27::32, 0] = -400  # below any start that is merely small
    v = r.normal(0.5, 1, (S, Hv))
    mask = make_mask(T, S, bq, bk, first)
    if not blind:
        mask[~mask.any(axis=1), 3] = True
    return *(array(x, jnp.float32) for x in (q, k, v)), *listed(mask, bq, bk)


def scale(T=17152, S=16384, H=128, Hv=64, bq=256, bk=512, document=1500):
    *tables, partial_masks = packed(T, S, bq, bk, document)
    arrays = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((T, H), (S, H), (S, Hv)))
    return *arrays, find("active_tiles").solution(*tables), partial_masks


def kept(launch):
    """What the launch leaves for the backward pass beside o: a column lies in 128 lanes."""
    return f"{min(moved(one) for one in launch.outputs) / 2**20:.1f} MiB kept beside o, in 128 lanes"


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(R=7, S=384, H=64, Hv=32, bq=64, bk=128, first=0, blind=False)
    shapes = [
        (5, 512, 32, 64, 128, 128, 1),
        (7, 384, 8, 32, 64, 128, 3),
        (9, 256, 128, 16, 32, 128, 0),
        (6, 512, 32, 128, 64, 256, 4),
    ]
    return dict(zip(("R", "S", "H", "Hv", "bq", "bk", "first"), map(int, r.choice(shapes)), strict=True))


_LSE = "lse_ref[...] = m_ref[...] + jnp.log(l)"
_SPEC = "                pl.BlockSpec((bq, 1), by_row),\n"
_SHAPE = "            jax.ShapeDtypeStruct((T, 1), jnp.float32),\n"
_REFS = "mask_ref, o_ref, lse_ref, m_ref"

PUZZLE = Puzzle(
    spec=attention_lse_spec,
    solution=attention_lse,
    results=("o", "lse"),
    inputs=make_inputs,
    cases=[
        dict(R=7, S=384, H=64, Hv=32, bq=64, bk=128, first=0, blind=False),
        dict(R=6, S=512, H=16, Hv=64, bq=256, bk=128, first=2),
    ],
    fresh=fresh,
    keeps=dict(q="finite larger", k="finite", v="finite"),
    scale=scale,
    par=kept,
    tolerance=2e-4,
    waivers={"finite": "the lse of a row that sees nothing is minus infinity, and nothing else is"},
    hints=[
        "l is a sum of exponentials that were all divided by $e^m$. Multiply it back, and take the logarithm of the product, "
        "on paper. A product's logarithm is a sum.",
        "`jnp.log` of a (bq, 1) block works in a kernel, and of 0 it is -inf. The output o is guarded against a sum of 0; does "
        "lse have to be? A second output is a second entry in `out_specs` and in `out_shape`: a row of tiles has bq numbers, "
        "in a column, as m and l have.",
        "One line stores the maximum plus a logarithm. The spec has a block of one column that goes by row, as that of o "
        "does. The shape has one f32 column for all T rows.",
    ],
    explain="""exp(s - m) / l is exp(s - m - log l), so m + log l says all that both say. A row that sees nothing has
    l = 0, and the logarithm of 0 is -inf, which is the right answer: no term, no sum.""",
    mistakes=[
        Mistake(
            "keeps the maximum alone",
            old=_LSE,
            new="lse_ref[...] = m_ref[...]",
            says="a weight is exp(s - m) / l, and l is lost: add its logarithm to m",
        ),
        Mistake(
            "keeps the logarithm of the sum alone",
            old=_LSE,
            new="lse_ref[...] = jnp.log(l)",
            says="l is a sum of exp(s - m), so its logarithm is short of m",
        ),
        Mistake(
            "adds the sum without its logarithm",
            old=_LSE,
            new="lse_ref[...] = m_ref[...] + l",
            says="m is an exponent and l is not: add log l",
        ),
        Mistake(
            "multiplies the maximum by the logarithm",
            old=_LSE,
            new="lse_ref[...] = m_ref[...] * jnp.log(l)",
            says="the logarithm of a product is a sum: log(exp(m) · l) is m plus log l",
        ),
        Mistake(
            "takes the logarithm of maximum and sum together",
            old=_LSE,
            new="lse_ref[...] = jnp.log(m_ref[...] + l)",
            says="m is an exponent already, and l is not: only l goes into the logarithm. Where m is far below 0, this one is NaN",
        ),
        Mistake(
            "subtracts the logarithm",
            old=_LSE,
            new="lse_ref[...] = m_ref[...] - jnp.log(l)",
            says="exp(s - m) / l is exp(s - m - log l), and s loses both: lse is their sum",
        ),
        Mistake(
            "changes the sign",
            old=_LSE,
            new="lse_ref[...] = -m_ref[...] - jnp.log(l)",
            says="lse is what a score loses, s - lse: it has the sign of m",
        ),
        Mistake(
            "takes the logarithm of the sum to base 2",
            old=_LSE,
            new="lse_ref[...] = m_ref[...] + jnp.log2(l)",
            says="the exponentials have base e, so the logarithm does: `jnp.log`",
        ),
        Mistake(
            "gives all of it to base 2",
            old=_LSE,
            new="lse_ref[...] = (m_ref[...] + jnp.log(l)) * 1.4426950408889634",
            says="it is log2(e) times too large: the backward pass takes exp(s - lse), with a natural lse",
        ),
        Mistake(
            "undoes the maximum before the logarithm",
            old=_LSE,
            new="lse_ref[...] = jnp.log(l * jnp.exp(m_ref[...]))",
            says="exp(m) overflows above 88, and far below 0 it is 0: take the logarithm of l first, and add m to it",
        ),
        Mistake(
            "keeps the sum of exponentials itself",
            old=_LSE,
            new="lse_ref[...] = l * jnp.exp(m_ref[...])",
            says="exp(m) overflows above 88: keep the logarithm of that sum, m + log l",
        ),
        Mistake(
            "guards the logarithm against a sum of 0",
            old=_LSE,
            new="lse_ref[...] = m_ref[...] + jnp.log(jnp.where(l == 0.0, 1.0, l))",
            says="a row that sees nothing keeps m's start there, -1e30. Its sum is 0, and log 0 is what is wanted: -inf",
        ),
        Mistake(
            "gives 0 to a row that sees nothing",
            old=_LSE,
            new="lse_ref[...] = jnp.where(l == 0.0, 0.0, m_ref[...] + jnp.log(l))",
            says="an lse of 0 is that of a row which sees one score of 0. One that sees nothing has log 0, which is -inf",
        ),
        Mistake(
            "adds 1 before the logarithm",
            old=_LSE,
            new="lse_ref[...] = m_ref[...] + jnp.log1p(l)",
            says="`jnp.log1p(l)` is log(1 + l): no score stands behind that 1, and log 0 needs no guard here",
        ),
        Mistake(
            "never writes lse",
            old=_LSE,
            new="lse = m_ref[...] + jnp.log(l)",
            says="a plain name is forgotten when the kernel ends, and fresh output blocks hold garbage (NaN here): store into lse_ref[...]",
        ),
        Mistake(
            "stores lse by the column",
            old=_SPEC,
            new=_SPEC.replace("by_row", "by_column"),
            says="lse belongs to queries, as o does: its block goes by row",
        ),
        Mistake(
            "stores every lse in the first block",
            old=_SPEC,
            new=_SPEC.replace("by_row", "lambda t, *_: (0, 0)"),
            says="every row of tiles writes over the one before, and all other blocks of lse keep what was in memory: go by row",
        ),
        Mistake(
            "stores lse at block t",
            old=_SPEC,
            new=_SPEC.replace("by_row", "lambda t, *_: (t, 0)"),
            says="t counts visits, and lse has a block for each row of tiles: rows[t] says which",
        ),
        Mistake(
            "gives lse the spec and the shape of o",
            edits=((_SPEC, _SPEC.replace("(bq, 1)", "(bq, Hv)")), (_SHAPE, _SHAPE.replace("(T, 1)", "(T, Hv)"))),
            says="Ref shape: (64, 32)",
            stage="error",
        ),
        Mistake(
            "returns a copy of lse for every column of o",
            edits=(
                (_LSE, "lse_ref[...] = jnp.broadcast_to(m_ref[...] + jnp.log(l), lse_ref.shape)"),
                (_SPEC, _SPEC.replace("(bq, 1)", "(bq, Hv)")),
                (_SHAPE, _SHAPE.replace("(T, 1)", "(T, Hv)")),
            ),
            says="the wrong shape: expected (448, 1), got (448, 32)",
        ),
        Mistake(
            "gives lse a shape and no spec",
            old=_SPEC,
            new="",
            says="Pytree for `out_specs` and `out_shape` do not match",
            stage="error",
        ),
        Mistake(
            "keeps lse flat",
            edits=((_SPEC, _SPEC.replace("(bq, 1), by_row", "(bq,), lambda t, rows, *_: (rows[t],)")), (_SHAPE, _SHAPE.replace("(T, 1)", "(T,)"))),
            says="Ref shape: (64,).",
            stage="error",
        ),
        Mistake(
            "keeps lse in bf16",
            old=_SHAPE,
            new=_SHAPE.replace("float32", "bfloat16"),
            says="Invalid dtype for `swap`",
            stage="error",
        ),
        Mistake(
            "keeps m and l, and adds them up outside",
            edits=(
                (_REFS, "mask_ref, o_ref, m_out_ref, l_out_ref, m_ref"),
                (_LSE, "m_out_ref[...], l_out_ref[...] = m_ref[...], l"),
                (_SPEC, 2 * _SPEC),
                (_SHAPE, 2 * _SHAPE),
                ("    o, lse = pl.pallas_call(", "    o, m, l = pl.pallas_call("),
                ("    return o, lse\n", "    return o, m + jnp.log(l)\n"),
            ),
            says="`log` works on the data outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "launches once for o and once for lse",
            edits=(
                ("    o, lse = pl.pallas_call(", "    launch = pl.pallas_call("),
                (
                    ")(*tiles, q, k, v, partial_masks)\n    return o, lse\n",
                    ")\n    operands = *tiles, q, k, v, partial_masks\n    return launch(*operands)[0], launch(*operands)[1]\n",
                ),
            ),
            says="2 kernels are launched, where 1 is enough",
            stage="work",
        ),
        Mistake(
            "drops the axis of lse's only column",
            old=_LSE,
            new="lse_ref[...] = (m_ref[...] + jnp.log(l))[:, 0]",
            says="Value shape: (64,).",
            stage="error",
        ),
        Mistake(
            "adds the sum to the exponential of the maximum",
            old="m_ref[...] + jnp.log(l)",
            new="jnp.log(jnp.exp(m_ref[...]) + l)",
            says="l is a factor beside exp(m), no summand: log(exp(m) · l) is m + log l",
        ),
        Mistake(
            "calls logaddexp for m and l",
            old="m_ref[...] + jnp.log(l)",
            new="jnp.logaddexp(m_ref[...], l)",
            says="that is log(exp(m) + exp(l)), and l is a sum, no exponent: m + log l",
        ),
        Mistake(
            "adds a tiny number to l",
            old="jnp.log(l)",
            new="jnp.log(l + 1e-9)",
            says="a row that sees nothing has l = 0 and an lse of -inf, as log gives it, and no large "
            "finite number",
        ),
        Mistake(
            "divides the maximum by l",
            old="m_ref[...] + jnp.log(l)",
            new="m_ref[...] / l",
            says="the logarithm of exp(m) · l is a sum: m + log l",
        ),
        Mistake(
            "takes the logarithm to base 10",
            old="jnp.log(l)",
            new="jnp.log10(l)",
            says="m is an exponent of e: take `jnp.log`",
        ),
        Mistake(
            "takes one maximum for all rows",
            old="m_ref[...] + jnp.log(l)",
            new="jnp.max(m_ref[...]) + jnp.log(l)",
            says="each row has its own m in `m_ref[...]`",
        ),
    ],
    alternatives=[
        ONES,
        Alternative(
            "says what a row has that sees nothing",
            old=_LSE,
            new="lse_ref[...] = jnp.where(l > 0.0, m_ref[...] + jnp.log(jnp.maximum(l, 1.0)), -jnp.inf)",
        ),
        Alternative(
            "computes with base 2 inside",
            edits=(
                ("s *= q_ref.shape[1] ** -0.5", "s *= 1.4426950408889634 * q_ref.shape[1] ** -0.5"),
                ("p = jnp.exp(s - m_new)", "p = jnp.exp2(s - m_new)"),
                ("alpha = jnp.exp(m_ref[...] - m_new)", "alpha = jnp.exp2(m_ref[...] - m_new)"),
                (_LSE, "lse_ref[...] = (m_ref[...] + jnp.log2(l)) * 0.6931471805599453"),
            ),
        ),
        Alternative(
            "keeps lse in 128 lanes, as production does",
            edits=(
                (_LSE, "lse_ref[...] = jnp.broadcast_to(m_ref[...] + jnp.log(l), lse_ref.shape)"),
                (_SPEC, _SPEC.replace("(bq, 1)", "(bq, 128)")),
                (_SHAPE, _SHAPE.replace("(T, 1)", "(T, 128)")),
                ("    return o, lse\n", "    return o, lse[:, :1]\n"),
            ),
        ),
        Alternative(
            "merges o and lse tile by tile",
            code="""
def attention_lse_kernel(
    rows_ref, cols_ref, masks_ref, flags_ref, q_ref, k_ref, v_ref, mask_ref, o_ref, lse_ref, m_ref, l_ref, acc_ref
):
    flags = flags_ref[pl.program_id(0)]

    @pl.when(flags & 4 != 0)
    def _():
        lse_ref[...] = jnp.full(lse_ref.shape, -jnp.inf)
        o_ref[...] = jnp.zeros(o_ref.shape)

    @pl.when(flags & 3 != 0)
    def _():
        s = jnp.dot(q_ref[...], k_ref[...].T) * q_ref.shape[1] ** -0.5
        s = jnp.where(mask_ref[...] | (flags & 3 == 2), s, -jnp.inf)
        m = jnp.maximum(jnp.max(s, axis=1, keepdims=True), -1e30)
        p = jnp.exp(s - m)
        here = m + jnp.log(jnp.sum(p, axis=1, keepdims=True))
        top = jnp.maximum(jnp.maximum(here, lse_ref[...]), -1e30)
        old, new = jnp.exp(lse_ref[...] - top), jnp.exp(here - top)
        both = jnp.where(old + new > 0, old + new, 1.0)
        o_ref[...] = (old * o_ref[...] + jnp.exp(m - top) * jnp.dot(p, v_ref[...])) / both
        lse_ref[...] = top + jnp.log(old + new)
""",
        ),
    ],
)
