"""Questions of stage `tpu`: do Mosaic and libtpu take the kernel?"""

from __future__ import annotations

from puzzles._compile import compiled, lowered, supported_chips
from puzzles._jax import Jaxpr
from puzzles._judge.answer import Answer, Run
from puzzles._launch import faults, program_of
from puzzles._program import kernel_calls, visited
from puzzles._rules import Finding


def lowers(run: Run) -> Finding | None:
    """Block rules and Mosaic's lowering, which a kernel in other sizes is not asked again."""
    seen = [f for one in run.launches for f in faults(one) if f.kind == "misaligned"]
    for call in () if seen else kernel_calls(run.traced.jaxpr.jaxpr):
        if (does := _operations(call.params["jaxpr"])) not in run.answer.lowered:
            run.answer.lowered.append(does)
            # What speaks to other devices lowers only in its `shard_map`.
            seen.extend(lowered(run.traced if run.puzzle.axes else program_of(call)))
    return run.wrong(seen[0].kind, says=seen[0].words) if seen else None


def _operations(kernel: Jaxpr) -> list[tuple]:
    """What it does with numbers of which types, whatever its sizes."""
    return [
        (one.primitive.name, *(getattr(v.aval, "dtype", None) for v in one.outvars))
        for one, _ in visited(kernel)
    ]


def compiles(answer: Answer) -> Finding | None:
    """Libtpu takes every case, where it is asked."""
    if answer.compiler is None:
        return None
    for number, finding in compiled([run.traced for run in answer.runs], answer.compiler):
        return answer.runs[number].wrong("compile", says=finding.words)
    answer.ran["libtpu"] = f"libtpu for {', '.join(supported_chips())}"
    return None
