"""What does a JAX program compute? Jaxprs in, their values or facts about them out.

`visited` and `rewritten` traverse nested programs. `fingerprint` is equal for programs that compute
the same. `Graph` follows the data between equations. `run_program` evaluates a program in NumPy,
and `by_jax` in JAX. `as_tpu` traces as if on a TPU, `over_mesh` as on a mesh of them. To this
package, a `pallas_call` is an equation like any other.
"""

from __future__ import annotations

from puzzles._program.blas import one_blas_thread
from puzzles._program.dataflow import AbstractValueError, Graph, Node, Source, UnreadableError, ask
from puzzles._program.fingerprints import fingerprint
from puzzles._program.interpreter import (
    CONTROL,
    FUEL,
    BudgetError,
    EarlyStopError,
    LoopLimitError,
    NumpyInterpreter,
    Observer,
    UnsupportedError,
    Values,
)
from puzzles._program.jaxprs import (
    CALLS,
    LAYOUT,
    OTHER_KERNELS,
    PALLAS_CALL,
    Interpreter,
    around_kernels,
    callee,
    equations,
    for_gpus,
    inner_equations,
    kernel_calls,
    launch_name,
    longest_body,
    longest_loop,
    outside,
    parameter_names,
    part,
    rewritten,
    scoped_program,
    subjaxprs,
    through,
    turns,
    visited,
    with_interpret,
)
from puzzles._program.mapped import (
    COLLECTIVES,
    axes_around_kernels,
    mesh_axes,
    over_axes,
    over_mesh,
)
from puzzles._program.numpy_rules import bitcast, narrow
from puzzles._program.old_jax import kernels_on_old_jax
from puzzles._program.run import (
    ProgramInterpreter,
    by_jax,
    interpreted,
    run_program,
    runs_in_python,
    single,
)
from puzzles._program.scalar_rules import evaluate
from puzzles._program.target import aimed_at, as_tpu, devices_called, pipelines_on_cpu
