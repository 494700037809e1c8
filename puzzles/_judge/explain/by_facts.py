"""Explanations of wrong numbers by facts of a run: functions that return a sentence, or None."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence

import numpy as np

from puzzles._judge.accuracy import foreign, narrowings
from puzzles._judge.answer import Run
from puzzles._judge.numbers import number_words, on_tpu, tolerance_of
from puzzles._judge.source import handed_out
from puzzles._launch import Launch, Operand, faults, faults_of_copies, itemsize
from puzzles._receipt import amounts
from puzzles._rules import sentence
from puzzles._simulator import SimulationError, first_not_finite, simulate

_NEAR = 10.0  # times the tolerance
_ROUNDED = 0.05  # relative error: rounding numbers and short sums to bf16 stays below it
_WHOLE = 20  # elements of a vector that is printed whole
_LARGE = 2_000_000  # elements; a comparison of more is too slow
_SIDE = 8  # blocks shown along an axis


def map_of_blocks(run: Run) -> str | None:
    """A map of the right and the wrong blocks."""
    return None if run.place is None else block_map(run.place.operand, run.place.marks)


def numbers_listed(run: Run) -> str | None:
    """All numbers of a short result of a function without a kernel, next to the spec's."""
    position, want, _ = run.mismatch
    if run.puzzle.kernel or want.ndim != 1 or want.size > _WHOLE:
        return None
    both = (", ".join(map(number_words, values)) for values in (want, run.flat[position]))
    return "\nexpected [{}]\ngot      [{}]".format(*both)


def fault_of_a_launch(run: Run) -> str | None:
    """A fault that makes numbers wrong for any kernel body."""
    first = fault(run)
    return None if first is None else first[1]


def fault(run: Run) -> tuple[str, str] | None:
    """(kind, message) of the first such fault, or None."""
    own = run.own if run.puzzle.kernel else ()
    severe = (f for launch in own for f in faults(launch) if f.kind != "misaligned")
    return next(((f.kind, f.words) for f in severe), None) or explains(own)


def explains(launches: Sequence[Launch]) -> tuple[str, str] | None:
    """(kind, message) of a faulty copy that makes numbers wrong for any kernel body, or None.

    Such faults are a copy from outside an array, a wait for a copy that was not started, and an
    output in HBM that no copy writes. The kind is unique to the fault.
    """
    for launch in launches:
        bad = [f for f in faults_of_copies(launch) if f.line or f.kind == "outside"]
        if any(f.kind in ("outside", "stuck") for f in bad):  # an earlier fault may cause it
            return f"{bad[0].kind} {bad[0].line}", bad[0].says
        filled = {copy.target for copy in launch.copies if copy.times}
        for out in launch.outputs:
            if launch.copies and not out.piped and out.name not in filled:
                return f"unwritten {out.name}", sentence("no_copy_goes_there", name=out.name)
    return None


def outside_a_ref(run: Run) -> str | None:
    """An access outside a Ref, which NumPy refuses and JAX's interpreter moves inside."""
    if not run.puzzle.kernel or run.in_numpy is not None or _first_fact(run, "read_early"):
        return None  # also None if garbage may be the index
    try:
        simulate(run.traced)
    except SimulationError as error:
        outside = error.finding is not None and error.finding.kind == "out-of-bounds"
        return error.says if outside else None
    return None


def garbage(run: Run) -> str | None:
    """Memory that is read before it is written, or not always written, if a result is NaN."""
    _, _, wrong = run.mismatch
    if not math.isnan(float(wrong.got)):
        return None
    return _first_fact(run, "read_early") or _first_fact(run, "not_stored_in_all")


def garbage_kinds(launches: Sequence[Launch]) -> frozenset[str]:
    """The ways in which launches read memory before it is written, or never write it."""
    kinds = {kind for launch in launches for kind, _, _ in _facts(launch)}
    return frozenset(kinds & {"read_early", "not_stored_in_all", "never_stored"})


def never_stored(run: Run) -> str | None:
    """A Ref that a launch never writes."""
    return _first_fact(run, "never_stored")


def unused(run: Run) -> str | None:
    """A Ref that a launch never reads, or a buffer that is used while in flight."""
    if never_stored(run) is None and (fact := _first_fact(run, "never_used")) is not None:
        return fact
    bad = (f for launch in _launches(run) for f in faults_of_copies(launch))
    return next((f.says for f in bad if f.kind == "hazard"), None)


