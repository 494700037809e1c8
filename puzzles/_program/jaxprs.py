"""Programs as JAX traces them: what is nested in an equation, and which of them launch kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, close

PALLAS_CALL = "pallas_call"
OTHER_KERNELS = {"mpmd_map", "core_map"}  # what `pl.kernel` makes
# What only calls a program that it holds.
CALLS = {
    "jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip
# What hands numbers on as they are.
LAYOUT = {
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "dynamic_slice",
    "split", "pad", "concatenate", "rev", "copy", "copy_p", "stop_gradient",
}  # fmt: skip
# What takes the place of an equation; one that holds programs is given with those rewritten.
Rule = Callable[[JaxprEqn], JaxprEqn]


def around_kernels(equation: JaxprEqn) -> bool:
    return equation.primitive.name not in (PALLAS_CALL, *OTHER_KERNELS)


def longest_body(closed: ClosedJaxpr) -> list[JaxprEqn]:
    """The equations of the kernel that has most of them, nested ones included.

    Those of a function that JAX traced once, as it does `//`, are there once, however often it is
    called: `emit_pipeline` calls index maps for each slot, and that is nobody's loop.
    """
    return max(map(_body, kernel_calls(closed.jaxpr)), key=len, default=[])


def _body(call: JaxprEqn) -> list[JaxprEqn]:
    within = visited(call.params["jaxpr"], lambda _: True)
    return list({id(one): one for last, path in within for one in (*path, last)}.values())


def longest_loop(jaxpr: Jaxpr) -> int:
    """Turns of the longest loop of known length, kernels included and the loops inside it, too."""
    return max((turns(path) for _, path in visited(jaxpr, lambda _: True)), default=1)


def turns(path: Iterable[JaxprEqn]) -> int:
    """How often what `path` leads to runs, as far as loops of known length say."""
    return math.prod(one.params["length"] for one in path if one.primitive.name == "scan")


def subjaxprs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The jaxprs an equation calls (`jit`, `cond`, `custom_vjp_call`, ...)."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, Jaxpr):
                yield one


def callee(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The jaxpr that an equation merely calls, as `jit` and `custom_vjp_call` do."""
    if equation.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(key)
        if not isinstance(inner, ClosedJaxpr | Jaxpr):
            continue
        inner = close(inner)
        if len(inner.in_avals) == len(equation.invars):
            return inner
    return None


def within(equation: JaxprEqn) -> list[JaxprEqn]:
    """The equations of the programs that it holds; itself, if it holds none, or a kernel."""
    nested = subjaxprs(equation) if around_kernels(equation) else ()
    return [one for inner in nested for one in equations(inner)] or [equation]


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every equation outside kernels, depth first: a kernel's call is yielded, not entered."""
    return (equation for equation, _ in visited(jaxpr))


class Step(NamedTuple):
    """On the way through a program: an equation, or else where a program in it begins or ends."""

    equation: JaxprEqn
    begins: Jaxpr | None = None
    ends: Jaxpr | None = None


def through(jaxpr: Jaxpr, enters: Callable[[JaxprEqn, Jaxpr], bool]) -> Iterator[Step]:
    """Every equation of a program, in its order; after each, the programs in it that are entered.

    enters: is asked of an equation and a program in it, after the equation's own step.
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
    """Every equation that holds no program, or is not entered, depth first; and those around it."""
    path: tuple[JaxprEqn, ...] = ()
    last: JaxprEqn | None = None  # whether a program in it is entered, the next step tells
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
    """For the variables of a program within an equation those outside that they stand for.

    `run_scoped` captures its operands; calls, branches and loops hand on the last of theirs.
    """
    mine, given = inner.invars, equation.invars[-len(inner.invars) or len(equation.invars) :]
    if equation.primitive.name == "run_scoped":
        mine, given = inner.constvars, equation.invars
    known = zip(mine, given, strict=True) if len(mine) == len(given) else ()
    return {own: one for own, one in known if isinstance(one, Var)}


def kernel_calls(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Every `pallas_call` of a program, depth first."""
    return (one for one in equations(jaxpr) if one.primitive.name == PALLAS_CALL)


def launch_name(call: JaxprEqn) -> str:
    """The name of a `pallas_call`: the one it is given, else its kernel's."""
    return call.params.get("name") or call.params["jaxpr"].debug_info.func_name


