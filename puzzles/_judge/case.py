"""A case of a puzzle: the arguments of the function, and the expected results."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import Jaxpr, jaxpr_as_fun, unjitted
from puzzles._judge.numbers import Mismatch, compare, on_tpu
from puzzles._launch import Traced, trace_call
from puzzles._program import by_jax, kernel_calls, over_axes, over_mesh, turns, visited
from puzzles._puzzle import Puzzle
from puzzles._simulator import step_by_step

_SEEDS = 1_000_000  # few digits to type
_DEVICE, _EQUATION, _ELEMENTS = 600, 15, 4_096  # see `Case.work`


def _work_of_a_step(kernel: Jaxpr) -> float:
    """The work of a kernel's equations, in all turns of their loops; see `Case.work`."""
    return sum(
        turns(path)
        * (1 + sum(v.aval.size for v in equation.invars if hasattr(v.aval, "size")) / _ELEMENTS)
        for equation, path in visited(kernel)
    )


def execute(traced: Traced) -> list[np.ndarray]:
    """The flat results of a trace: in NumPy if possible, otherwise by JAX."""
    flat = None if on_tpu() else step_by_step(traced)
    return in_jax(traced) if flat is None else flat


def in_jax(traced: Traced) -> list[np.ndarray]:
    """The flat results of a trace as JAX interprets it; on a TPU, as JAX compiles it."""
    if on_tpu():
        return [np.asarray(x) for x in jax.jit(jaxpr_as_fun(traced.jaxpr))(*traced.leaves)]
    return by_jax(traced.jaxpr, traced.leaves)


@dataclass(frozen=True)
class Case:
    """Case `number` of a puzzle with the data of `seed`, computed on demand.

    The number after the last of `cases` is the random case: `seed` also draws its dims.
    """

    puzzle: Puzzle
    number: int
    seed: int = 0

    @property
    def fresh(self) -> bool:
        """True if the dims are drawn, not listed."""
        return self.number >= len(self.puzzle.cases)

    @cached_property
    def dims(self) -> Mapping[str, Any]:
        """The dims for `inputs`. A random case on a TPU has the first case's, to compile less."""
        if not self.fresh or self.puzzle.fresh is None:
            return self.puzzle.cases[self.number]
        if on_tpu():
            return self.puzzle.cases[0]
        return self.puzzle.fresh(np.random.default_rng(self.seed))

    @property
    def label(self) -> str:
        """The dims, as verdicts show them."""
        return ", ".join(f"{name}={value}" for name, value in self.dims.items())

    @cached_property
    def args(self) -> tuple:
        """The arguments, drawn once and read-only."""
        return jax.tree.map(_read_only, self.puzzle.drawn(self.dims, self.number, self.seed))

    @cached_property
    def expected(self) -> Any:
        """The results of the spec, as a tree of NumPy arrays.

        Computed on the CPU even if there is a TPU, with dots at the highest precision.
        """
        args, spec = self.args, self.judged(self.puzzle.spec, over_axes)
        with jax.default_matmul_precision("highest"):
            if not self.puzzle.kernel:
                return jax.tree.map(np.asarray, spec(*args))
            return _calculated(spec, args)

    def mismatch(self, flat: Sequence[np.ndarray]) -> tuple[int, np.ndarray, Mismatch] | None:
        """The first wrong result: its position, the expected array and the mismatch; or None."""
        for position, want in enumerate(jax.tree.leaves(self.expected)):
            wrong = compare(want, flat[position], self.puzzle.tolerance)
            if wrong is not None:
                return position, want, wrong
        return None

    def which(self, position: int) -> str:
        """' of dq' or ' of result 1' if there are several results; otherwise ""."""
        if len(jax.tree.leaves(self.expected)) < 2:
            return ""
        names = self.puzzle.results
        return f" of {names[position] if names else f'result {position}'}"

    @cached_property
    def reference(self) -> Traced:
        """The trace of the solution on this case."""
        return trace_call(self.judged(self.puzzle.solution), *self.args)

    @cached_property
    def work(self) -> float:
        """The estimated work of running the reference in NumPy.

        The unit is an equation of a grid step on a device, or 4,096 elements of its operands.
        Tracing counts as 15 units for each equation of the kernels, any run as 600 for each device.
        """
        devices = math.prod(self.axes.values())
        work: float = _DEVICE * devices
        if not self.puzzle.kernel:
            return work
        calls = kernel_calls(self.reference.jaxpr.jaxpr)
        for call, (_, grid) in zip(calls, self.reference.grids, strict=False):
            work += _EQUATION * sum(1 for _ in visited(call.params["jaxpr"]))
            work += devices * math.prod(grid) * _work_of_a_step(call.params["jaxpr"])
        return work

    @property
    def axes(self) -> dict[str, int]:
        """The mesh of this case; empty for one device."""
        return {name: self.dims.get(name, size) for name, size in self.puzzle.axes.items()}

    def judged(self, fn: Callable, mapping: Callable = over_mesh) -> Callable:
        """The function to judge: `observe(fn)`, or `fn` itself, with the case's settings.

        mapping: turns a device's function into a function of all devices' arrays.
        """
        fn = unjitted(fn)
        own = inspect.signature(fn).parameters if self.puzzle.settings else {}
        settings = ((n, self.dims[n]) for n in self.puzzle.settings if n in own and n in self.dims)
        return _judged(self.puzzle, fn, tuple(settings), tuple(self.axes.items()), mapping)

    def plainly(self, fn: Callable) -> Any:
        """The result of a function without a kernel, under `jit` if the puzzle requires it."""
        if self.puzzle.jit:
            return _calculated(self.judged(fn), self.args)
        return self.judged(fn)(*jax.tree.map(lambda x: x, self.args))  # copies lists


