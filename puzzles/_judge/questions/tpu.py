"""Questions of stage `tpu`: do Mosaic and libtpu accept the kernel?"""

from __future__ import annotations

from puzzles._compile import compiled, lowered, supported_chips
from puzzles._jax import Jaxpr
from puzzles._judge.answer import Answer, Run
from puzzles._launch import faults, program_of
from puzzles._program import kernel_calls, visited
from puzzles._rules import Breach


def lowers(run: Run) -> Breach | None:
    """Require legal blocks and Mosaic's lowering, once for kernels that differ only in sizes."""
    bad = [f for launch in run.launches for f in faults(launch) if f.kind == "misaligned"]
    for call in () if bad else kernel_calls(run.traced.jaxpr.jaxpr):
        if (does := _operations(call.params["jaxpr"])) not in run.answer.lowered:
            run.answer.lowered.append(does)
            # A kernel that communicates with other devices lowers only in its `shard_map`.
            bad.extend(lowered(run.traced if run.puzzle.axes else program_of(call)))
    return run.wrong(bad[0].kind, says=bad[0].words) if bad else None


def _operations(kernel: Jaxpr) -> list[tuple]:
    """The primitives of a kernel and the dtypes of their results, without sizes."""
    return [
        (equation.primitive.name, *(getattr(v.aval, "dtype", None) for v in equation.outvars))
        for equation, _ in visited(kernel)
    ]


def compiles(answer: Answer) -> Breach | None:
    """Require that libtpu compiles every case, if there is a compiler."""
    if answer.compiler is None:
        return None
    for number, finding in compiled([run.traced for run in answer.runs], answer.compiler):
        return answer.runs[number].wrong("compile", says=finding.words)
    answer.ran["libtpu"] = f"libtpu for {', '.join(supported_chips())}"
    return None
