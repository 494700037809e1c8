"""A puzzle, and how variants of it become functions."""

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
    """One rung of a ladder.

    inputs: `(key, **dims) -> tuple` of arguments; `jax.Array`s are traced, all else is static.
    cases: dims of each case; one that is named like a size of blocks, which the solution takes by
        keyword and the spec does not, goes to the function and not to `inputs`.
    hints: idea, API, shape of the code. explain: why it works.
    audit: `(*launches) -> None`, asserts with a message what the launches must cost; with a
        keyword-only parameter `args` it also gets the case's arguments.
    observe: `(fn) -> fn`, what is judged instead of the function itself: its gradients, by `vjp`.
    glance: `(fn) -> fn`, a part of what is observed: its numbers are judged before the rest is run,
        on the first case, where all of it takes long.
    picture: False for a rung of a kernel whose prose deliberately has no diagram.
    kernel: False for a rung of plain Python or JAX; `jit` says that it must run under `jax.jit`.
    accepts: `(result, *args) -> None`, asserts; replaces the comparison with `spec` where more
        than one answer is right.
    launches: `(fn, *args) -> tuple[Launch, ...]` for a rung without a kernel of its own whose
        answer configures a launch.
    results: what a verdict calls each result, where `spec` or `observe` gives more than one.
    scale: `(**defaults) -> tuple` of arguments at a production shape, `ShapeDtypeStruct`s but for
        what grids and index maps read: what an answer costs is compared with the solution there.
    slack: how many times the solution's `bytes`, `steps`, `dot_flops`, ... an answer may cost at
        that shape: more where a right one needs it, or less, as `{"bytes": 1.0}` where any blocks
        can do with the same bytes (the names are those of `_judge/costs.py`).
    par: `(*launches) -> str`, the number that the rung is about; a pass shows it beside the
        solution's, at that shape.
    fresh: `(rng) -> dict` of a case's dims, small and out of at most eight shapes; one such case
        is drawn for each answer after all `cases` pass.
    tolerance: relative and absolute, in units of the expected values' root mean square, for all
        results or by their dtype's name; unless given, 2e-5 for f32 and 1e-2 for bf16.
    outside: floating-point primitives that may run outside the kernel.
    axes: the mesh of a puzzle about several devices, as `{"x": 4}`: the function is what one device
        runs, `jax.lax.axis_index("x")` says which, and the spec may use `jax.lax`'s collectives. A
        case's dims, and `inputs`, get the lengths: `dict(M=8, x=3)` is a case of three devices. The
        first axis of each argument and of each result counts the devices. An audit with a
        keyword-only parameter `wire` gets the traffic (`Wire`) of the case.
    shared: the arguments that all devices have alike, without that axis.
    starter: the name of the mistake that the learner starts from, on find-the-bug rungs.
    record: known mistakes and alternatives; None means those of the TOML file next to the module.
    waivers: what `verify` would ask for and this rung does without, each with the reason: the
        names that `verify` gives.
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
    shared: Sequence[str] = ()
    starter: str | None = None
    waivers: Mapping[str, str] = field(default_factory=dict)
    observe: Callable[[Callable], Callable] | None = None
    glance: Callable[[Callable], Callable] | None = None
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
        """The module's path as messages name it: from the folder that holds its package."""
        return f"{self.module.rpartition('.')[0].replace('.', '/')}/{self.path.name}"

    @cached_property
    def known(self) -> Record:
        """The known mistakes and the alternatives, read when they are first needed."""
        return self.record or _record.read(self.record_path, self.record_file)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        """The known mistakes."""
        return self.known.mistakes

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The other correct solutions."""
        return self.known.alternatives

    @property
    def record_path(self) -> Path:
        """The TOML file of the known mistakes and alternatives."""
        return self.path.with_suffix(".toml")

    @property
    def record_file(self) -> str:
        """The path of that file as messages name it."""
        return self.file.removesuffix(".py") + ".toml"

    def place_of(self, change: Alternative) -> str:
        """`file:line` of a mistake or an alternative in the TOML file."""
        text = self.record_path.read_text("utf-8") if self.record_path.exists() else ""
        return f"{self.record_file}:{_record.line_of(text, change.name)}"

    def place(self, needle: str, author: bool = True) -> str:
        """`file:line` of the first line with `needle`, in the author cell if `author`.

        What an author cell computes stands on no line of it: then that of its Puzzle.
        """
        lines = _read(self.path).splitlines()
        start = len(self.text.splitlines()) if author else 0
        for wanted in (needle, "PUZZLE = ") if author else (needle,):
            for number, line in enumerate(lines[start:], start + 1):
                if wanted in line:
                    return f"{self.file}:{number}"
        return f"{self.file}:1"

    @property
    def text(self) -> str:
        """The module's text without its author cell."""
        return _regions.without_author(_read(self.path))

    @property
    def starter_text(self) -> str:
        """The module's text as the learner gets it."""
        if self.starter is None:
            return _regions.starter(self.text)
        return _regions.without_marks(self.mistake(self.starter).apply(self.text))

    @cached_property
    def blanks(self) -> tuple[str, ...]:
        """Names of the top-level functions that hold a region: those that the learner fills in."""
        regions = _regions.regions(self.text)
        return tuple(
            name
            for name, node in _regions.functions(self.text).items()
            if any(node.lineno <= one.first <= (node.end_lineno or 0) for one in regions)
        )

    @cached_property
    def settings(self) -> frozenset[str]:
        """Parameters with an integer as default that only the solution has: sizes of blocks."""
        ours, theirs = (inspect.signature(fn).parameters for fn in (self.solution, self.spec))
        return frozenset(n for n in set(ours) - set(theirs) if isinstance(ours[n].default, int))

    def judged(self, fn: Callable, axes: Mapping[str, int], mapping: Callable) -> Callable:
        """What is judged of `fn`: itself, or what is observed of it; on several devices `mapping`
        makes it a function of all devices' arrays, as `over_mesh` does.
        """
        fn = fn if self.observe is None else self.observe(fn)
        names = list(inspect.signature(self.spec).parameters)
        return mapping(fn, axes, frozenset(map(names.index, self.shared))) if axes else fn

    def mistake(self, name: str) -> Mistake:
        """The mistake called `name`; KeyError if there is none."""
        return {mistake.name: mistake for mistake in self.mistakes}[name]

    def arguments(self, case: int, seed: int = 0) -> tuple:
        """The arguments of one case, the same for the same seed."""
        return self.drawn(self.cases[case], case, seed)

    def drawn(self, dims: Mapping[str, Any], number: int, seed: int) -> tuple:
        """The arguments of case `number` with these dims; settings are none of them."""
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
    """Run a variant of the puzzle's module in a fresh namespace that tracebacks can read."""
    filename = f"<{puzzle.name}: {label}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": f"{puzzle.module}.{label}"}
    exec(compile(text, filename, "exec"), namespace)
    return namespace


def variant(puzzle: Puzzle, change: Alternative) -> Callable:
    """The puzzle's function with `change` applied to its module's text."""
    return load(puzzle, change.apply(puzzle.text), change.name)[puzzle.name]


mutate = variant  # the wrong solution that a mistake describes, runnable


def starter_function(puzzle: Puzzle) -> Callable:
    """The function as a learner first meets it."""
    return load(puzzle, puzzle.starter_text, "starter")[puzzle.name]


def vjp(fn: Callable, *primals: Any) -> tuple[Any, Callable]:
    """`jax.vjp`, for an `observe`: (the result, the pullback), where other calls come between.

    Before it comes back, `fn` is differentiated once more, in shapes only: a forward rule that
    keeps something outside of its residuals then finds another call's.
    """
    result, pullback = jax.vjp(fn, *primals)
    if isinstance(result, tuple) and not isinstance(jax.eval_shape(fn, *primals), tuple):
        raise TypeError(
            "the forward rule returns a pair: first what the function itself returns, here one "
            "array, then what the backward rule will need"
        )

    def back(cotangent: Any) -> Any:
        jax.eval_shape(lambda *others: jax.vjp(fn, *others)[0], *primals)
        return pullback(cotangent)

    return result, back
