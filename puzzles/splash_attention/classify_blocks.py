"""Puzzle 12: any mask, as a table of blocks."""

import numpy as np
from jaxtyping import Bool, Int

# %% [markdown]
# ## classify_blocks: read the mask before the kernel does
#
# For every mask so far you wrote a kernel. JAX's SplashAttention (2023) is a single kernel, and a new mask needs no new code. How? Most masks
# are known **before** anything runs. So look at the mask once, in NumPy, and write down the kind of each block:
#
# ```text
#   bq = 64, bk = 128   columns                        block_mask   mask_index
#                       0-127   128-255   256-383
#         rows   0-63     ◩        ·         ·           1 0 0        0 - -
#               64-127    ◩        ·         ·           1 0 0        1 - -
#              128-191    ■        ◩         ·           2 1 0        - 0 -
#              192-255    ■        ◩         ·           2 1 0        - 1 -
#
#   0  skip: none of it counts    1  partial: some of it counts    2  full: all of it counts
# ```
#
# For partial blocks, the mask is stored. But block (2, 1) holds the same pattern as block (0, 0). Only two different patterns
# occur, however long the sequence is. So store each **once**, in `partial_masks` (P, bq, bk), and let `mask_index` give the number
# of each partial block's pattern.
#
# ![A causal window as pixels, its table of skipped, partial and full blocks, the number of each partial block's pattern, and the two patterns that are stored.](diagrams/splash_attention/classify_blocks.svg)
#
# Write it for any boolean mask (T, S) whose axes are multiples of `bq` and `bk`. Return NumPy arrays: two of int32, one of bool.
# If a block is not partial, any `mask_index` will do. If no block is partial, still return one pattern: a kernel
# cannot fetch from an empty operand.
#
# <details><summary>More: the savings, and JAX's version</summary>
#
# A dense mask for 131,072 tokens takes 16 GiB. A table for blocks of 512 has 256 × 256 entries, and a causal mask needs one pattern.
# JAX's [SplashAttention](https://github.com/jax-ml/jax/tree/main/jax/experimental/pallas/ops/tpu/splash_attention) makes the same
# table from a mask, with the same 0, 1 and 2; your `partial_masks` are its `partial_mask_blocks`.
#
# </details>


# %%
def classify_blocks_spec(mask: Bool[np.ndarray, "T S"], bq: int, bk: int, answer: tuple) -> bool:
    """Accept an answer that reproduces the mask and stores no pattern without need."""
    block_mask, mask_index, partial_masks = answer
    rebuilt = np.empty_like(mask)
    for i, j in np.ndindex(block_mask.shape):
        pattern = block_mask[i, j] == 2
        if block_mask[i, j] == 1:
            pattern = partial_masks[mask_index[i, j]]
        rebuilt[i * bq : (i + 1) * bq, j * bk : (j + 1) * bk] = pattern
    used = np.unique(mask_index[block_mask == 1])
    different = {pattern.tobytes() for pattern in partial_masks}
    return (
        np.array_equal(rebuilt, mask)
        and all(0 < pattern.sum() < bq * bk for pattern in partial_masks[used])
        and len(partial_masks) == len(different) == max(1, len(used))
    )


