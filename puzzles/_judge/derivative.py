"""What to say where somebody differentiates a kernel that has no gradient yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from puzzles._ladders import ladder_module, ladders


def no_derivative() -> str:
    """A sentence: that the gradient has to be written, and the rungs that write one."""
    *others, last = _teaching()
    rungs = f"{', '.join(others)} and {last}" if others else last
    return (
        "JAX cannot differentiate this `pallas_call`: write its gradient, and tell JAX by "
        f"`jax.custom_vjp`, as you do in {rungs}."
    )


def _teaching() -> Iterator[str]:
    """The rungs whose code defines a gradient, with their ladders."""
    for name in ladders():
        module = ladder_module(name)
        for rung in module.RUNGS:
            text = Path(str(module.__file__)).with_name(f"{rung}.py").read_text(encoding="utf-8")
            if ".defvjp(" in text:
                yield f"{rung} ({name})"
