"""Traversing and rewriting jaxprs: nested programs, and the equations that launch kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, close, user_frame

PALLAS_CALL = "pallas_call"
OTHER_KERNELS = {"mpmd_map", "core_map"}  # the primitives of `pl.kernel`
# Primitives that only call the program in their parameters.
CALLS = {
    "jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "custom_vmap_call",
}  # fmt: skip
# Primitives that move numbers and compute nothing.
LAYOUT = {
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "dynamic_slice",
    "split", "unstack", "pad", "concatenate", "rev", "copy", "copy_p", "device_put",
    "stop_gradient",
}  # fmt: skip
# Returns the replacement of an equation. Programs nested in the equation are rewritten before.
Rule = Callable[[JaxprEqn], JaxprEqn]


def around_kernels(equation: JaxprEqn) -> bool:
    """True unless the equation launches a kernel."""
    return equation.primitive.name not in (PALLAS_CALL, *OTHER_KERNELS)


def longest_body(closed: ClosedJaxpr) -> list[JaxprEqn]:
    """The equations of the longest kernel, including nested equations.

    Each equation counts once, however often its function is called: JAX traces `//` once, and
    `emit_pipeline` calls its index maps for each slot.
    """
    return max(map(_body, kernel_calls(closed.jaxpr)), key=len, default=[])


def _body(call: JaxprEqn) -> list[JaxprEqn]:
    innermost = visited(call.params["jaxpr"], lambda _: True)
    return list({id(eqn): eqn for last, path in innermost for eqn in (*path, last)}.values())


def longest_loop(jaxpr: Jaxpr) -> int:
    """Iterations of the longest nest of loops of known length, in kernels as well."""
    return max((turns(path) for _, path in visited(jaxpr, lambda _: True)), default=1)


def turns(path: Iterable[JaxprEqn]) -> int:
    """The product of the lengths of the `scan`s on a path."""
    return math.prod(eqn.params["length"] for eqn in path if eqn.primitive.name == "scan")


def subjaxprs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """Yield the jaxprs in an equation's parameters (`jit`, `cond`, `custom_vjp_call`, ...)."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def callee(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The jaxpr of a plain call, such as `jit` or `custom_vjp_call`; None for other equations."""
    if equation.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        inner = equation.params.get(key)
        if not isinstance(inner, ClosedJaxpr | Jaxpr):
            continue
        inner = close(inner)
        if len(inner.in_avals) == len(equation.invars):
            return inner
    return None


def inner_equations(equation: JaxprEqn) -> list[JaxprEqn]:
    """The equations of the nested programs; `[equation]` for a kernel or if there are none."""
    nested = subjaxprs(equation) if around_kernels(equation) else ()
    return [eqn for inner in nested for eqn in equations(inner)] or [equation]


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation outside kernels, depth first. A kernel's call is yielded, not entered."""
    return (equation for equation, _ in visited(jaxpr))


class Step(NamedTuple):
    """A step of a traversal: an equation, or the beginning or end of a program nested in it."""

    equation: JaxprEqn
    begins: Jaxpr | None = None
    ends: Jaxpr | None = None


def through(jaxpr: Jaxpr, enters: Callable[[JaxprEqn, Jaxpr], bool]) -> Iterator[Step]:
    """Yield every equation of a program in order, each followed by its nested programs.

    enters: `(equation, program) -> bool`, whether to enter a nested program. It is called after
        the equation's own step.
    """
    for equation in jaxpr.eqns:
        yield Step(equation)
        for inner in subjaxprs(equation):
            if enters(equation, inner):
                yield Step(equation, begins=inner)
                yield from through(inner, enters)
                yield Step(equation, ends=inner)


