"""One case of a puzzle: what a function is called with there, and what it has to give."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import jaxpr_as_fun, unjitted
from puzzles._judge.numbers import Mismatch, compare, on_tpu
from puzzles._launch import Traced, trace_call
from puzzles._program import by_jax, over_axes, over_mesh
from puzzles._puzzle import Puzzle
from puzzles._simulator import step_by_step

_SEEDS = 1_000_000  # few digits to type


def execute(traced: Traced) -> list[np.ndarray]:
    """The flat results of a trace: in NumPy where that can be, else as JAX runs it."""
    flat = None if on_tpu() else step_by_step(traced)
    return in_jax(traced) if flat is None else flat


def in_jax(traced: Traced) -> list[np.ndarray]:
    """The flat results of a trace as JAX interprets it; on a TPU it runs as it is written."""
    if on_tpu():
        return [np.asarray(x) for x in jax.jit(jaxpr_as_fun(traced.jaxpr))(*traced.leaves)]
    return by_jax(traced.jaxpr, traced.leaves)


@dataclass(frozen=True)
class Case:
    """Case `number` of a puzzle with the data of `seed`; what it holds is made when asked for.

    The number after the last of `cases` is the fresh case: `seed` draws its dims, too.
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
        """What `inputs` makes the arguments of; a TPU, where new shapes compile, knows one."""
        if not self.fresh or self.puzzle.fresh is None:
            return self.puzzle.cases[self.number]
        if on_tpu():
            return self.puzzle.cases[0]
        return self.puzzle.fresh(np.random.default_rng(self.seed))

    @property
    def label(self) -> str:
        """The dims, as verdicts name the case."""
        return ", ".join(f"{name}={value}" for name, value in self.dims.items())

    @cached_property
    def args(self) -> tuple:
        """The arguments, drawn once; no function that gets them can write into them."""
        return jax.tree.map(_read_only, self.puzzle.drawn(self.dims, self.number, self.seed))

    @cached_property
    def expected(self) -> Any:
        """What the spec gives, as a tree of NumPy arrays.

        On the CPU also where there is a TPU, with dots at the highest precision.
        """
        args, spec = self.args, self.judged(self.puzzle.spec, over_axes)
        with jax.default_matmul_precision("highest"):
            if not self.puzzle.kernel:
                return jax.tree.map(np.asarray, spec(*args))
            return _calculated(spec, args)

    def mismatch(self, flat: Sequence[np.ndarray]) -> tuple[int, np.ndarray, Mismatch] | None:
        """The first result that is not the spec's: its position, what was wanted, where it is."""
        for position, want in enumerate(jax.tree.leaves(self.expected)):
            wrong = compare(want, flat[position], self.puzzle.tolerance)
            if wrong is not None:
                return position, want, wrong
        return None

    def which(self, position: int) -> str:
        """' of dq', or ' of result 1', where there are several results; else nothing."""
        if len(jax.tree.leaves(self.expected)) < 2:
            return ""
        names = self.puzzle.results
        return f" of {names[position] if names else f'result {position}'}"

    @cached_property
    def reference(self) -> Traced:
        """The solution as it runs here."""
        return trace_call(self.judged(self.puzzle.solution), *self.args)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh of this case; empty for one device."""
        return {name: self.dims.get(name, size) for name, size in self.puzzle.axes.items()}

    def judged(self, fn: Callable, mapping: Callable = over_mesh) -> Callable:
        """What is judged of `fn`: itself with the case's settings, or what is observed of that.

        mapping: how one device's function becomes a function of all devices' arrays.
        """
        fn = unjitted(fn)
        own = inspect.signature(fn).parameters if self.puzzle.settings else {}
        given = ((n, self.dims[n]) for n in self.puzzle.settings if n in own and n in self.dims)
        return _judged(self.puzzle, fn, tuple(given), tuple(self.axes.items()), mapping)

    def plainly(self, fn: Callable) -> Any:
        """What a function without a kernel gives, under `jit` where the puzzle asks for it."""
        if self.puzzle.jit:
            return _calculated(self.judged(fn), self.args)
        return self.judged(fn)(*jax.tree.map(lambda x: x, self.args))  # lists are new ones


@lru_cache(maxsize=32)
def _judged(puzzle: Puzzle, fn: Callable, given: tuple, axes: tuple, mapping: Callable) -> Callable:
    """One function object for equal arguments: traces are kept by function."""
    return puzzle.judged(partial(fn, **dict(given)) if given else fn, dict(axes), mapping)


@lru_cache(maxsize=512)
def cases(puzzle: Puzzle, seed: int = 0) -> tuple[Case, ...]:
    """All cases of a puzzle, the same objects each time: nothing is drawn or computed twice."""
    return tuple(Case(puzzle, number, seed) for number in range(len(puzzle.cases)))


@lru_cache(maxsize=512)
def fresh_case(puzzle: Puzzle, seed: int) -> Case | None:
    """The case that `seed` draws, or None where the puzzle draws none."""
    return None if puzzle.fresh is None else Case(puzzle, len(puzzle.cases), seed)


def own_seed(puzzle: Puzzle, text: str) -> int:
    """The seed that belongs to the text of an answer and of the puzzle: any edit draws another one.

    So whoever learns the listed cases by heart meets another.
    """
    both = f"{text}\n{puzzle.path.read_text(encoding='utf-8')}"
    return int(hashlib.sha256(both.encode()).hexdigest(), 16) % _SEEDS


def fresh_cases(puzzle: Puzzle, draws: int) -> list[Case]:
    """The cases that so many seeds draw, one of each label."""
    drawn: dict[str, Case] = {}
    for case in filter(None, (fresh_case(puzzle, seed) for seed in range(draws))):
        drawn.setdefault(case.label, case)
    return list(drawn.values())


def _calculated(fn: Callable, args: tuple) -> Any:
    """What a function gives, on the CPU also where there is a TPU."""
    traced = trace_call(fn, *args)
    if (flat := step_by_step(traced)) is None:
        flat = by_jax(traced.jaxpr, traced.leaves)
    return jax.tree.unflatten(jax.tree.structure(traced.out), flat)


def _read_only(leaf: Any) -> Any:
    """A copy that cannot be written into: a view, whose `flags` cannot be set back either."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = leaf.copy()
    copy.flags.writeable = False
    return copy.view()
