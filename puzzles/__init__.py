"""Pallas Puzzles: learn TPU kernels by writing them.

Learners: `from puzzles import check, checked, hint, solution, show, receipt, progress, INTERPRET`,
and `on_devices` for kernels on several chips.
Authors: `Puzzle`, `Record`, `Mistake`, `Alternative`, `find`, `ladder`, `ladders`, `judge`,
`mutate`, `trace`, `rng`, `array`.
For kernels of your own: `examine`, `examining`, `sweep`, `CHIPS`.
Importing this package starts no JAX backend.
"""

from __future__ import annotations

from puzzles._check import check, checked, hint, on_devices, progress, solution, welcome
from puzzles._compile import CHIPS
from puzzles._examine import Examination, examine
from puzzles._examine import every_launch as examining
from puzzles._jax import compile_quickly
from puzzles._judge import Verdict, judge
from puzzles._ladders import UnknownPuzzleError, find, ladder, ladders
from puzzles._launch import Copy, Dot, Finding, Launch, Operand, trace
from puzzles._program import kernels_on_old_jax, pipelines_on_cpu
from puzzles._puzzle import Puzzle, array, mutate, rng, vjp
from puzzles._record import Alternative, Mistake, Record
from puzzles._show import estimated_cycles, plot, receipt, roofline, show, sweep

__version__ = "0.3.0.dev0"

__all__ = [
    "CHIPS",
    "INTERPRET",
    "Alternative",
    "Copy",
    "Dot",
    "Examination",
    "Finding",
    "Launch",
    "Mistake",
    "Operand",
    "Puzzle",
    "Record",
    "UnknownPuzzleError",
    "Verdict",
    "array",
    "check",
    "checked",
    "compile_quickly",
    "estimated_cycles",
    "examine",
    "examining",
    "find",
    "hint",
    "judge",
    "kernels_on_old_jax",
    "ladder",
    "ladders",
    "mutate",
    "on_devices",
    "pipelines_on_cpu",
    "plot",
    "progress",
    "receipt",
    "rng",
    "roofline",
    "show",
    "solution",
    "sweep",
    "trace",
    "vjp",
    "welcome",
]


def __getattr__(name: str) -> object:
    if name == "INTERPRET":  # asking for the backend starts it, so only when first wanted
        import jax

        return jax.default_backend() != "tpu"
    raise AttributeError(f"module 'puzzles' has no attribute {name!r}")