def visited(
    jaxpr: Jaxpr, enters: Callable[[JaxprEqn], bool] = around_kernels
) -> Iterator[tuple[JaxprEqn, tuple[JaxprEqn, ...]]]:
    """Yield the innermost equations, depth first, each with the path of equations around it.

    An equation is innermost if it has no nested program, or if `enters` is False for it.
    """
    path: tuple[JaxprEqn, ...] = ()
    last: JaxprEqn | None = None  # the next step decides whether it is innermost
    for equation, begins, ends in through(jaxpr, lambda equation, _: enters(equation)):
        if begins is not None:
            path, last = (*path, equation), None
            continue
        if last is not None:
            yield last, path
        if ends is not None:
            path = path[:-1]
        last = equation if ends is None else None
    if last is not None:
        yield last, path


def outside(equation: JaxprEqn, inner: Jaxpr) -> dict[Var, Var]:
    """Map the variables of a nested program to the variables outside that they stand for.

    `run_scoped` captures its operands as constants. Calls, branches and loops pass on their last
    operands.
    """
    inside, operands = inner.invars, equation.invars[-len(inner.invars) or len(equation.invars) :]
    if equation.primitive.name == "run_scoped":
        inside, operands = inner.constvars, equation.invars
    pairs = zip(inside, operands, strict=True) if len(inside) == len(operands) else ()
    return {variable: operand for variable, operand in pairs if isinstance(operand, Var)}


@lru_cache(maxsize=256)
def scoped_program(scope: JaxprEqn) -> Jaxpr:
    """The program of a `run_scoped`. Equations without a line get the line of the call."""
    jaxpr, info = scope.params["jaxpr"], scope.source_info
    eqns = [e if user_frame(e.source_info) else e.replace(source_info=info) for e in jaxpr.eqns]
    return jaxpr.replace(eqns=eqns)


