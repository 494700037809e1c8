"""The arithmetic of an equation, and the log of the work that a kernel executes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._launch.abstract_refs import ScalarRead, memory_space
from puzzles._launch.finding import text_of
from puzzles._launch.operand import vmem_size

ARITHMETIC = {
    "add", "add_any", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", "sign", "floor",
    "ceil", "round", "clamp", "square", "integer_pow", "nextafter", "reciprocal",
}  # fmt: skip
TRANSCENDENTAL = {
    "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "cbrt",
    "pow", "erf", "erfc", "erf_inv", "lgamma", "digamma",
}  # fmt: skip
REDUCTIONS = {
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin", "cumsum",
    "cumprod", "cummax", "cummin", "cumlogsumexp",
}  # fmt: skip
# Quarters of a cycle of the vector unit for 8 × 128 elements of float32: four slots for arithmetic,
# one for exponentials. Fitted to libtpu's estimates for v5e; `tests/steps.py` has the launches.
_VECTOR_SLOTS = {
    "select_n": 1, "convert_element_type": 1, "eq": 1, "ne": 1, "lt": 1, "le": 1, "gt": 1, "ge": 1,
    "and": 1, "or": 1, "div": 9, "sqrt": 12, "rsqrt": 8, "log1p": 9, "logistic": 12, "erf": 38,
    "pow": 54, "sin": 148, "cos": 148, "transpose": 12, "argmax": 14, "argmin": 14,
}  # fmt: skip
_EXP_SLOTS, _LANES_REDUCED, _ROWS_REDUCED = 4, 5, 2


def vector_slots(equation: JaxprEqn) -> int:
    """Quarters of a cycle in which the vector unit executes an equation; 0 for scalars.

    A column takes whole vectors of 8 × 128 elements, as `work` counts them.
    """
    name = equation.primitive.name
    reduces = name in REDUCTIONS
    aval = (equation.invars if reduces else equation.outvars)[0].aval if equation.outvars else None
    shape = getattr(aval, "shape", ())
    if math.prod(shape) == 1:
        return 0
    slots = _VECTOR_SLOTS.get(name, 0)
    if reduces and not slots:
        across = len(shape) - 1 in equation.params.get("axes", ())
        slots = _LANES_REDUCED if across else _ROWS_REDUCED
    slots = slots or (name in ARITHMETIC) + _EXP_SLOTS * (name in TRANSCENDENTAL)
    return slots * _vectors(shape)


def _vectors(shape: Sequence[int]) -> int:
    *leading, rows, columns = (1, 1, *shape)
    return math.prod(leading) * -(-rows // 8) * -(-columns // 128)


def work(equation: JaxprEqn) -> tuple[int, int]:
    """(operations, lanes) of one execution; lanes: of the vectors that hold exps and their like.

    A dot is 2*M*N*K times its batch, whatever the dtype. Elementwise floating arithmetic is one
    operation per output element, a reduction one per input element. Moves, casts, comparisons,
    selects and integer work are free. A column takes whole vectors, of 8 × 128 elements.
    """
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        lhs, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        return 2 * math.prod(out) * math.prod(lhs[a] for a in contracted), 0
    if name in ARITHMETIC or name in TRANSCENDENTAL:
        aval = equation.outvars[0].aval
    elif name in REDUCTIONS:
        aval = equation.invars[0].aval
    elif name == "addupdate":
        aval = equation.invars[1].aval
    else:
        return 0, 0
    floating = jnp.issubdtype(aval.dtype, jnp.inexact)
    wide = _vectors(aval.shape) * 8 * 128 * (name in TRANSCENDENTAL)
    return math.prod(aval.shape) * floating, wide * floating


# Passes over bf16 parts of f32 factors.
_PASSES = {jax.lax.Precision.HIGH: 3, jax.lax.Precision.HIGHEST: 6}


@dataclass(frozen=True, eq=False)
class Dot:
    """One `dot_general` of a kernel: shapes, dtypes of (lhs, rhs, out), and its steps.

    rounds: a TPU rounds its f32 factors to bf16, unless its precision is higher. line: its text.
    passes: runs of the matrix unit that its precision takes.
    """

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    out: tuple[int, ...]
    dtypes: tuple[str, str, str]
    executed: np.ndarray  # (steps,) int: how often each step executes it
    flops_each: int
    rounds: bool = False
    line: str = ""
    passes: int = 1

    @classmethod
    def of(cls, equation: JaxprEqn, executed: np.ndarray) -> Dot:
        """The dot of an equation."""
        lhs, rhs, out = (v.aval for v in (*equation.invars[:2], equation.outvars[0]))
        dtypes = (str(lhs.dtype), str(rhs.dtype), str(out.dtype))
        precision = equation.params["precision"]
        precisions = precision if isinstance(precision, tuple) else (precision,)
        passes = max(_PASSES.get(name, 1) for name in precisions) if "float32" in dtypes[:2] else 1
        return cls(
            lhs.shape,
            rhs.shape,
            out.shape,
            dtypes,
            executed,
            work(equation)[0],
            rounds="float32" in dtypes[:2] and passes < 6,
            line=text_of(equation.source_info),
            passes=passes,
        )

    @property
    def flops(self) -> int:
        """Operations of all its executions."""
        return self.flops_each * int(self.executed.sum())

    def matrix_flops(self, side: int) -> int:
        """Operations that the matrix units spend: sides filled up, each pass counted."""
        depth = self.flops_each // max(1, 2 * math.prod(self.out))
        *rows, columns = (1, *self.out)
        filled = math.prod(rows) * (-(-columns // side) * side) * (-(-depth // side) * side)
        return 2 * self.passes * filled * int(self.executed.sum())


@dataclass(frozen=True, eq=False)
class Access:
    """One read or write of a kernel's parameter in its text, with the weight of the steps.

    whole: a store into all of it.
    """

    ref: str
    writes: bool
    weight: np.ndarray
    whole: bool = False


@dataclass(frozen=True, eq=False)
class FalseHint:
    """A `pl.multiple_of` that does not hold: its steps, the promised multiple, and the value.

    steps, value: over the grid, as far as they vary.
    """

    equation: JaxprEqn
    steps: np.ndarray
    multiple: int
    value: np.ndarray


MOST, LEAST = 0, 1  # with every branch on data; only certain executions


def _none() -> np.ndarray:
    return np.array([0, 0], object)


@dataclass
class Log:
    """The log of the abstract evaluation of a kernel and its index maps.

    Counts are pairs (most, least); weights are such pairs, and broadcast over the grid. branches,
    loops: the places of those that depend on data. events: of a kernel that copies by hand, in its
    order; if `cut`, only the first. touches: reads and writes of its parameters, in the order of
    the text. looks, strays: the first LOOKS reads of scalars, and those out of bounds.
    """

    flops: np.ndarray = field(default_factory=_none)
    transcendentals: np.ndarray = field(default_factory=_none)
    lanes: np.ndarray = field(default_factory=_none)  # of those
    slots: np.ndarray = field(default_factory=_none)  # of the vector unit, four a cycle
    dots: dict[tuple, tuple[JaxprEqn, np.ndarray]] = field(default_factory=dict)
    copies: dict[tuple, tuple[tuple[JaxprEqn, ...], np.ndarray]] = field(default_factory=dict)
    scoped: dict[tuple, list[Any]] = field(default_factory=dict)  # allocations of `pl.run_scoped`
    branches: frozenset[tuple] = frozenset()
    loops: frozenset[tuple] = frozenset()
    busy: np.ndarray = field(default_factory=lambda: np.zeros((), bool))  # with arithmetic
    strays: tuple[ScalarRead, ...] = ()
    lies: tuple[FalseHint, ...] = ()  # the first of each `multiple_of`
    events: list[Any] = field(default_factory=list)
    cut: bool = False
    looks: tuple[ScalarRead, ...] = ()
    touches: list[Access] = field(default_factory=list)
    moved: tuple[tuple[str, str], ...] = ()  # operands whose map reads scalars the kernel writes
    written_inputs: tuple[str, ...] = ()  # inputs that the kernel writes, without aliased inputs

    def copy(self) -> Log:
        dots, copies, scoped = dict(self.dots), dict(self.copies), dict(self.scoped)
        own: dict[str, Any] = dict(dots=dots, copies=copies, scoped=scoped)
        return replace(self, **own, events=list(self.events), touches=list(self.touches))

    @property
    def scoped_vmem_bytes(self) -> int:
        """Bytes that `pl.run_scoped` allocates in VMEM."""
        avals = (aval for avals in self.scoped.values() for aval in avals)
        return sum(vmem_size(a.shape, a.dtype) for a in avals if memory_space(a) == "vmem")