def copied_in_part(run: Run) -> str | None:
    """An array in HBM that the reference copies whole, and the kernel in part."""
    usual = run.case.reference.launches if run.puzzle.kernel else ()
    theirs = [o for launch in usual for o in (*launch.inputs, *launch.outputs)]
    for launch in _launches(run):
        for operand in (*launch.inputs, *launch.outputs) if launch.exact else ():
            size = math.prod(operand.shape) * itemsize(operand.dtype)
            kind = operand.shape, operand.output
            alike = (o.hbm_bytes for o in theirs if (o.shape, o.output) == kind)
            if not operand.piped and 0 < operand.hbm_bytes < size <= max(alike, default=0):
                part, whole = amounts(operand.hbm_bytes, size)
                words = "copied_out_in_part" if operand.output else "copied_in_part"
                return sentence(words, name=operand.name, part=part, whole=whole)
    return None


def _launches(run: Run) -> Sequence[Launch]:
    """The launch whose output is wrong, or all of the answer's own launches."""
    if not run.puzzle.kernel:
        return ()
    return [launch for launch in run.own if run.place is None or launch is run.place.launch]


def _first_fact(run: Run, *kinds: str) -> str | None:
    """The first fact of some kinds that does not hold for the reference on the same case."""
    usual = run.case.reference.launches if run.puzzle.kernel else ()
    common = {(kind, name) for launch in usual for kind, name, _ in _facts(launch)}
    for launch in _launches(run):
        new = [f for f in _facts(launch) if f[0] in kinds and f[:2] not in common]
        for kind, name, facts in new[:1]:
            alike = [f"`{ref}`" for k, ref, details in new if (k, details) == (kind, facts)]
            if kind == "read_early" and len(alike) > 1:  # unclear which of them is the cause
                names = f"{', '.join(alike[:-1])} and {alike[-1]}"
                return sentence("several_read_early", names=names, **facts)
            return sentence(kind, name=name, **facts)
    return None


def _facts(launch: Launch) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield accesses that a right kernel rarely makes: (sentence, ref, facts)."""
    touched = launch.touched
    for name, step in sorted(touched.early, key=lambda read: read[1]):
        yield "read_early", name, {"when": launch.when(step)}
    for name, count, total, block, step in touched.unstored:
        facts = {"count": count, "total": total, "block": block, "step": launch.at(step)}
        yield "not_stored_in_all", name, facts
    yield from (("never_stored", name, {}) for name in touched.unwritten)
    yield from (("never_used", name, {}) for name in touched.unread)


def nearness(run: Run) -> str | None:
    """A sentence if the largest error is near the tolerance."""
    _, _, wrong = run.mismatch
    return sentence("close", excess=wrong.excess) if wrong.excess <= _NEAR else None


def like_others(run: Run) -> str | None:
    """A simple relation of the wrong numbers to the right numbers or to an argument."""
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
    """A factor or a summand that turns all right numbers into the wrong numbers."""
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
    """A line that rounds an intermediate value, if the numbers are off by digits."""
    _, want, wrong = run.mismatch
    error = wrong.excess * tolerance_of(want, run.puzzle.tolerance)
    if not run.puzzle.kernel or error >= _ROUNDED:
        return None
    new = foreign(narrowings(run.traced), narrowings(run.case.reference))
    return new[0].says if new else None


def not_finite(run: Run) -> str | None:
    """The learner's line that makes the first value that is not finite; all outputs are stored."""
    _, _, wrong = run.mismatch
    traceable = run.puzzle.kernel or run.puzzle.jit
    if on_tpu() or not traceable or not math.isfinite(wrong.expected) or math.isfinite(wrong.got):
        return None
    if never_stored(run) is not None or not run.answer.affords(run.case):
        return None
    try:
        first = first_not_finite(run.traced)
    except Exception:  # an explanation is optional
        return None
    if not first:  # then it was loaded
        return _padding(run)
    return None if first.split("`")[1] in handed_out(run.puzzle) else first


def _padding(run: Run) -> str | None:
    """An input with a block that reaches beyond the edge of its array."""
    for launch, x in ((one, x) for one in _launches(run) for x in one.inputs if x.piped):
        if (overhang := (x.starts + np.array(x.sizes) > np.array(x.shape)).any(axis=1)).any():
            step = launch.when(int(np.argmax(overhang)))
            return sentence("garbage_beyond_the_edge", name=x.name, step=step)
    return None


def block_map(operand: Operand, wrong: np.ndarray) -> str | None:
    """Rows of `.` and `x`, with "…" for more blocks; None if there is only one block.

    An array with blocks along more than two axes is shown as the plane of the last two of them that
    holds the first wrong block.
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
    marks = ", ".join(":" if isinstance(n, slice) else str(n) for n in index)
    which = f" [{marks}]" if plane.size < bad.size else ""
    rows = [sentence("map_of_blocks", name=operand.name, which=which), *_rows(plane)]
    if bad.size > np.prod(np.minimum(plane.shape, _SIDE)):
        rows.append(sentence("wrong_blocks", count=int(bad.sum()), total=bad.size))
    return "\n".join(rows)


def _rows(plane: np.ndarray) -> list[str]:
    """The rows of a window of a plane, with block numbers, that shows the first wrong block."""
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
