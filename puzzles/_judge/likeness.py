"""What wrong numbers look like, and what their launch leaves undone: facts, and no guesses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from puzzles._launch import Launch, Operand, absent

_LARGE = 8_000_000  # elements that are compared at leisure
_SAMPLE = 10_000  # elements
_MANY = 1000  # blocks


def likeness(
    want: np.ndarray,
    got: np.ndarray,
    wrong: np.ndarray,
    args: Mapping[str, Any],
    operand: Operand | None,
    same: float,
) -> str | None:
    """A sentence about wrong numbers that holds for all of them, or for all of the first block.

    `operand` is the output that the result is, where its blocks lie in the result as they are;
    `same` is how far numbers may be apart, relatively, that count as the same.
    """
    if not 1 < want.size <= _LARGE or want.dtype.kind in "biu" or got.dtype.kind in "biu":
        return None
    want, got = want.astype(np.float64), got.astype(np.float64)
    for name, value in args.items():
        same_form = getattr(value, "shape", None) == got.shape  # a pair of arrays has none
        if same_form and _equal(got, np.asarray(value, np.float64)):
            return f"They are the numbers of `{name}`, unchanged."
    if got.ndim == 2 and got.shape[0] == got.shape[1] > 1 and _equal(got.T, want):
        return "They are the right numbers, with rows and columns swapped."
    whole = _law(want, got, same)
    if whole is not None:
        return f"Every number is {whole}."
    if operand is None or operand.shape != want.shape or None in operand.block:
        return _box(wrong, got, "Of all elements")
    first = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    block = tuple(n // size for n, size in zip(first, operand.sizes, strict=True))
    here = _cut(operand, block)
    counts = tuple(-(-n // size) for n, size in zip(want.shape, operand.sizes, strict=True))
    if np.prod(counts) > 1:
        law = _law(want[here], got[here], same)
        if law is not None:
            return f"Every number of this block is {law}."
        for other in np.ndindex(counts) if np.prod(counts) <= _MANY else ():
            theirs = want[_cut(operand, other)]
            if other != block and theirs.shape == got[here].shape and _equal(got[here], theirs):
                return f"This block holds what belongs into block {other}."
    return _box(wrong[here], got[here], "Of this block")


def _cut(operand: Operand, block: tuple[int, ...]) -> tuple[slice, ...]:
    pairs = zip(block, operand.sizes, strict=True)
    return tuple(slice(n * size, (n + 1) * size) for n, size in pairs)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    scale = np.sqrt(np.mean(np.square(other))) if other.size else 0.0
    return bool(np.isfinite(scale) and np.allclose(one, other, rtol=1e-5, atol=1e-5 * scale))


def _law(want: np.ndarray, got: np.ndarray, same: float) -> str | None:
    """One factor, or one summand, that makes all wrong numbers of the right ones."""
    if want.size > _SAMPLE:  # what holds for all of them holds for some
        step = -(-want.size // _SAMPLE)
        if _law(want.ravel()[::step], got.ravel()[::step], same) is None:
            return None
    if want.size < 2 or not (np.isfinite(want).all() and np.isfinite(got).all()):
        return None
    scale = float(np.sqrt(np.mean(want**2)))
    if not scale or np.ptp(want) <= 10 * same * scale:
        return None
    clear = np.abs(want) > 0.1 * scale
    ratios = got[clear] / want[clear]
    factor = float(np.median(ratios))
    if not got.any():
        return "0"
    if np.allclose(got, factor * want, rtol=0, atol=same * abs(factor) * scale):
        if abs(factor + 1) < same:
            return "the right one with the other sign"
        return f"{factor:.4g} times what it should be"
    summand = float(np.median(got - want))
    if np.allclose(got, want + summand, rtol=0, atol=same * min(abs(summand), scale)):
        return f"{abs(summand):.4g} too {'large' if summand > 0 else 'small'}"
    return None


def _box(wrong: np.ndarray, got: np.ndarray, of: str) -> str | None:
    """Which slice alone is right, or wrong, where what is wrong is NaN."""
    if wrong.all() or not np.isnan(got[wrong]).all():
        return None
    more = wrong.mean() > 0.5  # then what is right is said
    marks = ~wrong if more else wrong
    spans = [np.flatnonzero(marks.any(axis=_others(marks, axis))) for axis in range(marks.ndim)]
    ends = [(int(span[0]), int(span[-1]) + 1) for span in spans]
    if np.prod([last - first for first, last in ends]) != marks.sum():
        return None
    slices = zip(ends, marks.shape, strict=True)
    index = ", ".join(_span(first, last, size) for (first, last), size in slices)
    rest = "right; the rest is NaN" if more else "wrong; it is NaN"
    return f"{of}, only [{index}] is {rest}."


def _others(marks: np.ndarray, axis: int) -> tuple[int, ...]:
    return tuple(a for a in range(marks.ndim) if a != axis)


def _span(first: int, last: int, size: int) -> str:
    if (first, last) == (0, size):
        return ":"
    return str(first) if last == first + 1 else f"{first}:{last}"


def early(launch: Launch, usual: Sequence[Launch]) -> str | None:
    """The first read of an output or of scratch before anything is written to it.

    usual: what the reference launches on the same case; what it does, too, explains nothing.
    """
    known = {name for one in usual for name, _ in one.touched.early}
    found = [(name, step) for name, step in launch.touched.early if name not in known]
    if not found:
        return None
    name, step = min(found, key=lambda one: one[1])
    return (
        f"`{name}` is read{launch.when(step)} before anything is written to it: it "
        "holds garbage then (NaN here). Reading is also what `+=` does."
    )


def unstored(launch: Launch, usual: Sequence[Launch]) -> str | None:
    """Blocks of an output into which no step writes; as `early`."""
    known = {name for one in usual for name, *_ in one.touched.unstored}
    for name, count, total, block, step in launch.touched.unstored:
        if name not in known:
            return (
                f"of {total:,} blocks of `{name}` nothing is ever stored in {count:,}, for example "
                f"{block}, which grid step {launch.at(step)} holds."
            )
    return None


def left_undone(launch: Launch, usual: Sequence[Launch]) -> str | None:
    """What the launch never reads, writes or fetches, if there is something, and `usual` does."""
    seen, others = launch.touched, [one.touched for one in usual]
    for name in seen.unwritten:
        if not any(name in one.unwritten for one in others):
            return f"nothing is ever stored in `{name}`."
    for name in seen.unread:
        if not any(name in one.unread for one in others):
            return f"no grid step uses what `{name}` holds."
    for one in launch.inputs:
        alike = [o for call in usual for o in call.inputs if _alike(o, one)]
        if one.piped and alike:
            gone, total, example = min(absent(other.blocks, one.blocks) for other in alike)
            if gone:
                return (
                    f"your launch never gets {gone:,} of the {total:,} blocks of `{one.name}` "
                    f"that the reference takes, for example the one at {example}."
                )
    return None


def _alike(one: Operand, other: Operand) -> bool:
    mine, theirs = ((o.piped, o.shape, str(o.dtype), o.sizes, o.stride) for o in (one, other))
    return mine == theirs
