"""A puzzle, and functions made of variants of its text."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles import _record, _regions
from puzzles._record import Alternative, Mistake, Record

Tolerance = float | Mapping[str, float] | None


@dataclass(frozen=True, eq=False)
class Puzzle:
    """A puzzle of a ladder.

    inputs: `(key, **dims) -> tuple` of arguments; `jax.Array`s are traced, all else is static.
    cases: dims of each case. A dim named like one of `settings` is passed to the function and not
        to `inputs`.
    hints: idea, API, shape of the code. explain: why it works.
    audit: `(*launches) -> None`, asserts with a message the cost of the launches; with a
        keyword-only parameter `args` it also gets the case's arguments.
    observe: `(fn) -> fn`, makes the function that is judged instead, such as the gradients by
        `vjp`.
    picture: False for a puzzle with a kernel whose prose deliberately has no diagram.
    kernel: False for a puzzle of plain Python or JAX; `jit`: True if it must run under `jax.jit`.
    accepts: `(result, *args) -> None`, asserts; replaces the comparison with `spec` if several
        answers are right.
    launches: `(fn, *args) -> tuple[Launch, ...]` for a puzzle without a kernel of its own whose
        answer configures a launch.
    results: the name of each result in a verdict, if `spec` or `observe` returns several.
    scale: `(**defaults) -> tuple` of arguments at a production shape: `ShapeDtypeStruct`s, and data
        for grids and index maps that read them. Costs are compared with the solution's there.
    slack: at most how many times the solution's `bytes`, `steps`, `dot_flops`, ... an answer may
        cost at that shape: raise it if a right answer needs more, lower it (`{"bytes": 1.0}`) if
        all block sizes move the same bytes (the names are those of `_judge/costs.py`).
    par: `(*launches) -> str`, the headline metric of the puzzle; a pass shows it next to the
        solution's, at that shape.
    fresh: `(rng) -> dict` of a case's dims, small and out of at most eight shapes; every answer
        gets such a random case after all `cases` pass.
    tolerance: relative and absolute, in units of the expected values' root mean square, for all
        results or by their dtype's name; by default 2e-5 for f32 and 1e-2 for bf16.
    outside: floating-point primitives that may run outside the kernel.
    axes: the mesh of a puzzle about several devices, as `{"x": 4}`: each device runs the
        function, `jax.lax.axis_index("x")` is its number, and the spec may use collectives. A
        case's dims, and `inputs`, get the lengths: `dict(M=8, x=3)` is a case of three devices. The
        first axis of each argument and of each result counts the devices. An audit with a
        keyword-only parameter `wire` gets the traffic (`Wire`) of the case.
    starter: the name of the mistake that the learner starts from, in find-the-bug puzzles.
    record: known mistakes and alternatives; None: read them from the TOML file next to the module.
    waivers: the requirements of `verify` that this puzzle does not meet, by the names that
        `verify` prints, each with the reason.
    """

    spec: Callable
    solution: Callable
    inputs: Callable[..., tuple]
    cases: Sequence[Mapping[str, Any]]
    hints: Sequence[str]
    explain: str
    audit: Callable[..., None] | None = None
    accepts: Callable[..., None] | None = None
    launches: Callable[..., tuple] | None = None
    results: Sequence[str] = ()
    scale: Callable[..., tuple] | None = None
    slack: Mapping[str, float] = field(default_factory=dict)
    par: Callable[..., str] | None = None
    fresh: Callable[[np.random.Generator], dict[str, Any]] | None = None
    tolerance: float | None = None
    outside: Sequence[str] = ()
    axes: Mapping[str, int] = field(default_factory=dict)
    starter: str | None = None
    waivers: Mapping[str, str] = field(default_factory=dict)
    observe: Callable[[Callable], Callable] | None = None
    kernel: bool = True
    jit: bool = False
    picture: bool = True
    record: Record | None = None
    name: str = field(init=False)
    module: str = field(init=False)
    ladder: str = field(init=False)

    def __post_init__(self) -> None:
        module = self.solution.__module__
        object.__setattr__(self, "name", self.solution.__name__)
        object.__setattr__(self, "module", module)
        object.__setattr__(self, "ladder", module.split(".")[-2] if "." in module else "")

    @property
    def path(self) -> Path:
        """The file of the puzzle's module."""
        return Path(str(sys.modules[self.module].__file__))

    @property
    def file(self) -> str:
        """The module's path for messages, relative to the folder that holds its package."""
        return f"{self.module.rpartition('.')[0].replace('.', '/')}/{self.path.name}"

    @cached_property
    def answers(self) -> Record:
        """The known mistakes and the alternatives, read on the first use."""
        return self.record or _record.read(self.record_path, self.record_file)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """The known mistakes."""
        return self.answers.mistakes

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The other correct solutions."""
        return self.answers.alternatives

    @property
    def record_path(self) -> Path:
        """The TOML file of the known mistakes and alternatives."""
        return self.path.with_suffix(".toml")

    @property
    def record_file(self) -> str:
        """The path of that file for messages."""
        return self.file.removesuffix(".py") + ".toml"

    def place_of(self, change: Alternative) -> str:
        """`file:line` of a mistake or an alternative in the TOML file."""
        text = self.record_path.read_text("utf-8") if self.record_path.exists() else ""
        return f"{self.record_file}:{_record.line_number(text, change.name)}"

    def place(self, needle: str, author: bool = True) -> str:
        """`file:line` of the first line with `needle`, in the author cell if `author`.

        If no line of the author cell has `needle`, the line of its `PUZZLE`.
        """
        lines = _read(self.path).splitlines()
        start = len(self.text.splitlines()) if author else 0
        for text in (needle, "PUZZLE = ") if author else (needle,):
            for number, line in enumerate(lines[start:], start + 1):
                if text in line:
                    return f"{self.file}:{number}"
        return f"{self.file}:1"

    @property
    def text(self) -> str:
        """The module's text without its author cell."""
        return _regions.without_author(_read(self.path))

    @property
    def starter_text(self) -> str:
        """The module's text with the gaps of the notebook."""
        if self.starter is None:
            return _regions.starter(self.text)
        return _regions.without_marks(self.mistake(self.starter).apply(self.text))

    @cached_property
    def blanks(self) -> tuple[str, ...]:
        """Names of the top-level functions that hold a region, for the learner to fill in."""
        regions = _regions.regions(self.text)
        return tuple(
            name
            for name, node in _regions.functions(self.text).items()
            if any(node.lineno <= region.first <= (node.end_lineno or 0) for region in regions)
        )

    @cached_property
    def settings(self) -> frozenset[str]:
        """Parameters with integer defaults of the solution, not of the spec: block sizes."""
        ours, theirs = (inspect.signature(fn).parameters for fn in (self.solution, self.spec))
        return frozenset(n for n in set(ours) - set(theirs) if isinstance(ours[n].default, int))

    def judged(self, fn: Callable, axes: Mapping[str, int], mapping: Callable) -> Callable:
        """The function to judge: `observe(fn)`, or `fn` itself.

        mapping: for several devices, such as `over_mesh`: makes it a function of all arrays.
        """
        fn = fn if self.observe is None else self.observe(fn)
        return mapping(fn, axes) if axes else fn

    def mistake(self, name: str) -> Mistake:
        """The mistake called `name`; KeyError if there is none."""
        return {mistake.name: mistake for mistake in self.mistakes}[name]

    def arguments(self, case: int, seed: int = 0) -> tuple:
        """The arguments of a case; equal seeds give equal arguments."""
        return self.drawn(self.cases[case], case, seed)

    def drawn(self, dims: Mapping[str, Any], number: int, seed: int) -> tuple:
        """The arguments of case `number` with these dims, without `settings`."""
        own = {name: n for name, n in dims.items() if name not in self.settings}
        own = {**self.axes, **own}
        return tuple(self.inputs(jax.random.key(1000 * seed + number), **own))

    def __repr__(self) -> str:
        return f"<Puzzle {self.ladder}/{self.name}>"


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def rng(key: Any) -> np.random.Generator:
    """A NumPy generator seeded by a JAX key: test data without compiling anything."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def array(x: Any, dtype: Any) -> Any:
    """`x` as a JAX array of a dtype; NumPy casts, so that no program is compiled for it."""
    return jnp.asarray(np.asarray(x).astype(dtype), dtype)


def load(puzzle: Puzzle, text: str, label: str) -> dict[str, Any]:
    """Execute a variant of the puzzle's module; tracebacks show its source."""
    filename = f"<{puzzle.name}: {label}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": f"{puzzle.module}.{label}"}
    exec(compile(text, filename, "exec"), namespace)
    return namespace


def variant(puzzle: Puzzle, change: Alternative) -> Callable:
    """The puzzle's function with `change` applied to its module's text."""
    return load(puzzle, change.apply(puzzle.text), change.name)[puzzle.name]


mutate = variant  # for mistakes


def starter_function(puzzle: Puzzle) -> Callable:
    """The function with the gaps of the notebook."""
    return load(puzzle, puzzle.starter_text, "starter")[puzzle.name]


def vjp(fn: Callable, *primals: Any) -> tuple[Any, Callable]:
    """`jax.vjp`, for an `observe`: (the result, the pullback).

    The pullback first traces `fn` again: a forward rule that saves something outside its residuals
    then reads the data of another call.
    """
    result, pullback = jax.vjp(fn, *primals)
    if isinstance(result, tuple) and not isinstance(jax.eval_shape(fn, *primals), tuple):
        raise TypeError(
            "the forward rule returns a pair: first what the function itself returns, here one "
            "array, then what the backward rule will need"
        )

    def back(cotangent: Any) -> Any:
        jax.eval_shape(lambda *again: jax.vjp(fn, *again)[0], *primals)
        return pullback(cotangent)

    return result, back