# %%
def classify_blocks(
    mask: Bool[np.ndarray, "T S"], bq: int, bk: int
) -> tuple[Int[np.ndarray, "I J"], Int[np.ndarray, "I J"], Bool[np.ndarray, "P bq bk"]]:
    ### BEGIN SOLUTION
    T, S = mask.shape
    blocks = mask.reshape(T // bq, bq, S // bk, bk).swapaxes(1, 2)  # (I, J, bq, bk)
    block_mask = blocks.any(axis=(2, 3)).astype(np.int32) + blocks.all(axis=(2, 3))
    mask_index = np.zeros_like(block_mask)
    numbers, patterns = {}, []
    for i, j in np.argwhere(block_mask == 1):
        key = blocks[i, j].tobytes()
        if key not in numbers:
            numbers[key] = len(patterns)
            patterns.append(blocks[i, j])
        mask_index[i, j] = numbers[key]
    if not patterns:
        patterns = [np.zeros((bq, bk), bool)]
    return block_mask, mask_index, np.stack(patterns)
    ### END SOLUTION


# %% [markdown]
# Four masks for 1024 tokens, in blocks of 128. How much of a dense mask do you still need, once you have the table?

# %% active="ipynb"
# t, s = np.arange(1024)[:, None], np.arange(1024)[None, :]
# masks = {
#     "causal": s <= t,
#     "window of 300, both sides": abs(t - s) < 300,
#     "four documents": t // 300 == s // 300,
#     "causal, and a prefix of 200": (s <= t) | (s < 200),
# }
# for name, mask in masks.items():
#     block_mask, mask_index, patterns = find("classify_blocks").solution(mask, 128, 128)
#     skip, partial, full = ((block_mask == kind).sum() for kind in range(3))
#     print(f"{name}: {skip} skipped, {partial} partial, {full} full; patterns: {len(patterns)}")
#     print("\n".join("   " + " ".join("·◩■"[kind] for kind in row) for row in block_mask), "\n")

# %% tags=["author"]
import jax

from puzzles import Puzzle, rng

KINDS = ("0, skip", "1, partial", "2, full")
NO_TWO = (
    ". It has no 2 at all: `True + True` is True in NumPy, and a test of `any` before `all` stops "
    "at a full block as well"
)


def make_mask(r, kind, T, S, bq, bk):
    """A boolean mask (T, S) of a named kind; none of them is only causal unless it says so."""
    t, s = np.arange(T)[:, None], np.arange(S)[None, :]
    if kind == "causal":
        return s <= t
    if kind == "window":  # both sides; no row without a column, if T <= S
        return abs(t - s) < r.integers(90, 110)
    if kind == "documents":  # queries and keys cut at places of their own; nobody has keys for 3
        query_ids, key_ids = (
            np.searchsorted(np.array([0.3, 0.55, 0.7]) * n + r.integers(-9, 10, 3), np.arange(n))
            for n in (T, S)
        )
        return (query_ids[:, None] == key_ids[None, :]) & (query_ids[:, None] < 3)
    if kind == "random":
        return r.random((T, S)) < 0.5
    I, J = T // bq, S // bk
    pattern = r.random((bq, bk)) < 0.4
    pattern[0, 0] = pattern[-1, -1] = True
    pattern[bq // 2 : 3 * bq // 4] = False  # rows without a column
    pattern[1:3, 1:3] = np.eye(2)
    switched = pattern.copy()  # as many elements in every row and in every column
    switched[1:3, 1:3] = pattern[2:0:-1, 1:3]
    empty, full = np.zeros((bq, bk), bool), np.ones((bq, bk), bool)
    nearly_full = full.copy()
    nearly_full[-1, 1] = False
    # the pattern turned over has the same corners, and as many elements
    store = [empty, full, pattern, pattern[::-1, ::-1], nearly_full, ~nearly_full, switched]
    for y, x in (
        (0, -2),
        (-2, 0),
        (-1, 0),
        (0, -1),
        (bq // 2, bk // 2),
    ):  # alike but for one element
        twin = pattern.copy()
        twin[y, x] ^= True
        store.append(twin)
    if kind == "whole blocks":  # nothing is partial
        choice = r.integers(0, 2, (I, J))
        choice[0, :2] = 0, 1
    else:
        assert kind == "blocks"
        choice = r.integers(0, len(store), (I, J))
        choice.flat[: len(store) + 1] = [2, 0, 1, *range(3, len(store)), 2][
            : choice.size
        ]  # each once, one pattern twice
        choice[-2] = 0  # a row of blocks that attends to nothing
        choice[-1, 1:3] = 1, 3
        choice[-1, [0, -1]] = 0  # a row that begins and ends with blocks without work
    return np.block([[store[n] for n in row] for row in choice])


def make_inputs(key, T, S, bq, bk, kind):
    mask = make_mask(rng(key), kind, T, S, bq, bk)
    mask.flags.writeable = False
    return mask, bq, bk


def observe(fn):
    """The function, for a mask that is a view: its rows do not lie one behind the other."""

    def of_a_part(mask, bq, bk):
        part = np.concatenate([mask, ~mask], axis=1)[:, : mask.shape[1]]
        part.flags.writeable = False
        return fn(part, bq, bk)

    return of_a_part


def fresh(r):
    shapes = [
        (96, 160, 32, 16, "causal"),
        (320, 256, 64, 32, "window"),
        (256, 640, 32, 128, "documents"),
        (192, 256, 32, 32, "blocks"),
        (256, 288, 16, 32, "blocks"),
        (64, 96, 8, 16, "random"),
        (128, 96, 16, 32, "whole blocks"),
    ]
    return dict(zip(("T", "S", "bq", "bk", "kind"), shapes[r.integers(len(shapes))], strict=True))


def what_is(x):
    """A result's type in words."""
    return "a jax.Array" if isinstance(x, jax.Array) else f"of type {type(x).__name__}"


def is_array(name, x, shape, dtype, why=""):
    """An assertion for each thing that a NumPy array can have wrong but its values."""
    assert isinstance(x, np.ndarray), f"`{name}` is {what_is(x)}: a NumPy array is wanted"
    assert x.ndim == len(shape) and all(
        n in (m, None) for m, n in zip(x.shape, shape, strict=True)
    ), (
        f"`{name}` has shape {x.shape}; wanted is "
        f"({', '.join('P' if n is None else str(n) for n in shape)})"
    )
    assert x.dtype == dtype, f"`{name}` is {x.dtype}; wanted is {np.dtype(dtype).name}{why}"


def accepts(answer, mask, bq, bk):
    assert isinstance(answer, tuple) and len(answer) == 3, (
        "return a tuple (block_mask, mask_index, partial_masks)"
    )
    block_mask, mask_index, partial_masks = answer
    shape = (mask.shape[0] // bq, mask.shape[1] // bk)
    why = ": kernels read scalars as int32"
    is_array("block_mask", block_mask, shape, np.int32, why)
    is_array("mask_index", mask_index, shape, np.int32, why)
    is_array("partial_masks", partial_masks, (None, bq, bk), bool)
    assert len(partial_masks), (
        "`partial_masks` holds no pattern: a kernel cannot take an empty operand, so return one of "
        "any content where nothing is partial"
    )
    patterns = set()
    for i, j in np.ndindex(shape):
        block = mask[i * bq : (i + 1) * bq, j * bk : (j + 1) * bk]
        count, n = int(block.sum()), int(mask_index[i, j])
        kind = int(count > 0) + int(count == block.size)
        no_two = kind == 2 and block_mask[i, j] == 1 and not (block_mask == 2).any()
        assert block_mask[i, j] == kind, (
            f"block ({i}, {j}) of the mask has {count} of its {block.size} elements True, "
            f"which makes it {KINDS[kind]}; `block_mask` says {block_mask[i, j]}"
            f"{NO_TWO if no_two else ''}"
        )
        if kind != 1:
            continue
        patterns.add(block.tobytes())
        assert 0 <= n < len(partial_masks), (
            f"`mask_index` is {n} at block ({i}, {j}), and `partial_masks` has "
            f"{len(partial_masks)} patterns: point at the place where the pattern is stored"
        )
        if not np.array_equal(partial_masks[n], block):
            right = [m for m, p in enumerate(partial_masks) if np.array_equal(p, block)]
            nowhere = "is stored nowhere. Cut blocks by rows and by columns; `reshape` cuts rows"
            where = f"is stored as pattern {right[0]}" if right else nowhere
            raise AssertionError(
                f"`mask_index` gives pattern {n} to block ({i}, {j}), which holds another one: its "
                f"own, mask[{i * bq}:{(i + 1) * bq}, {j * bk}:{(j + 1) * bk}], {where}"
            )
    different = len({pattern.tobytes() for pattern in partial_masks})
    assert different == len(partial_masks), (
        f"`partial_masks` holds {len(partial_masks)} patterns, and only {different} of them are "
        "different: store each once, and let `mask_index` name it as often as it occurs"
    )
    assert len(partial_masks) == max(1, len(patterns)), (
        f"`partial_masks` holds {len(partial_masks)} patterns, and the partial blocks of the "
        f"mask have {len(patterns)}: full blocks and empty ones need none"
    )


PUZZLE = Puzzle(
    spec=classify_blocks_spec,
    solution=classify_blocks,
    inputs=make_inputs,
    observe=observe,
    cases=[
        dict(T=256, S=384, bq=64, bk=128, kind="causal"),
        dict(T=384, S=320, bq=128, bk=64, kind="window"),
        dict(T=512, S=384, bq=64, bk=128, kind="documents"),
        dict(T=1280, S=1536, bq=256, bk=256, kind="blocks"),
        dict(T=96, S=256, bq=48, bk=64, kind="random"),
        dict(T=192, S=128, bq=64, bk=32, kind="whole blocks"),
        dict(T=256, S=288, bq=16, bk=16, kind="random"),  # more than 255 patterns
    ],
    fresh=fresh,
    hints=[
        "Two questions about a block, any and all, distinguish the three kinds. To store a "
        "pattern once, you have to recognise it when it comes again: which Python type looks "
        "things up by their content?",
        "In a mask reshaped to (T // bq, bq, S // bk, bk), a block's own elements are on axes 1 "
        "and 3, and `.any` and `.all` take a tuple of axes. `array.tobytes()` can be the key of "
        "a dict, which an array itself cannot. `np.argwhere(condition)` gives pairs of indices.",
        "First compute the kinds of all blocks at once. Then loop over the partial ones: if a "
        "block's bytes are not in the dict, number it with the length of the list of patterns, "
        "and append it. Either way, note its number. At the end, stack the list, after checking "
        "whether it is empty.",
    ],
    explain="""A mask comes down to one small number per block, any + all, and to a few
    different patterns. Each pattern is stored once (the reference has a dict from a block's
    bytes to its number). So P does not grow with the number of partial blocks: it is 1 for a
    causal mask with bq = bk, however long that is.""",
    kernel=False,
    accepts=accepts,
)
