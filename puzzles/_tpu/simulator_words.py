"""The simulator's exceptions in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

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
from puzzles._tpu.watch import Outside, Stuck, Watch


def translate(error: Exception, watch: Watch) -> Finding | str:
    """What went wrong in a launch, from the exception and from what was seen before it.

    A sentence where it may be the simulator that stops, and not the kernel.
    """
    text, at, given = _gist(error), _at(watch), watch.failed[1]
    found = partial(
        Finding, launch=watch.launch, step=watch.step, line=line_of(given.get("source_info"))
    )
    if isinstance(error, Stuck):
        what, remedy = stuck(error.args[0])
        return found("hazard", ERROR, f"The kernel {what}{at}.", remedy)
    if isinstance(error, Outside):
        place, copies = error.args
        name, shape = place.buffer.name, place.buffer.shape
        part = ", ".join(f"{a}" if index else f"{a}:{b}" for a, b, index in place.ranges)
        ref = f"`{name}`" if name else "a ref"
        says = f"The kernel reaches outside {ref}, which has shape {shape}: "
        says += f"`{name or 'ref'}[{part}]`{at}."
        remedy = "A ref is one block, whose first element is index 0 at every step."
        if copies:
            remedy = "Check the bounds of what is copied."
        elif name in watch.scalars:
            remedy = "Check the index, and the length of the array that is passed in."
        return found("out-of-bounds", ERROR, says, remedy, operand=name)
    if "Advanced indexers" in text:
        name = watch.name_of(int(given["buffer_id"])) if "buffer_id" in given else None
        says = f"{f'`{name}`' if name else 'A ref'} is indexed with an array{at}. A TPU kernel "
        says += "loads slices, not scattered rows:"
        remedy = "use `pl.ds`, an index map that picks blocks, or a one-hot matmul."
        return found("lowering", ERROR, says, remedy, operand=name)
    if "parallel semantics must form a prefix" in text:
        says = 'In `dimension_semantics` a "parallel" axis comes after an "arbitrary" one.'
        return found("parallel", WARNING, says, "Make the parallel axes the first of the grid.")
    return f"The TPU simulator stops{at}: {text}"


def _gist(error: Exception) -> str:
    """`Type: message`; a failed callback arrives as a traceback, of which the last line counts."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Traceback (most recent call last)" in str(error):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


def _at(watch: Watch) -> str:
    step = f" at grid step {watch.step}" if watch.step else ""
    line = watch.line()
    return f"{step}, in `{line}`" if line else step


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
