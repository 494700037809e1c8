"""What the launches of a traced function need as data, computed where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import jax
import numpy as np

from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, is_key, scan_counts
from puzzles._launch.jaxprs import PALLAS_CALL, callee, kernel_calls, subjaxprs
from puzzles._launch.run import Around
from puzzles._rules import sentence


class Unreadable(ValueError):
    """A launch cannot be read; the text is a sentence that says why, and what to do."""


class Abstract(Unreadable):
    """A grid or an index map needs the data of an argument of which only the shape is given."""


@dataclass(frozen=True, eq=False)
class Node:
    """One equation outside kernels, with where its inputs come from.

    `times` is how often it runs: the product of the lengths of the loops around it, None if one of
    them is a `while`. `unused` are its outputs that nothing reads.
    """

    equation: JaxprEqn
    inputs: tuple[Source, ...]
    order: int
    times: int | None = 1
    unused: frozenset[int] = frozenset()

    @cached_property
    def on_data(self) -> bool:
        """Whether it is given any of the arguments, or what is made of one."""
        return any(
            s.node.on_data if s.node else bool(s.index >= 0 or s.abstract) for s in self.inputs
        )

    @cached_property
    def results(self) -> list[Any]:
        """What it gives; those of what comes before it are there."""
        given = zip(self.inputs, self.equation.invars, strict=True)
        with np.errstate(all="ignore"):
            return Around().equation(self.equation, [source.given(v.aval) for source, v in given])


@dataclass(frozen=True, eq=False)
class Source:
    """A value: output `index` of `node`, traced leaf `index`, or else a constant.

    data: of a leaf or a constant. `abstract` names what it depends on that has a shape but no data;
    empty if it can be computed.
    """

    node: Node | None = None
    index: int = -1
    data: Any = None
    abstract: frozenset[str] = frozenset()

    def given(self, aval: Any) -> Any:
        """It as an operand of that form; a plain number becomes an array."""
        data = self.data if self.node is None else self.node.results[self.index]
        return data if is_key(aval) else np.asarray(data, aval.dtype)

    @cached_property
    def value(self) -> np.ndarray | None:
        """The data, computed if need be; None if they are abstract."""
        if self.abstract:
            return None
        if self.node is None:
            return np.asarray(self.data)
        for node in _leading_to(self.node):  # earlier launches may be among them
            _ = node.results
        return np.asarray(self.node.results[self.index])


class Graph:
    """The program around the kernels, with calls inlined: equations, launches, results."""

    def __init__(self, jaxpr: ClosedJaxpr, arguments: Sequence[Any]) -> None:
        self.nodes: list[Node] = []
        leaves = [Source(None, n, x, _lacks(n, x)) for n, x in enumerate(arguments)]
        self.results = self._inline(jaxpr.jaxpr, _constants(jaxpr), leaves, 1)
        self.calls = [n for n in self.nodes if n.equation.primitive.name == PALLAS_CALL]

    def _inline(
        self,
        jaxpr: Jaxpr,
        consts: Sequence[Source],
        args: Sequence[Source],
        times: int | None,
    ) -> list[Source]:
        env: dict[Var, Source] = dict(zip(jaxpr.invars, args, strict=True))
        env.update(zip(jaxpr.constvars, consts, strict=True))

        def read(atom: Any) -> Source:
            return Source(data=atom.val) if isinstance(atom, Literal) else env[atom]

        used = {v for e in jaxpr.eqns for v in e.invars if isinstance(v, Var)}
        used.update(v for v in jaxpr.outvars if isinstance(v, Var))
        for equation in jaxpr.eqns:
            inputs = tuple(map(read, equation.invars))
            if (inner := callee(equation)) is not None:
                outs = self._inline(inner.jaxpr, _constants(inner), inputs, times)
            else:
                unused = (n for n, v in enumerate(equation.outvars) if v not in used)
                outs = self._node(equation, inputs, times, frozenset(unused))
            env.update(zip(equation.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _node(
        self,
        equation: JaxprEqn,
        inputs: tuple[Source, ...],
        times: int | None,
        unused: frozenset[int],
    ) -> list[Source]:
        node = Node(equation, inputs, len(self.nodes), times, unused)
        self.nodes.append(node)
        if equation.primitive.name != PALLAS_CALL:
            self._inside(node)
        abstract = frozenset().union(*(s.abstract for s in inputs))
        return [Source(node, n, None, abstract) for n in range(len(equation.outvars))]

    def _inside(self, node: Node) -> None:
        """Find the launches in a loop or a branch; what a loop carries is known only as it runs."""
        name, p = node.equation.primitive.name, node.equation.params
        lost = Source(abstract=frozenset({f"a value that changes inside a `{name}`"}))
        times = None if name == "while" else node.times
        if name == "scan" and times is not None:
            times *= p["length"]
        for jaxpr in subjaxprs(node.equation):
            if not any(True for _ in kernel_calls(jaxpr)):
                continue
            if name == "cond":
                args = node.inputs[1:]
            elif name == "scan":
                args = node.inputs[: scan_counts(p)[0]]
            elif name == "while" and jaxpr is p["body_jaxpr"].jaxpr:
                args = node.inputs[p["cond_nconsts"] :][: p["body_nconsts"]]
            else:
                args = ()
            blind = (lost,) * (len(jaxpr.invars) - len(args))
            self._inline(jaxpr, (lost,) * len(jaxpr.constvars), (*args, *blind), times)


def ask(what: str, source: Source) -> NoReturn:
    """Raise `Abstract`: what depends on data, on which, and the remedy."""
    names = " and ".join(sorted(source.abstract))
    why = "needs data" if names.startswith("argument") else "inside a loop"
    raise Abstract(sentence(why, what=what, names=names))


def _constants(closed: ClosedJaxpr) -> list[Source]:
    return [Source(data=value) for value in closed.consts]


def _lacks(n: int, leaf: Any) -> frozenset[str]:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return frozenset()
    dims = ",".join(map(str, leaf.shape))
    return frozenset({f"argument {n + 1}, {leaf.dtype}[{dims}]"})


def _leading_to(node: Node) -> list[Node]:
    """All that it needs, and it, in their order."""
    found: set[Node] = set()
    stack: list[Node | None] = [node]
    while stack:
        one = stack.pop()
        if one is not None and one not in found:
            found.add(one)
            stack += [s.node for s in one.inputs]
    return sorted(found, key=lambda one: one.order)
