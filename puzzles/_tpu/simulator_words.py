"""The simulator's exceptions in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from puzzles._jax import Jaxpr, JaxprEqn, Var
from puzzles._launch import (
    ERROR,
    WARNING,
    Finding,
    entered,
    launch_name,
    line_of,
    memory_space,
    parameter_names,
)
from puzzles._rules import stuck
from puzzles._tpu.watch import Stuck, Watch

_ACCESS = re.compile(r"of \(\d+ \d+ (\w+) (\d+)\): \w+ \[(\(.*\))\] but \w+ has shape (\(.*?\))")
_SLICE = re.compile(r"slice\((-?\d+), (-?\d+), (?:\d+|None)\)|(-?\d+)")


def translate(error: Exception, watch: Watch) -> Finding | str:
    """What went wrong in a launch, from the exception and from what was seen before it.

    A sentence where it may be the simulator that stops, and not the kernel.
    """
    found = _translated(error, watch)
    if isinstance(found, str):
        return found
    line = line_of(watch.failed[1].get("source_info"))
    return replace(found, launch=watch.launch, line=line)


def _translated(error: Exception, watch: Watch) -> Finding | str:
    text = _gist(error)
    if isinstance(error, Stuck):
        what, remedy = stuck(error.args[0])
        return Finding("hazard", ERROR, f"The kernel {what}{_at(watch)}.", remedy, step=watch.step)
    if "Advanced indexers" in text:
        return _advanced(watch)
    if "parallel semantics must form a prefix" in text:
        says = 'In `dimension_semantics` a "parallel" axis comes after an "arbitrary" one.'
        return Finding("parallel", WARNING, says, "Make the parallel axes the first of the grid.")
    access = _access(text, watch)
    if access is not None and not _fits(*access[2:]):
        return _outside(*access, watch)
    return f"The TPU simulator stops{_at(watch)}: {text}"


def _gist(error: Exception) -> str:
    """`Type: message`; a failed callback arrives as a traceback, of which the last line counts."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Traceback (most recent call last)" in str(error):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"-?\d+", text))


def _ranges(text: str) -> tuple[tuple[int, int | None], ...]:
    """`(slice(0, 128, 1), 5)` as `((0, 128), (5, None))`."""
    return tuple(
        (int(one), None) if one else (int(start), int(stop))
        for start, stop, one in _SLICE.findall(text)
    )


def _shown(ranges: Sequence[tuple[int, int | None]]) -> str:
    return ", ".join(f"{a}" if b is None else f"{a}:{b}" for a, b in ranges)


def _advanced(watch: Watch) -> Finding:
    name = watch.name_of(_int(watch.failed[1].get("buffer_id")))
    which = f"`{name}`" if name else "A ref"
    says = (
        f"{which} is indexed with an array{_at(watch)}. A TPU kernel loads slices, not scattered "
        "rows:"
    )
    remedy = "use `pl.ds`, an index map that picks blocks, or a one-hot matmul."
    return Finding("lowering", ERROR, says, remedy, operand=name, step=watch.step)


def _access(text: str, watch: Watch) -> tuple[str, int, Any, Any] | None:
    """Space, buffer, ranges and shape of the access that failed."""
    if found := _ACCESS.search(text):
        return found[1], int(found[2]), _ranges(found[3]), _ints(found[4])
    # 0.10 asserts, without words, that a written range is not negative and fits; 0.7.2 leaves
    # some to NumPy's IndexError. What was asked for is in the arguments of the callback.
    name, given = watch.failed
    if name not in ("get", "store", "swap") or not text.startswith(
        ("AssertionError", "IndexError")
    ):
        return None
    ranges = tuple(
        (int(i), None) if not hasattr(i, "start") else (int(i.start), int(i.start) + int(i.size))
        for indexer in given.get("transforms", ())[:1]
        for i in getattr(indexer, "indices", ())
    )
    shape = tuple(indexer.shape for indexer in given.get("transforms", ())[:1])
    return "", _int(given.get("buffer_id")) or 0, ranges, shape[0] if shape else None


def _fits(ranges: Any, shape: Any) -> bool:
    """Whether an access is inside, so that it is the simulator that stops for another reason."""
    ends = ((a, a + 1 if b is None else b) for a, b in ranges)
    return bool(shape) and all(a >= 0 and b <= n for (a, b), n in zip(ends, shape, strict=False))


def _outside(space: str, buffer: int, ranges: Any, shape: Any, watch: Watch) -> Finding:
    name = watch.name_of(buffer)
    which = f"`{name or 'ref'}[{_shown(ranges)}]`"
    of = f", which has shape {tuple(shape)}" if shape else ""
    if watch.in_index_map():
        says = f"An index map reads {which}{of}."
        remedy = (
            "Check the index: an index map is evaluated at every step, also where `pl.when` skips "
            "the work."
        )
        return Finding("out-of-bounds", ERROR, says, remedy, operand=name)
    says = f"The kernel reaches outside `{name or 'a ref'}`{of}: {which}{_at(watch)}."
    if space in ("hbm", "any"):
        remedy = "Check the bounds of what is copied."
    elif space == "smem":
        remedy = "Check the index, and the length of the array that is passed in."
    else:
        remedy = "A ref is one block, whose first element is index 0 at every step."
    return Finding("out-of-bounds", ERROR, says, remedy, operand=name, step=watch.step)


def _at(watch: Watch) -> str:
    step = f" at grid step {watch.step}" if watch.step else ""
    line = watch.line()
    return f"{step}, in `{line}`" if line else step


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def indexed_hbm(equation: JaxprEqn) -> Finding | None:
    """That the kernel indexes a ref in HBM; 0.7.2 lets it pass, 0.10 does not."""
    kernel = equation.params["jaxpr"]
    names = dict(zip(kernel.invars, parameter_names(equation), strict=True))
    for ref, stored in _accessed(kernel, {v: v for v in kernel.invars}):
        if memory_space(ref.aval) in ("any", "hbm"):
            name = names.get(ref)
            which = f"`{name}`" if name else "A ref in HBM"
            says = f"{which} stays in HBM (`memory_space=pl.ANY`), and a kernel cannot index that:"
            remedy = (
                "compute into VMEM scratch, and copy that to it."
                if stored
                else "copy what you need of it to VMEM scratch first."
            )
            launch = launch_name(equation)
            return Finding("lowering", ERROR, says, remedy, launch, name)
    return None


def _accessed(jaxpr: Jaxpr, outer: dict[Var, Var]) -> Iterator[tuple[Var, bool]]:
    """The refs that are loaded from, or stored to, as the kernel's own variables where known."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("get", "swap", "addupdate", "masked_load", "masked_swap"):
            ref = equation.invars[0]
            yield outer.get(ref, ref), name not in ("get", "masked_load")
        for inner, known in entered(equation):
            yield from _accessed(inner, {own: outer.get(one, one) for own, one in known.items()})
