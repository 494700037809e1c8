"""One trace of a learner's function, shared by every stage that looks at it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._equations import hi_primitive, scan_counts
from puzzles._jax import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
    parts_not_iterable,
    retraced,
    unused_copies_untold,
)
from puzzles._launch.calls import LISTED, Call
from puzzles._launch.finding import line_of
from puzzles._launch.launch import Launch
from puzzles._launch.pl_kernel import as_written, with_kernels_launched
from puzzles._program import (
    COLLECTIVES,
    OTHER_KERNELS,
    Graph,
    UnreadableError,
    as_tpu,
    equations,
    fingerprint,
    kernel_calls,
    launch_name,
    part,
    rewritten,
    visited,
    with_interpret,
)
from puzzles._rules import sentence

UNROLLED = 8  # iterations of a loop whose launches differ


@dataclass(frozen=True)
class Traced:
    """A function as a jaxpr: `leaves` are the traced arguments, `out` the shapes of its result.

    The learner's Python runs once, here. Values, simulation, lowering and the receipt are all read
    from this jaxpr, so they speak of the same launch.
    """

    jaxpr: ClosedJaxpr
    leaves: tuple[Any, ...]
    out: Any

    @cached_property
    def graph(self) -> Graph:
        """The dataflow around the kernels, without computing anything."""
        return Graph(self.jaxpr, self.leaves)

    @cached_property
    def _calls(self) -> tuple[Call, ...]:
        return tuple(map(Call, self.graph.calls))

    @property
    def grids(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and grid of every `pallas_call`, at no cost, however large a grid is."""
        return tuple((call.name, call.grid()) for call in self._calls)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Every `pallas_call`, in order; `AbstractValueError` if a grid or a map needs data."""
        for name, grid in self.grids:
            if (steps := math.prod(grid)) > LISTED:
                facts = dict(grid=grid, name=name, steps=steps, most=LISTED)
                raise UnreadableError(sentence("too_large_to_list", **facts))
        invars = (v for call in self._calls for v in call.node.equation.invars)
        if any(hasattr(v.aval, "inner_aval") for v in invars):
            raise UnreadableError(sentence("launched_on_refs"))
        return tuple(call.launch() for call in self._calls)

    @property
    def other_kernels(self) -> tuple[OtherKernel, ...]:
        """Kernels that are not read: of `pl.kernel` on other cores, or of several functions."""
        kernels = (e for e in equations(self.jaxpr.jaxpr) if e.primitive.name in OTHER_KERNELS)
        return tuple(self._other(equation) for equation in kernels)

    def feeds_others(self, name: str | None) -> bool:
        """Whether a kernel that is not read depends on a launch of this name."""
        calls = (call.node for call in self._calls if call.name == name)
        return any(self.graph.feeds(call, OTHER_KERNELS) for call in calls)

    def _other(self, equation: JaxprEqn) -> OtherKernel:
        meshes = equation.params.get("meshes") or (equation.params["mesh"],)
        named = "` and a `".join(type(mesh).__name__ for mesh in meshes)
        program, inputs = part([equation])
        alone = Traced(program, tuple(map(_form, inputs)), [v.aval for v in equation.outvars])
        # A Ref is no argument of a program: the whole program makes it.
        on_refs = any(hasattr(v.aval, "inner_aval") for v in equation.invars)
        place = line_of(equation.source_info)
        return OtherKernel(launch_name(equation), named, place, self if on_refs else alone)


class OtherKernel(NamedTuple):
    """A kernel without a `Launch`: its name, its mesh, its line, and a program that launches it."""

    name: str
    mesh: str
    line: str | None
    program: Traced

    @property
    def cores(self) -> str:
        """The kind of its cores, in words."""
        return "SparseCores" if "Subcore" in self.mesh else f"a `{self.mesh}`"


def program_of(
    call: JaxprEqn, launch: Launch | None = None, steering: Sequence[Any] = ()
) -> Traced:
    """A kernel call as a program of its own; all operands are shapes, unless `launch` knows more.

    Scalars that are prefetched, and a grid's bounds, are data then. steering: these data.
    """
    program, inputs = part([call])
    if launch is not None:
        mapping = call.params["grid_mapping"].grid
        axes = zip(launch.grid, mapping, strict=True)
        bounds = [np.int32(n) for n, size in axes if not isinstance(size, int)]
        steering = [*bounds, *launch.scalar_values]
    # a bound may stand in the program itself
    pairs = zip(call.invars, steering, strict=False)
    values = {v: x for v, x in pairs if x is not None and not isinstance(v, Literal)}
    leaves = (jnp.asarray(values[v]) if v in values else _form(v) for v in inputs)
    traced = Traced(program, tuple(leaves), [v.aval for v in call.outvars])
    if launch is not None:  # it knows the program around it, too
        vars(traced)["launches"] = (launch,)
    return traced


def _form(variable: Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def nothing_launched(traced: Traced) -> str:
    """The message about a program without a `pallas_call`."""
    if not traced.other_kernels:
        return sentence("nothing_launched")
    other = traced.other_kernels[0]
    if other.program is traced:
        return sentence("launched_on_refs")
    return sentence("launched_otherwise", how=other.mesh)


def kernels(traced: Traced) -> dict[Hashable, Traced]:
    """Each kernel call as a program of its own, by its fingerprint, without duplicates."""
    programs = (program_of(call) for call in kernel_calls(traced.jaxpr.jaxpr))
    return {fingerprint(call.jaxpr): call for call in programs}


def is_traced(x: object) -> bool:
    """Whether tracing makes it an abstract value; ints, NumPy arrays and None stay static."""
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct)


def trace_call(fn: Callable, *args: object) -> Traced:
    """Trace `fn(*args)`. Exceptions of `fn` pass through.

    A kernel of `pl.kernel` on TensorCores becomes a `pallas_call`.

    Arrays and `ShapeDtypeStruct`s among the leaves of `args` are traced, all other leaves are
    static. `fn` is wrapped afresh every time: JAX caches a trace by function, and a kernel that
    was defined again in another cell must not be answered from that cache.
    """
    leaves, tree = jax.tree.flatten(args)
    where = [n for n, leaf in enumerate(leaves) if is_traced(leaf)]

    def call(*traced: object) -> object:
        full = list(leaves)
        for n, value in zip(where, traced, strict=True):
            full[n] = value
        result = fn(*jax.tree.unflatten(tree, full))
        if callable(result):
            raise TypeError("the result is a function, not an array")
        return result

    traced = tuple(leaves[n] for n in where)

    cache: dict[Any, Any] = {}
    key: Any = None
    if _keeping:
        forms = tuple((n, leaves[n].shape, leaves[n].dtype, leaves[n].weak_type) for n in where)
        static = (leaf for leaf in leaves if not is_traced(leaf))
        cache, key = _keeping[-1], (fn, tree, forms, tuple(map(fingerprint, static)))
    if key not in cache:
        # A trace remembers its mesh, and lowering for a TPU will ask for it.
        with as_tpu(), retraced(), unused_copies_untold(), parts_not_iterable():
            jaxpr, out = jax.make_jaxpr(call, return_shape=True)(*traced)
            cache[key] = with_kernels_launched(_expanded(jaxpr)), out
    jaxpr, out = cache[key]
    return Traced(jaxpr, traced, out)


def _expanded(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with high-level primitives replaced by their programs.

    From JAX 0.12 on `searchsorted` is such a primitive, and so are `einsum` and `nonzero`.
    """
    each = visited(closed.jaxpr)
    rewrites = any(
        hi_primitive(equation) is not None or any(map(_steers, path)) for equation, path in each
    )
    return rewritten(closed, _expansion) if rewrites else closed


