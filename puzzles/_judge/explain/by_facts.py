"""Why are the numbers wrong? What states a fact of a run: a run in, a sentence out, or None."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence

import numpy as np

from puzzles._judge.accuracy import foreign, narrowings
from puzzles._judge.answer import Run
from puzzles._judge.numbers import number_words, on_tpu, tolerance_of
from puzzles._judge.source import handed_out
from puzzles._launch import Launch, Operand, faults, faults_of_copies
from puzzles._rules import sentence
from puzzles._simulator import first_not_finite

_NEAR = 10.0  # times the tolerance
_ROUNDED = 0.05  # relatively: a number and a sum of some, rounded to bf16, are no farther off
_WHOLE = 20  # elements of a vector that is printed whole
_LARGE = 2_000_000  # elements that are compared at leisure
_SIDE = 8  # blocks shown along an axis


def map_of_blocks(run: Run) -> str | None:
    """Right and wrong blocks, drawn."""
    return None if run.place is None else block_map(run.place.operand, run.place.marks)


def numbers_listed(run: Run) -> str | None:
    """A short result of a function without a kernel, whole, beside the spec's."""
    position, want, _ = run.mismatch
    if run.puzzle.kernel or want.ndim != 1 or want.size > _WHOLE:
        return None
    both = (", ".join(map(number_words, values)) for values in (want, run.flat[position]))
    return "\nexpected [{}]\ngot      [{}]".format(*both)


def fault_of_a_launch(run: Run) -> str | None:
    """A fault that makes numbers wrong however the kernel computes."""
    found = fault(run)
    return None if found is None else found[1]


def fault(run: Run) -> tuple[str, str] | None:
    """The kind and the words of the first one."""
    own = run.own if run.puzzle.kernel else ()
    found = (f for one in own for f in faults(one) if f.kind != "misaligned")
    return next(((f.kind, f.words) for f in found), None) or explains(own)


def explains(launches: Sequence[Launch]) -> tuple[str, str] | None:
    """(kind, words) of what makes numbers wrong, however the kernel computes: None if nothing.

    A copy from where nothing is, one that is waited for and was not started, an output in HBM that
    nobody copies to. The kind tells one such fault from another.
    """
    for launch in launches:
        told = [one for one in faults_of_copies(launch) if one.line or one.kind == "outside"]
        if any(one.kind in ("outside", "stuck") for one in told):  # and what came before it
            return f"{told[0].kind} {told[0].line}", told[0].says
        filled = {copy.target for copy in launch.copies if copy.times}
        for out in launch.outputs:
            if launch.copies and not out.piped and out.name not in filled:
                return f"unwritten {out.name}", sentence("no_copy_goes_there", name=out.name)
    return None


def garbage(run: Run) -> str | None:
    """Memory that is read before it is written, or never written, where NaN came out."""
    _, _, wrong = run.mismatch
    if not math.isnan(float(wrong.got)):
        return None
    return _first_fact(run, "read_early") or _first_fact(run, "not_stored_in_all")


def undone(run: Run) -> str | None:
    """What a launch never reads or writes, and a buffer that is used in flight."""
    if (said := _first_fact(run, "never_stored", "never_used")) is not None:
        return said
    found = (one for launch in _launches(run) for one in faults_of_copies(launch))
    return next((one.says for one in found if one.kind == "hazard"), None)


def _launches(run: Run) -> Sequence[Launch]:
    """The answer's own launches, or that of them whose output is wrong."""
    if not run.puzzle.kernel:
        return ()
    return [one for one in run.own if run.place is None or one is run.place.launch]


def _first_fact(run: Run, *kinds: str) -> str | None:
    """The first of some facts; what the reference does on the same case, too, explains nothing."""
    usual = run.case.reference.launches if run.puzzle.kernel else ()
    known = {(kind, name) for one in usual for kind, name, _ in _facts(one)}
    for launch in _launches(run):
        new = [one for one in _facts(launch) if one[0] in kinds and one[:2] not in known]
        for kind, name, facts in new[:1]:
            alike = [f"`{other}`" for word, other, its in new if (word, its) == (kind, facts)]
            if kind == "read_early" and len(alike) > 1:  # one of them is enough, but which?
                names = f"{', '.join(alike[:-1])} and {alike[-1]}"
                return sentence("several_read_early", names=names, **facts)
            return sentence(kind, name=name, **facts)
    return None


def _facts(launch: Launch) -> Iterator[tuple[str, str, dict[str, object]]]:
    """What a right kernel seldom does: its sentence, the ref, and other facts of it."""
    seen = launch.touched
    for name, step in sorted(seen.early, key=lambda one: one[1]):
        yield "read_early", name, {"when": launch.when(step)}
    for name, count, total, block, step in seen.unstored:
        facts = {"count": count, "total": total, "block": block, "step": launch.at(step)}
        yield "not_stored_in_all", name, facts
    yield from (("never_stored", name, {}) for name in seen.unwritten)
    yield from (("never_used", name, {}) for name in seen.unread)