def parameter_names(call: JaxprEqn) -> list[str]:
    """The names of a kernel's parameters: prefetched scalars, inputs, outputs, scratch.

    Where the kernel does not name them all, where each operand comes from.
    """
    kernel, grid = call.params["jaxpr"], call.params["grid_mapping"]
    given = kernel.debug_info.arg_names
    if given is not None and len(given) == len(kernel.invars) and all(given):
        return list(given)
    origins = [mapping.origin for mapping in grid.block_mappings]
    before = grid.num_index_operands
    after = len(kernel.invars) - before - len(origins)
    scalars = [f"scalars[{n}]" for n in range(before)]
    return scalars + origins + [f"scratch[{n}]" for n in range(after)]


def for_gpus(jaxpr: Jaxpr) -> bool:
    """Whether a kernel of a program is for GPUs: the types of its settings, or its mesh, say so."""
    settings = (
        one
        for equation in equations(jaxpr)
        if equation.primitive.name in (PALLAS_CALL, *OTHER_KERNELS)
        for one in map(equation.params.get, ("compiler_params", "mesh", "meshes"))
    )
    return any(re.search(r"pallas\.(triton|mosaic_gpu)", _modules(one)) for one in settings)


def _modules(settings: Any) -> str:
    """Where the types of a kernel's settings come from; 0.7 files them by backend."""
    each = settings.values() if isinstance(settings, Mapping) else settings
    each = each if isinstance(settings, Mapping | tuple) else (settings,)
    return " ".join(type(one).__module__ for one in each)


def with_interpret(closed: ClosedJaxpr, interpret: object) -> ClosedJaxpr:
    """The program with `interpret` set on every `pallas_call`, nested ones included.

    This is how a launch written with `interpret=INTERPRET` is simulated or compiled for a TPU
    without touching the learner's function.
    """

    def rule(equation: JaxprEqn) -> JaxprEqn:
        if equation.primitive.name != PALLAS_CALL:
            return equation
        return equation.replace(params={**equation.params, "interpret": interpret})

    return rewritten(closed, rule)


def rewritten(value: Any, rule: Rule) -> Any:
    """A program, or what holds some, with each equation replaced by what `rule` makes of it.

    Kernels stay as they are.
    """
    if isinstance(value, Jaxpr):  # from JAX 0.11 on a closed one, too
        return value.replace(eqns=[rule(_within_rewritten(one, rule)) for one in value.eqns])
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


class Interpreter:
    """One run of programs, on whatever a subclass takes for values."""

    def __init__(self) -> None:
        self._plans: dict[int, list[tuple[JaxprEqn, list[Any], Any]]] = {}

    def literal(self, atom: Literal) -> Any:
        """The value of a number that stands in the program itself."""
        raise NotImplementedError

    def planned(self, equation: JaxprEqn) -> Any:
        """What is the same of an equation however often it runs."""
        raise NotImplementedError

    def step(self, equation: JaxprEqn, plan: Any, values: list[Any], *where: Any) -> list[Any]:
        """Its results on its operands; where: its place in its program, and what `run` was told."""
        raise NotImplementedError

    def run(
        self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], *told: Any
    ) -> list[Any]:
        """The results of a program."""

        def operand(atom: Any) -> Any:
            return self.literal(atom) if isinstance(atom, Literal) else atom

        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        if id(jaxpr) not in self._plans:
            self._plans[id(jaxpr)] = [
                (one, list(map(operand, one.invars)), self.planned(one)) for one in jaxpr.eqns
            ]
        for n, (equation, operands, plan) in enumerate(self._plans[id(jaxpr)]):
            values = [env[v] if isinstance(v, Var) else v for v in operands]
            outs = self.step(equation, plan, values, n, *told)
            env.update(zip(equation.outvars, outs, strict=True))
        return [env[v] if isinstance(v, Var) else self.literal(v) for v in jaxpr.outvars]


def part(group: Sequence[JaxprEqn]) -> tuple[ClosedJaxpr, list[Var]]:
    """Neighbouring equations as a program that returns all they make, and its inputs."""
    made = [v for e in group for v in e.outvars]
    used = {v: None for e in group for v in e.invars if not isinstance(v, Literal)}
    needed = [v for v in used if v not in set(made)]
    empty = jax.make_jaxpr(lambda: ())().jaxpr
    part = empty.replace(
        invars=needed,
        outvars=made,
        eqns=[*group],
        effects=frozenset().union(*(e.effects for e in group)),
        debug_info=empty.debug_info._replace(arg_names=None, result_paths=None),
    )
    return close(part), needed
