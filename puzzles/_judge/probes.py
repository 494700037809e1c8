"""Numbers that no case holds: an argument that is NaN here and there, far larger, far smaller.

A kernel that swallows NaN, clips, or takes what is small for zero is right on ordinary numbers. So
is one that skips a block in which nothing is positive, or nothing is larger than before.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import jax
import numpy as np

from puzzles._jax import Jaxpr, Var
from puzzles._judge.case import Case, execute
from puzzles._judge.limits import as_imported, learners_code
from puzzles._judge.numbers import compare, index_words, number_words
from puzzles._judge.verdict import Rejected
from puzzles._launch import Traced, equations, quickly, trace_call, with_interpret

_TITLE = "right on ordinary numbers only"
_POWERS = (40, -40)  # of two, and so exact; their squares are far from the ends of float32
_DEGREES = (1, 0, 2, -1)
_PERIOD = 8  # rows or columns: no block is shorter
_GROWS = 1e-5  # relatively: so nearly a spec must be homogeneous in an argument there
_FEW = 1000  # elements of a result tell
_WIDE = ("float32", "bfloat16")  # of narrower floats the cases hold nearly all there is


@dataclass(frozen=True)
class Probe:
    """A case with other numbers.

    words: which; look: what to look for where they are too much; expected: the spec's flat results,
    which hold NaN where `lost` asks whether the answer's do, too.
    """

    words: str
    look: str
    leaves: tuple[Any, ...]
    expected: tuple[np.ndarray, ...]
    lost: bool = False


_LIMIT = "a limit, for a number that is added, or for a test of how large something is"
_TEST = "a test of numbers: what it skips counts, too"
_MEANT = "arithmetic with them: only whether two are equal counts"
# Pairs of them are alike but for one bit, or in f32.
_NAMES = (0, -(2**31), -1, 2**31 - 1, 2**30, 16, 2**24, 2**24 + 1)
# Elements of all arguments; to run more takes longer than to compile for other sizes.
_SMALL = 2**18
_NAN = "what replaces it, leaves it out of a sum, or tests for it"


def extremes(traces: Mapping[Case, Traced], turn: int) -> None:
    """Rejected if NaN gets lost, or a result does not grow and shrink as the spec's does.

    One case is enough, the first if it is small, whose program is compiled: what is asked is not
    what depends on sizes. turn: whose it is of the arguments; all would take a third of a check.
    """
    sizes = {case: sum(x.size for x in one.leaves) for case, one in traces.items()}
    first = next(iter(traces))
    chosen = first if sizes[first] <= _SMALL else min(sizes, key=lambda case: sizes[case])
    told = [(chosen, probe) for probe in probes(chosen, turn)]
    renamed = ((case, probe) for case in traces for probe in _names_only(case))
    told += islice(renamed, 1)
    for case, probe in told:
        with learners_code(case.puzzle, case.label):
            got = execute(replace(traces[case], leaves=probe.leaves))
        says = _lost(probe, got) if probe.lost else _bent(case, probe, got)
        if says:
            raise Rejected("numbers", says, case=case.label, title=_TITLE)


def _lost(probe: Probe, got: Sequence[np.ndarray]) -> str | None:
    if not all(map(_finite, got)):
        return None
    return (
        f"{probe.words} the spec's result holds NaN, and yours holds none. "
        f"NaN says that something went wrong before: look for {probe.look}."
    )


def _bent(case: Case, probe: Probe, got: Sequence[np.ndarray]) -> str | None:
    for want, mine in zip(probe.expected, got, strict=True):
        wrong = compare(want, mine, case.puzzle.tolerance)
        if wrong is not None:
            numbers = f"{number_words(wrong.expected)}, and yours gives {number_words(wrong.got)}"
            where = index_words(wrong.first)
            return f"{probe.words} the spec gives {numbers} at {where}. Look for {probe.look}."
    return None


def probes(case: Case, turn: int) -> tuple[Probe, ...]:
    """All that tell something: NaN that the spec hands on, factors that it follows, others.

    Factors of one argument, whose turn it is. None where the spec does not read all that it gets:
    there one argument is made of others.
    """
    asked = _asked(case)
    if not asked:
        return ()
    scaled = (one for one in _probes(case, asked[turn % len(asked)]) if not one.lost)
    nan = (one for position in asked for one in _probes(case, position) if one.lost)
    return (*scaled, *nan, *_others(case))


@lru_cache(maxsize=256)
def _others(case: Case) -> tuple[Probe, ...]:
    """All arguments negative; and all alike from block to block, along their longest axes.

    In float32 alone: where such numbers cancel, narrower ones keep too few digits to tell.
    """
    asked = _asked(case)

    def again(x: np.ndarray) -> np.ndarray:
        axis = int(np.argmax(x.shape)) if x.ndim else None
        return x if axis is None else x.take(np.arange(x.shape[axis]) % _PERIOD, axis)

    found = []
    with as_imported(), jax.default_matmul_precision("highest"):
        traced = _spec(case)
        if any(traced.leaves[n].dtype != np.float32 for n in asked):
            return ()
        program = with_interpret(traced.jaxpr, True)
        changes = [
            ("where no number is positive", lambda x: -abs(x)),
            (f"where numbers come again after {_PERIOD}", again),
        ]
        if len(asked) == 1:  # products of such numbers would be positive again
            changes.append(("where all numbers are far below zero", lambda x: -abs(x) * 2.0**90))
        for words, change in changes:
            leaves = tuple(
                change(np.asarray(x)) if n in asked else x for n, x in enumerate(traced.leaves)
            )
            expected = tuple(quickly(program, leaves))
            if all(map(_finite, expected)):
                found.append(Probe(words, _TEST, leaves, expected))
    return tuple(found)


@lru_cache(maxsize=256)
def _names_only(case: Case) -> tuple[Probe, ...]:
    """Other integers, far apart or nearly alike, where the spec asks only which are equal."""
    if not any(
        isinstance(x, jax.Array) and x.dtype == np.int32 for x in jax.tree.leaves(case.args)
    ):
        return ()  # most rungs: no spec is traced for it
    with as_imported(), jax.default_matmul_precision("highest"):
        traced = _spec(case)
        jaxpr = traced.jaxpr.jaxpr
        read = _read(jaxpr)
        mine = [
            n
            for n, leaf in enumerate(traced.leaves)
            if leaf.dtype == np.int32 and leaf.ndim and jaxpr.invars[n] in read
        ]
        chosen = [np.asarray(traced.leaves[n]) for n in mine]
        seen = np.unique(np.concatenate([np.zeros(0, np.int32), *map(np.ravel, chosen)]))
        if not 2 <= len(seen) <= len(_NAMES):
            return ()
        program = with_interpret(traced.jaxpr, True)

        def given(names: np.ndarray) -> tuple[tuple[Any, ...], tuple[np.ndarray, ...]]:
            leaves = list(traced.leaves)
            for n, old in zip(mine, chosen, strict=True):
                leaves[n] = names[np.searchsorted(seen, old)]
            return tuple(leaves), tuple(quickly(program, leaves))

        leaves, expected = given(np.array(_NAMES, np.int32))
        _, all_equal = given(np.zeros(len(seen), np.int32))
        if not _equal(jax.tree.leaves(case.expected), expected) or _equal(expected, all_equal):
            return ()
        name = " and ".join(f"`{one}`" for one in dict.fromkeys(_names(case)[n] for n in mine))
        words = f"with the numbers in {name} replaced by others, one for one,"
        return (Probe(words, _MEANT, leaves, expected),)


def _equal(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(some, others, strict=True))


@lru_cache(maxsize=256)
def _asked(case: Case) -> tuple[int, ...]:
    """The positions of the traced arrays that may be made extreme."""
    traced = _spec(case)
    jaxpr = traced.jaxpr.jaxpr
    wide = [n for n, leaf in enumerate(traced.leaves) if leaf.dtype.name in _WIDE]
    return tuple(wide) if {jaxpr.invars[n] for n in wide} <= _read(jaxpr) else ()


@lru_cache(maxsize=256)
def _probes(case: Case, position: int) -> tuple[Probe, ...]:
    """Where a spec is homogeneous so far out, it is no matter of rounding what it gives there."""
    with as_imported(), jax.default_matmul_precision("highest"):
        traced = _spec(case)
        program = with_interpret(traced.jaxpr, True)
        name, leaf = _names(case)[position], np.asarray(traced.leaves[position])
        # Beside an exponential a maximum is asked for; whoever tests it takes NaN for no maximum.
        compares = any(e.primitive.name == "exp" for e in equations(traced.jaxpr.jaxpr))

        def given(power: int | None) -> Probe:
            other = leaf.copy() if power is None else leaf * leaf.dtype.type(2.0**power)
            if power is None:
                other.reshape(-1)[::2] = math.nan
            leaves = (*traced.leaves[:position], other, *traced.leaves[position + 1 :])
            expected = tuple(quickly(program, leaves))
            if power is None:
                return Probe(f"where half of `{name}` is NaN,", _NAN, leaves, expected, lost=True)
            return Probe(f"with `{name}` times 2**{power}", _LIMIT, leaves, expected)

        found, grows = [], False
        for power in _POWERS:
            probe, further = given(power), given(power + 1)
            degrees = list(map(_degree, probe.expected, further.expected))
            choice = compares and power > 0 and 0 in degrees  # of a maximum, by the last digits
            if None not in degrees and not choice:
                found.append(probe)
                grows = grows or any(degrees)
        probe = given(None)
        if not all(map(_finite, probe.expected)) and (grows or not compares):
            found.append(probe)
        return tuple(found)


@lru_cache(maxsize=64)
def _spec(case: Case) -> Traced:
    with as_imported(), jax.default_matmul_precision("highest"):
        return trace_call(case.judged(case.puzzle.spec), *case.args)


def _read(jaxpr: Jaxpr) -> set[Var]:
    """The variables that something is computed of, or that are results."""
    used = [*jaxpr.outvars, *(v for equation in jaxpr.eqns for v in equation.invars)]
    return {v for v in used if isinstance(v, Var)}


def _names(case: Case) -> list[str]:
    """The parameter that each traced array belongs to."""
    names = inspect.signature(case.puzzle.spec).parameters
    return [
        name
        for name, given in zip(names, case.args, strict=False)
        for leaf in jax.tree.leaves(given)
        if isinstance(leaf, jax.Array)
    ]


def _degree(one: np.ndarray, twice: np.ndarray) -> int | None:
    """How a result grows when an argument is doubled: by which power of 2; None if by none."""
    some = slice(None, None, max(1, one.size // _FEW))
    a, b = (x.ravel()[some].astype(np.float64) for x in (one, twice))
    if one.dtype.kind in "biu" or not (_finite(a) and _finite(b) and a.any()):
        return None
    near = (n for n in _DEGREES if np.allclose(a * 2.0**n, b, rtol=_GROWS, atol=0))
    return next(near, None)


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array.astype(np.float64)).all())