def nearness(run: Run) -> str | None:
    """That the largest error is not far from what is allowed."""
    _, _, wrong = run.mismatch
    return sentence("close", excess=wrong.excess) if wrong.excess <= _NEAR else None


def like_others(run: Run) -> str | None:
    """What all wrong numbers have in common with the right ones, or with an argument."""
    position, want, _ = run.mismatch
    got = run.flat[position]
    same = 2 * tolerance_of(want, run.puzzle.tolerance)
    if not 1 < want.size <= _LARGE or want.dtype.kind in "biu" or got.dtype.kind in "biu":
        return None
    want, got = want.astype(np.float64), got.astype(np.float64)
    names = inspect.signature(run.puzzle.spec).parameters
    for name, value in zip(names, run.case.args, strict=False):
        if getattr(value, "shape", None) == got.shape:  # a pair of arrays has none
            theirs = np.asarray(value, np.float64)
            scale = np.sqrt(np.mean(np.square(theirs)))
            if np.isfinite(scale) and np.allclose(got, theirs, rtol=1e-5, atol=1e-5 * scale):
                return sentence("numbers_of_an_argument", name=name)
    law = _law(want, got, same)
    return None if law is None else sentence("every_number", law=law)


def _law(want: np.ndarray, got: np.ndarray, same: float) -> str | None:
    """One factor, or one summand, that makes all wrong numbers of the right ones."""
    if not (np.isfinite(want).all() and np.isfinite(got).all()):
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
        return sentence("one_factor", factor=factor)
    summand = float(np.median(got - want))
    if np.allclose(got, want + summand, rtol=0, atol=same * min(abs(summand), scale)):
        return sentence("too_large" if summand > 0 else "too_small", by=abs(summand))
    return None


def rounds_on_the_way(run: Run) -> str | None:
    """A line that rounds and goes on computing, where the numbers are off by digits."""
    _, want, wrong = run.mismatch
    if not run.puzzle.kernel:
        return None
    if wrong.excess * tolerance_of(want, run.puzzle.tolerance) >= _ROUNDED:
        return None
    found = foreign(narrowings(run.traced), narrowings(run.case.reference))
    return found[0].says if found else None


def not_finite(run: Run) -> str | None:
    """The learner's line that makes the first number that is not finite."""
    _, _, wrong = run.mismatch
    known = run.puzzle.kernel or run.puzzle.jit  # there is a program to be watched
    if on_tpu() or not known or not math.isfinite(wrong.expected) or math.isfinite(wrong.got):
        return None
    if not run.answer.in_time():
        return None
    try:
        found = first_not_finite(run.traced)
    except Exception:  # it ran once, without being watched: then nothing more is known
        return None
    return None if found and found.split("`")[1] in handed_out(run.puzzle) else found


def block_map(operand: Operand, wrong: np.ndarray) -> str | None:
    """Rows of `.` and `x`, with "…" where more blocks lie; None if there is only one block.

    Of an array that is cut along more than two axes: the plane of the last two of these in which
    the first wrong block lies.
    """
    bad = np.asarray(wrong)
    for axis, size in enumerate(b or 1 for b in operand.block):
        starts = np.arange(0, bad.shape[axis], size)
        bad = np.asarray(np.logical_or.reduceat(bad, starts, axis=axis))
    if bad.size < 2:
        return None
    bad = np.atleast_2d(bad)
    last = bad.ndim - 1
    down = max((axis for axis in range(last) if bad.shape[axis] > 1), default=last - 1)
    first = np.unravel_index(int(np.argmax(bad)), bad.shape)
    index = [slice(None) if axis in (down, last) else int(n) for axis, n in enumerate(first)]
    plane = bad[tuple(index)]
    marks = ", ".join(":" if isinstance(one, slice) else str(one) for one in index)
    which = f" [{marks}]" if plane.size < bad.size else ""
    rows = [sentence("map_of_blocks", name=operand.name, which=which), *_rows(plane)]
    if bad.size > np.prod(np.minimum(plane.shape, _SIDE)):
        rows.append(sentence("wrong_blocks", count=int(bad.sum()), total=bad.size))
    return "\n".join(rows)


def _rows(plane: np.ndarray) -> list[str]:
    """A window of a plane that holds its first wrong block, if it has one, with block numbers."""
    first = np.unravel_index(int(np.argmax(plane)), plane.shape)
    top, left = (max(0, int(n) - _SIDE + 1) for n in first)
    window = plane[top : top + _SIDE, left : left + _SIDE]
    below, right = plane.shape[0] > top + _SIDE, plane.shape[1] > left + _SIDE
    numbers = [str(left + n) for n in range(window.shape[1])]
    wide, side = len(numbers[-1]), len(str(top + len(window) - 1))

    def line(label: str, cells: list[str]) -> str:
        shown = ["…"] * (left > 0) + cells + ["…"] * right
        return f"{label:>{side}} {' '.join(cell.rjust(wide) for cell in shown)}"

    rows = [line("", numbers)]
    rows += ["…"] * (top > 0)
    for n, row in enumerate(window):
        rows.append(line(str(top + n), ["x" if wrong else "." for wrong in row]))
    return rows + ["…"] * below
