"""Puzzle 16: weights of one byte each."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, Int8

from puzzles import INTERPRET, find

# %% [markdown]
# ## quantized_grouped_matmul: one byte per weight
#
# With few rows per expert, most of the traffic is its weights. As **int8** they have a quarter of
# f32's bytes. Quantised means that `w` is nearly `q * s`: an integer `q` for each weight, an f32 scale
# `s` for each *column* of each expert.
#
# All weights of a column have the same scale, so it comes out of the sum over `k`:
#
# $$\sum_k x_{mk}\, (q_{kn} s_n) \;=\; s_n \sum_k x_{mk}\, q_{kn}$$
#
# So the kernel can sum products with the integers, and multiply by the scale **once**, at the last `k`:
#
# ```text
# rhs_ref, int8 ── bf16 ──┐
# lhs_ref ─────────────── × ──→ acc_ref, f32 ──┐
# scales_ref, a row ────────────────────────── × ──→ o_ref, own rows only
# ```
#
# In the kernel, in VMEM, a block of integers becomes bf16. Nothing is lost: bf16 holds integers up to
# 256 exactly.
#
# `scales` is (E, 1, N), not (E, N): a block of one row must span the *whole* axis of rows. Write its
# `BlockSpec`, the sum, and the value to store.


# %%
def quantized_grouped_matmul_spec(
    lhs: Float[Array, "M K"],
    rhs_q: Int8[Array, "E K N"],
    scales: Float[Array, "E 1 N"],
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    weights = rhs_q.astype(jnp.float32) * scales
    each = jnp.einsum("mk,ekn->emn", lhs.astype(jnp.float32), weights)
    return each.at[group, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %%
# given there: a block of int8 and its bf16 copy fit if two blocks of bf16 do
from puzzles.grouped_matmul.grouped_matmul import tiles


def quantized_grouped_matmul_kernel(
    offsets_ref, group_ids_ref, tile_ids_ref,
    lhs_ref, rhs_ref, scales_ref, zeros_ref, o_ref, acc_ref,
):  # fmt: skip
    step, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    ### BEGIN SOLUTION
    weights = rhs_ref[...].astype(jnp.bfloat16)
    acc_ref[...] += jnp.dot(lhs_ref[...], weights, preferred_element_type=jnp.float32)
    ### END SOLUTION

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        group, tile = group_ids_ref[step], tile_ids_ref[step]
        row = tile * o_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        first = (step == 0) | (tile != tile_ids_ref[jnp.maximum(step - 1, 0)])
        others = jnp.where(first, 0.0, o_ref[...].astype(jnp.float32))
        ### BEGIN SOLUTION
        scaled = acc_ref[...] * scales_ref[...]
        o_ref[...] = jnp.where(mine, scaled, others).astype(o_ref.dtype)
        ### END SOLUTION


def quantized_grouped_matmul(
    lhs: Float[Array, "M K"],
    rhs_q: Int8[Array, "E K N"],
    scales: Float[Array, "E 1 N"],
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    (M, K), (E, rows, N) = lhs.shape, rhs_q.shape
    if (E, rows) != (len(group_sizes), K):
        raise ValueError(
            f"{len(group_sizes)} groups and K={K} do not fit rhs_q of shape {rhs_q.shape}"
        )
    if scales.shape != (E, 1, N):
        raise ValueError(
            f"scales of shape {scales.shape}: one a column, {(E, 1, N)}, as jnp.broadcast_to "
            "makes them"
        )
    bm, bk, bn = tiles(M, K, N, lhs.dtype)
    offsets = find("group_offsets").solution(group_sizes)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, num_steps = find("tile_metadata").solution(group_sizes, whole, bm)
    return pl.pallas_call(
        quantized_grouped_matmul_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(N, bn), num_steps, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda j, s, k, offsets, groups, tiles: (tiles[s], k)),
                pl.BlockSpec(
                    (None, bk, bn), lambda j, s, k, offsets, groups, tiles: (groups[s], k, j)
                ),
                ### BEGIN SOLUTION
                pl.BlockSpec(
                    (None, 1, bn), lambda j, s, k, offsets, groups, tiles: (groups[s], 0, j)
                ),
                ### END SOLUTION
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, s, k, offsets, groups, tiles: (tiles[s], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), lhs.dtype),
        input_output_aliases={6: 0},
        interpret=INTERPRET,
    )(offsets, group_ids, tile_ids, lhs, rhs_q, scales, jnp.zeros((M, N), lhs.dtype))


# %% [markdown]
# 512 requests decode one token each, with 64 experts and 1024 × 4096 weights of 4, 2 and 1 bytes. The table shows the bytes that
# the reference's launch moves, and the least time that a v5e takes to move them.

# %% active="ipynb"
# M, K, N, E, S = 512, 1024, 4096, 64, jax.ShapeDtypeStruct
# lhs, scales, sizes = S((M, K), jnp.bfloat16), S((E, 1, N), jnp.float32), jnp.full(E, M // E)
# for dtype in (jnp.float32, jnp.bfloat16, jnp.int8):
#     quantised = dtype == jnp.int8
#     name = "quantized_grouped_matmul" if quantised else "grouped_matmul"
#     weights = [S((E, K, N), dtype), *([scales] if quantised else [])]
#     (one,) = trace(find(name).solution, lhs, *weights, sizes)
#     moved, fetched = one.hbm_bytes, one.inputs[1].hbm_bytes
#     print(f"{jnp.dtype(dtype).name:9}{moved / 2**20:6.0f} MiB, {fetched / 2**20:5.0f} of them weights;", end="")
#     print(f"{1e3 * moved / 820e9:6.2f} ms at least")

# %% [markdown]
# **The layer that combines them.** Each device has its share of the experts. Gate and up are one launch;
# down is `local_experts`, or this puzzle's kernel with int8 weights. Two of the three kernels are not made for several
# devices. For these two, the device's own rows are rolled to the front; the rows after them belong to no group. The kernels are yours,
# or the reference's until yours pass; the rest is plain JAX. The result is compared with a dense mixture.

# %% active="ipynb"
# from puzzles import checked
# from puzzles.grouped_matmul.moe_layer import moe_layer_spec, route
#
# names = "fused_gate_up", "local_experts", "quantized_grouped_matmul"
# kernels, whose = zip(*map(checked, names))
# gate_up, local, quantized = kernels
#
#
# def served(x, logits, w_gate, w_up, w_down, integers, scales):
#     """Return one device's results for both kinds of weights; zeros if it lacks a token's experts."""
#     rows, weights, order, sizes = route(x, logits, top_k)
#     first, L = len(w_gate) * jax.lax.axis_index("expert"), len(w_gate)
#     start = jnp.sum(jnp.where(jnp.arange(len(sizes)) < first, sizes, 0))  # of the own rows
#     own = jax.lax.dynamic_slice(sizes, (first,), (L,))
#     hidden = gate_up(jnp.roll(rows, -start, axis=0), w_gate, w_up, own)
#     down = local(jnp.roll(hidden, start, axis=0), w_down, sizes, first)
#     down_int8 = jnp.roll(quantized(hidden, integers, scales, own), start, axis=0)
#     back = jnp.argsort(order)
#     answers = (out[back].reshape(*weights.shape, -1) for out in (down, down_int8))
#     return jax.lax.psum([jnp.einsum("mk,mkd->md", weights, one) for one in answers], "expert")
#
#
# M, D, F, E, top_k, r = 60, 128, 256, 8, 2, np.random.default_rng(0)
# shapes = (M, D), (M, E), (E, D, F), (E, D, F), (E, F, D)
# x, logits, *w_in, w_down = (jnp.asarray(r.normal(size=s) / s[-2] ** 0.5, jnp.float32) for s in shapes)
# scales = jnp.abs(w_down).max(axis=1, keepdims=True) / 127
# integers = jnp.round(w_down / scales).astype(jnp.int8)
# chips, P = np.array(jax.devices()[:4]), jax.sharding.PartitionSpec
# mesh, specs = jax.sharding.Mesh(chips, ("expert",)), (P(), P(), *[P("expert")] * 5)
# layer = jax.shard_map(served, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
# results = jax.jit(layer)(x, logits, *w_in, w_down, integers, scales)
# meant = [moe_layer_spec(x, logits, *w_in, down, top_k) for down in (w_down, integers * scales)]
# for kind, got, want in zip(("f32", "int8"), results, meant):
#     assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
#     off = float(jnp.sqrt(jnp.mean((got - meant[0]) ** 2) / jnp.mean(meant[0] ** 2)))
#     print(f"{len(chips)} devices, {kind:4} down: {off:.0e} off the dense mixture in f32")
# print(*(f"{name}: {one}" for name, one in zip(names, whose)), sep=", ")

# %% [markdown]
# **Is it fast?** Only a TPU can tell. There the next cell times your `grouped_matmul` (the reference's,
# until yours passes its check), `jax.lax.ragged_dot`, which XLA compiles, and JAX's Megablox. On a CPU it
# prints receipts: the bytes moved, and the useful FLOPs per byte. The bytes include the zeros that XLA
# writes before our launch, 128 MiB and 4 MiB. Megablox writes none, and leaves garbage in unassigned
# rows. The first layer is in training; the second decodes, one token at a time.

# %% active="ipynb"
# from puzzles import checked
#
#
# def milliseconds(fn, *shapes, repeats=10):
#     """Return the time of a run on the device. Operands are ones: time depends only on shapes and sizes."""
#     import time
#
#     *data, sizes = shapes
#     run, operands = jax.jit(fn), (*(jnp.ones(s.shape, s.dtype) for s in data), sizes)
#     jax.block_until_ready(run(*operands))
#     start = time.perf_counter()
#     for _ in range(repeats):
#         result = run(*operands)
#     jax.block_until_ready(result)
#     return 1e3 * (time.perf_counter() - start) / repeats
#
#
# fn, whose = checked("grouped_matmul")
# rivals = {whose: fn, "ragged_dot": jax.lax.ragged_dot}
# if find_spec("jax.experimental.pallas.ops.tpu.megablox"):
#     from jax.experimental.pallas.ops.tpu.megablox import gmm
#
#     options = dict(preferred_element_type=jnp.bfloat16, tiling=(512, 1024, 1024))
#     rivals["Megablox"] = functools.partial(gmm, **options, interpret=INTERPRET)
#
# K, N = 2048, 4096
# for M, E in ((16384, 8), (512, 64)):
#     sizes = jnp.full(E, M // E, jnp.int32)
#     shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((M, K), (E, K, N))]
#     print(f"{M} rows, {E} experts")
#     for name, fn in rivals.items():
#         launches = trace(fn, *shapes, sizes)
#         moved = sum(one.hbm_bytes + 2 * M * N * len(one.aliases) for one in launches)
#         row = f"{moved / 2**20:6.0f} MiB{2 * M * K * N / moved:6.0f} FLOP/byte" if moved else "no receipt"
#         measured = "" if INTERPRET else f"{milliseconds(fn, *shapes, sizes):9.2f} ms"
#         print(f"  {name:16}{row:28}{measured}")
# if "Megablox" in rivals:
#     print(f"Megablox: jax/experimental/pallas/ops/tpu/megablox/gmm.py, JAX {jax.__version__}")
# if INTERPRET:
#     print("This is a CPU: how long each takes, only a TPU can tell.")

# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng
from puzzles.grouped_matmul import grouped_matmul
from puzzles.grouped_matmul.grouped_matmul import rows_of


def quantised(weights):
    """int8 and scales, the largest number of each column being 127."""
    scales = np.abs(weights).max(axis=1, keepdims=True) / 127
    return array(np.round(weights / scales), jnp.int8), array(scales, jnp.float32)


def make_inputs(key, M, K, N, sizes=(), dtype="float32", E=0):
    r, sizes = rng(key), sizes or grouped_matmul.crowd(E, M)
    weights = r.normal(size=(len(sizes), K, N)) * r.uniform(0.5, 2, size=(len(sizes), 1, N))
    rows = rows_of(r, M, K, sizes, dtype)
    return rows, *quantised(weights), array(sizes, jnp.int32)


def scale(M=70_000, K=8192, N=4096, E=160):
    lhs, rhs = jax.ShapeDtypeStruct((M, K), jnp.bfloat16), jax.ShapeDtypeStruct((E, K, N), jnp.int8)
    return lhs, rhs, jax.ShapeDtypeStruct((E, 1, N), jnp.float32), grouped_matmul.routed(E, M - 100)


def fresh(r):
    # mostly the shapes of the first case, whose programs are compiled by now: sizes are data. A group
    # ends a row before, on, or behind a tile's edge
    if r.integers(4) == 0:
        return dict(M=192, K=256, N=256, sizes=(70, 0, 0, 59, 3))
    behind, more = int(r.integers(-1, 2)), int(r.integers(2))
    return dict(M=128, K=256, N=384, sizes=(10, 0, 54 + behind, 30 * more))


PUZZLE = Puzzle(
    spec=quantized_grouped_matmul_spec,
    solution=quantized_grouped_matmul,
    inputs=make_inputs,
    cases=[
        dict(M=128, K=256, N=384, sizes=(50, 0, 40, 3)),
        # many experts; no visit to the last tile, and tiles that hang over
        dict(M=100, K=128, N=200, E=144, dtype="bfloat16"),
    ],
    hints=[
        "A factor that does not depend on k can be multiplied once, when the sum is complete. "
        "Whose scales does a visit need, and of which columns?",
        "`x.astype(jnp.bfloat16)` works on a block of int8. A block of `scales` has the "
        "expert's axis squeezed, the one row, and the columns of the output's block; (1, bn) "
        "broadcasts along the rows of a sum.",
        "At every k: cast, dot with an f32 result, add. At the last k: sum times scales, a "
        "`jnp.where` between that and the others, a cast, one store. The BlockSpec: `None`, 1, "
        "bn; group of the visit, 0, j.",
    ],
    explain="""One byte per weight crosses from HBM to VMEM, and only there it becomes a float.
    The scales do not depend on k, so they can leave the sum: the reference multiplies one block
    of sums by them instead of every block of weights.""",
    waivers={"signed": "a scale is a positive number: signs are the integers' matter"},
    scale=scale,
    par=grouped_matmul.par,
    fresh=fresh,
)
