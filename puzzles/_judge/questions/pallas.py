"""Questions of stage `pallas`: is the work done in a kernel?"""

from __future__ import annotations

from puzzles._judge.answer import Run
from puzzles._judge.origin import equations_outside, where_made
from puzzles._rules import Breach, sentence


def in_a_kernel(run: Run) -> Breach | None:
    """Require a kernel."""
    if run.launches:
        return None
    foreign = next((kernel.mesh for kernel in run.traced.other_kernels), "")
    form = "other" if foreign else ""
    return run.wrong("no-kernel", form=form, name=run.puzzle.name, other=foreign)


def works_outside(run: Run) -> Breach | None:
    """Require the work to be done in the kernel."""
    allowed = run.puzzle.outside
    outside = equations_outside(run.traced, allowed=tuple(allowed))
    if not outside:
        return None
    name, where = outside[0].primitive.name, where_made(outside[0])
    names = ", ".join(f"`{primitive}`" for primitive in allowed)
    more = sentence("allowed_here", names=names) if names else ""
    return run.wrong("work-outside", name=name, where=where, more=more)
