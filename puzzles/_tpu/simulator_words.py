"""The simulator's exceptions in plain words."""

from __future__ import annotations

from puzzles._jax import JaxprEqn
from puzzles._launch import (
    WARNING,
    Finding,
    entered,
    launch_name,
    line_of,
    memory_space,
    parameter_names,
    text_of,
    told,
    visited,
    when,
)
from puzzles._rules import sentence
from puzzles._tpu.watch import Outside, Stuck, Watch


def translate(error: Exception, watch: Watch) -> Finding | str:
    """What went wrong in a launch, from the exception and from what was seen before it.

    A sentence where it may be the simulator that stops, and not the kernel.
    """
    text, info = _gist(error), watch.failed.get("source_info")
    at = when(watch.step, text_of(info)[:100])
    facts = dict(launch=watch.launch, step=watch.step, line=line_of(info), when=at, where=at)
    if isinstance(error, Stuck):
        return told("hazard", error.args[0], **facts)
    if isinstance(error, Outside):
        place, copies = error.args
        name, shape = place.buffer.name, place.buffer.shape
        words = "scalars outside" if name in watch.scalars else "block of a ref outside"
        words = "copy of a ref outside" if copies else words
        facts |= dict(operand=name, ref=f"`{name}`" if name else "a ref", name=name or "ref")
        return told("out-of-bounds", words, part=place.in_full, shape=shape, **facts)
    if "Advanced indexers" in text:
        buffer = watch.failed.get("buffer_id")
        name = None if buffer is None else watch.name_of(int(buffer))
        which = f"`{name}`" if name else "A ref"
        return told("lowering", "indexed with an array", operand=name, which=which, **facts)
    if "parallel semantics must form a prefix" in text:
        return told("parallel", "parallel axes come first", WARNING, **facts)
    return sentence("the simulator stops", where=at, text=text)


def _gist(error: Exception) -> str:
    """`Type: message`; a failed callback arrives as a traceback, of which the last line counts."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "Traceback (most recent call last)" in str(error):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


def indexed_hbm(equation: JaxprEqn) -> Finding | None:
    """That the kernel indexes a ref in HBM; 0.7.2 lets it pass, 0.10 does not."""
    kernel = equation.params["jaxpr"]
    names = dict(zip(kernel.invars, parameter_names(equation), strict=True))
    for access, path in visited(kernel):
        if access.primitive.name in ("get", "swap", "addupdate", "masked_load", "masked_swap"):
            ref = access.invars[0]
            for around in reversed(path):
                outer = {own: one for _, known in entered(around) for own, one in known.items()}
                ref = outer.get(ref, ref)
            if memory_space(ref.aval) in ("any", "hbm"):
                name = names.get(ref)
                loads = access.primitive.name in ("get", "masked_load")
                words = "loaded from HBM" if loads else "stored to HBM"
                where = dict(launch=launch_name(equation), operand=name)
                which = f"`{name}`" if name else "A ref in HBM"
                return told("lowering", words, which=which, **where)
    return None