def kernel_calls(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every `pallas_call` of a program, depth first."""
    return (eqn for eqn in equations(jaxpr) if eqn.primitive.name == PALLAS_CALL)


def launch_name(call: JaxprEqn) -> str:
    """The name of a `pallas_call` or a `pl.kernel`: its own, or that of its (first) function."""
    kernel, *_ = call.params.get("jaxprs") or (call.params["jaxpr"],)
    return call.params.get("name") or kernel.debug_info.func_name


def parameter_names(call: JaxprEqn) -> list[str]:
    """The names of a kernel's parameters: prefetched scalars, inputs, outputs, scratch.

    If the kernel does not name them all, the origins of the operands take their place.
    """
    kernel, grid = call.params["jaxpr"], call.params["grid_mapping"]
    names = kernel.debug_info.arg_names
    if names is not None and len(names) == len(kernel.invars) and all(names):
        return list(names)
    origins = [mapping.origin for mapping in grid.block_mappings]
    before = grid.num_index_operands
    after = len(kernel.invars) - before - len(origins)
    scalars = [f"scalars[{n}]" for n in range(before)]
    return scalars + origins + [f"scratch[{n}]" for n in range(after)]


def for_gpus(jaxpr: Jaxpr) -> bool:
    """True if a kernel is for GPUs, by the types of its compiler parameters or its mesh."""
    settings = (
        setting
        for equation in equations(jaxpr)
        if equation.primitive.name in (PALLAS_CALL, *OTHER_KERNELS)
        for setting in map(equation.params.get, ("compiler_params", "mesh", "meshes"))
    )
    return any(re.search(r"pallas\.(triton|mosaic_gpu)", _modules(s)) for s in settings)


def _modules(settings: Any) -> str:
    """The modules of the types of a kernel's settings. JAX 0.7 has a mapping, by backend."""
    values = settings.values() if isinstance(settings, Mapping) else settings
    values = values if isinstance(settings, Mapping | tuple) else (settings,)
    return " ".join(type(value).__module__ for value in values)


def with_interpret(closed: ClosedJaxpr, interpret: object) -> ClosedJaxpr:
    """The program with `interpret` set on every kernel's call, nested calls included.

    A launch that was written with `interpret=INTERPRET` can so be simulated, or compiled for a TPU,
    without a change to the learner's function.
    """

    def rule(equation: JaxprEqn) -> JaxprEqn:
        if around_kernels(equation):
            return equation
        return equation.replace(params={**equation.params, "interpret": interpret})

    return rewritten(closed, rule)


def rewritten(value: Any, rule: Rule) -> Any:
    """Replace each equation of a program by `rule(equation)`; kernels are not entered.

    value: a jaxpr, or a list or tuple of them. Other values are returned unchanged.
    """
    if isinstance(value, Jaxpr):  # from JAX 0.11 on, a closed jaxpr is a Jaxpr
        return value.replace(eqns=[rule(_within_rewritten(eqn, rule)) for eqn in value.eqns])
    if isinstance(value, ClosedJaxpr):
        return value.replace(jaxpr=rewritten(value.jaxpr, rule))
    if type(value) in (tuple, list):
        return type(value)(rewritten(item, rule) for item in value)
    return value


def _within_rewritten(equation: JaxprEqn, rule: Rule) -> JaxprEqn:
    if not around_kernels(equation) or not any(True for _ in subjaxprs(equation)):
        return equation
    params = {key: rewritten(value, rule) for key, value in equation.params.items()}
    return equation.replace(params=params)


class Plan(NamedTuple):
    """A program to run many times: values are kept by variable, and literals by their id."""

    steps: list[tuple[JaxprEqn, list[Any], Any]]
    results: list[Any]
    literals: dict[Any, Any]


class Interpreter:
    """Evaluates programs; a subclass defines the values."""

    def __init__(self) -> None:
        self._plans: MutableMapping[Jaxpr, Plan] = WeakKeyDictionary()

    def literal(self, atom: Literal) -> Any:
        """The value of a literal."""
        raise NotImplementedError

    def planned(self, equation: JaxprEqn) -> Any:
        """The plan of an equation: everything that does not depend on its operands."""
        raise NotImplementedError

    def step(self, equation: JaxprEqn, plan: Any, values: list[Any], *where: Any) -> list[Any]:
        """The results of an equation.

        where: the equation's index in its program, then the extra arguments of `run`.
        """
        raise NotImplementedError

    def run(
        self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], *where: Any
    ) -> list[Any]:
        """The results of a program; `where` is passed on to each `step`."""
        if (plan := self._plans.get(jaxpr)) is None:
            plan = self._plans[jaxpr] = self._plan(jaxpr)
        env = plan.literals | dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        for n, (equation, operands, planned) in enumerate(plan.steps):
            outs = self.step(equation, planned, [env[key] for key in operands], n, *where)
            for variable, value in zip(equation.outvars, outs, strict=True):
                env[variable] = value
        return [env[key] for key in plan.results]

    def _plan(self, jaxpr: Jaxpr) -> Plan:
        literals: dict[Any, Any] = {}

        def key(atom: Any) -> Any:
            if not isinstance(atom, Literal):
                return atom
            literals[id(atom)] = self.literal(atom)
            return id(atom)

        steps = [(eqn, list(map(key, eqn.invars)), self.planned(eqn)) for eqn in jaxpr.eqns]
        return Plan(steps, list(map(key, jaxpr.outvars)), literals)


def part(group: Sequence[JaxprEqn]) -> tuple[ClosedJaxpr, list[Var]]:
    """Neighbouring equations as a program that returns all their outputs, and its inputs."""
    outputs = [v for e in group for v in e.outvars]
    used = {v: None for e in group for v in e.invars if not isinstance(v, Literal)}
    needed = [v for v in used if v not in set(outputs)]
    empty = jax.make_jaxpr(lambda: ())().jaxpr
    part = empty.replace(
        invars=needed,
        outvars=outputs,
        eqns=[*group],
        effects=frozenset().union(*(e.effects for e in group)),
        debug_info=empty.debug_info._replace(arg_names=None, result_paths=None),
    )
    return close(part), needed