@lru_cache(maxsize=32)
def _judged(
    puzzle: Puzzle, fn: Callable, settings: tuple, axes: tuple, mapping: Callable
) -> Callable:
    """Return the same function object for equal arguments, because traces are cached by it."""
    return puzzle.judged(partial(fn, **dict(settings)) if settings else fn, dict(axes), mapping)


@lru_cache(maxsize=512)
def cases(puzzle: Puzzle, seed: int = 0) -> tuple[Case, ...]:
    """All cases of a puzzle, cached, so that nothing is drawn or computed twice."""
    return tuple(Case(puzzle, number, seed) for number in range(len(puzzle.cases)))


@lru_cache(maxsize=512)
def fresh_case(puzzle: Puzzle, seed: int) -> Case | None:
    """The random case of `seed`; None if the puzzle has no `fresh`."""
    return None if puzzle.fresh is None else Case(puzzle, len(puzzle.cases), seed)


def own_seed(puzzle: Puzzle, text: str) -> int:
    """The seed for the texts of an answer and its puzzle: any edit gives another random case.

    So an answer that only fits the listed cases fails.
    """
    both = f"{text}\n{puzzle.path.read_text(encoding='utf-8')}"
    return int(hashlib.sha256(both.encode()).hexdigest(), 16) % _SEEDS


def fresh_cases(puzzle: Puzzle, draws: int) -> list[Case]:
    """The random cases of the first `draws` seeds, without repeated labels."""
    drawn: dict[str, Case] = {}
    for case in filter(None, (fresh_case(puzzle, seed) for seed in range(draws))):
        drawn.setdefault(case.label, case)
    return list(drawn.values())


def _calculated(fn: Callable, args: tuple) -> Any:
    """The result of a function, computed on the CPU even if there is a TPU."""
    traced = trace_call(fn, *args)
    if (flat := step_by_step(traced)) is None:
        flat = by_jax(traced.jaxpr, traced.leaves)
    return jax.tree.unflatten(jax.tree.structure(traced.out), flat)


def _read_only(leaf: Any) -> Any:
    """A read-only copy: a view, whose `flags` cannot be set back."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = leaf.copy()
    copy.flags.writeable = False
    return copy.view()
