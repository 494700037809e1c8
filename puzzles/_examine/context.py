"""`with examining():` examine every launch that is traced in a block, at the end of the block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from puzzles._examine.examination import Examination
from puzzles._examine.examining import examine, name_of, under_way
from puzzles._jax import instead
from puzzles._launch import ERROR, SEVERITIES, kernels, trace_call

# Examinations by launch: a suite of tests launches a kernel many times.
_known: dict[Hashable, Examination] = {}


@dataclass
class Watched:
    """The examinations of a `with examining()`: one for each different launch."""

    examinations: list[Examination] = field(default_factory=list)
    _calls: list[tuple[Callable, tuple]] = field(default_factory=list)


@contextmanager
def every_launch(
    *, chips: Sequence[str] = ("v5e",), seed: int = 0, fail_on: str | None = ERROR
) -> Iterator[Watched]:
    """Context manager: examine every `pl.pallas_call` in its block; raise the findings at its end.

    Each different launch is examined once, alone. Integers that are known while the launch is
    traced are used as they are; of traced arrays only the shapes are known. fail_on: the mildest
    severity that raises AssertionError, None for none. Exceptions of the block pass through.
    """
    if fail_on is not None and fail_on not in SEVERITIES:
        raise ValueError(f"fail_on is one of {', '.join(SEVERITIES)}, or None")
    watched = Watched()
    with _watched(watched):
        yield watched
    for call, args in watched._calls:
        found = _examined(call, args, tuple(chips), seed)
        if found not in watched.examinations:
            watched.examinations.append(found)
    bad = [x for x in watched.examinations if fail_on is not None and x.fails(fail_on)]
    if bad:
        raise AssertionError("\n\n".join(map(str, bad)))


def _examined(call: Callable, args: tuple, chips: tuple[str, ...], seed: int) -> Examination:
    try:
        forms = frozenset(kernels(trace_call(call, *args)))
    except Exception:  # examine says why
        return examine(call, *args, chips=chips, seed=seed)
    arrays = (leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array))
    numbers = tuple(np.asarray(array).tobytes() for array in arrays)
    key = (forms, numbers, chips, seed)
    if key not in _known:
        _known[key] = examine(call, *args, chips=chips, seed=seed)
    return _known[key]


@contextmanager
def _watched(seen: Watched) -> Iterator[None]:
    """Context manager: every imported `pl.pallas_call` records its calls and their arguments."""
    original = pl.pallas_call

    @wraps(original)
    def pallas_call(*given: Any, **named: Any) -> Callable:
        launch = original(*given, **named)
        launch.__name__ = name_of(given[0] if given else named["kernel"])

        @wraps(launch)
        def launched(*args: Any) -> Any:
            if not under_way:  # `examine` reports the launches that it traces itself
                seen._calls.append((launch, jax.tree.map(_form, args)))
            return launch(*args)

        return launched

    holders = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is original and module is not sys.modules[__name__]
    ]
    with ExitStack() as stack:
        for module, name in holders:
            stack.enter_context(instead(module, name, pallas_call))
        yield


def _form(leaf: Any) -> Any:
    """An argument without its numbers, unless they are integers, which may steer a launch."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return leaf
    if jnp.issubdtype(leaf.dtype, jnp.integer) and not isinstance(leaf, jax.core.Tracer):
        return jnp.asarray(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