def _steers(equation: JaxprEqn) -> bool:
    """True for a short `scan` with prefetched scalars, as `vmap` makes of a batch of them.

    One with a collective stays a scan: outside of its `shard_map` it cannot be traced again.
    """
    p = equation.params
    if equation.primitive.name != "scan" or p["length"] > UNROLLED:
        return False
    if any(equation.primitive.name in COLLECTIVES for equation in equations(p["jaxpr"].jaxpr)):
        return False
    calls = kernel_calls(p["jaxpr"].jaxpr)
    return any(call.params["grid_mapping"].num_index_operands for call in calls)


def _expansion(equation: JaxprEqn) -> JaxprEqn:
    primitive, p = hi_primitive(equation), equation.params
    if primitive is None and not _steers(equation):
        return equation

    def expand(*flat: Any) -> list[Any]:
        if primitive is not None:
            return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, flat)))
        first, carries = scan_counts(p)
        carry, body = flat[first:][:carries], jaxpr_as_fun(p["jaxpr"])
        rows: dict[int, Any] = {}
        for n in range(p["length"])[:: -1 if p["reverse"] else 1]:
            row = (x[n] for x in flat[first + carries :])
            out = body(*flat[:first], *carry, *row)
            carry, rows[n] = out[:carries], out[carries:]
        columns = zip(*(rows[n] for n in sorted(rows)), strict=True)
        return [*carry, *map(jnp.stack, columns)]

    forms = map(_form, equation.invars)
    (call,) = jax.make_jaxpr(jax.jit(expand))(*forms).eqns
    return equation.replace(primitive=call.primitive, params=call.params, effects=call.effects)


_keeping: list[dict] = []


@contextmanager
def keeping_traces() -> Iterator[None]:
    """Context manager: trace a function once for arguments of equal shapes, whatever their data.

    Only for functions whose helpers are not redefined meanwhile.
    """
    _keeping.append(_keeping[-1] if _keeping else {})
    try:
        yield
    finally:
        _keeping.pop()


def as_function(traced: Traced) -> Callable[..., list]:
    """`traced` as a function of its leaves that returns the flat list of results, for a TPU."""
    return jaxpr_as_fun(with_interpret(as_written(traced.jaxpr), False))


def trace(fn: Callable, *args: object) -> tuple[Launch, ...]:
    """Every `pallas_call` of `fn(*args)`, without running a kernel; `ShapeDtypeStruct`s will do.

    Raises `AbstractValueError` if a grid or an index map needs data; exceptions of `fn` pass.
    """
    return trace_call(fn, *args).launches
