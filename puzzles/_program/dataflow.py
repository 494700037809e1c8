"""The data flow between the equations around kernels; values are computed on demand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import jax
import numpy as np

from puzzles._equations import is_key, scan_counts
from puzzles._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from puzzles._program.jaxprs import PALLAS_CALL, around_kernels, callee, kernel_calls, through
from puzzles._program.mapped import COLLECTIVES
from puzzles._program.run import ProgramInterpreter
from puzzles._rules import sentence

_OF_DEVICES = ("axis_index", *COLLECTIVES)


class UnreadableError(ValueError):
    """A launch cannot be read. The message has the reason and a remedy."""


class AbstractValueError(UnreadableError):
    """A grid or an index map needs the data of an argument that is only a shape."""


@dataclass(frozen=True, eq=False)
class Node:
    """One equation outside kernels, with the sources of its inputs.

    times: the product of the lengths of the loops around it; None if one of them is a `while`.
    unused: the numbers of its outputs that nothing reads.
    """

    equation: JaxprEqn
    inputs: tuple[Source, ...]
    order: int
    times: int | None = 1
    unused: frozenset[int] = frozenset()

    @cached_property
    def on_data(self) -> bool:
        """True if an input depends on an argument of the function."""
        return any(
            s.node.on_data if s.node else bool(s.index >= 0 or s.abstract) for s in self.inputs
        )

    @cached_property
    def results(self) -> list[Any]:
        """The outputs of this equation; those of all nodes before it are computed already."""
        pairs = zip(self.inputs, self.equation.invars, strict=True)
        with np.errstate(all="ignore"):
            return ProgramInterpreter().equation(
                self.equation, [source.operand(v.aval) for source, v in pairs]
            )


@dataclass(frozen=True, eq=False)
class Source:
    """A value: output `index` of `node`, leaf `index` of the arguments, or a constant.

    data: of a leaf or a constant.
    abstract: the names of arguments without data that it depends on; empty if it can be computed.
    """

    node: Node | None = None
    index: int = -1
    data: Any = None
    abstract: frozenset[str] = frozenset()

    def operand(self, aval: Any) -> Any:
        """The value as an operand of this type; a plain number becomes an array."""
        data = self.data if self.node is None else self.node.results[self.index]
        return data if is_key(aval) else np.asarray(data, aval.dtype)

    @cached_property
    def value(self) -> np.ndarray | None:
        """The data, computed if necessary; None if they are abstract."""
        if self.abstract:
            return None
        if self.node is None:
            return np.asarray(self.data)
        for node in _leading_to(self.node):  # this may run earlier launches
            _ = node.results
        return np.asarray(self.node.results[self.index])


class Graph:
    """The program around the kernels, with calls inlined: its nodes, launches and results."""

    def __init__(self, jaxpr: ClosedJaxpr, arguments: Sequence[Any]) -> None:
        self.nodes: list[Node] = []
        leaves = [Source(None, n, x, _lacks(n, x)) for n, x in enumerate(arguments)]
        # If a program is called twice, its variables refer to the latest call.
        self._env: dict[Var, Source] = {}
        self._times: list[int | None] = [1]  # how often the current program runs
        self._used = [self._begin(jaxpr.jaxpr, _constants(jaxpr), leaves)]
        for equation, begins, ends in through(jaxpr.jaxpr, _is_entered):
            if begins is not None:
                self._begins(equation, begins)
            elif ends is not None:
                self._used.pop()
                self._times.pop()
                if callee(equation) is not None:
                    outputs = map(self._read, ends.outvars)
                    self._env.update(zip(equation.outvars, outputs, strict=True))
            elif callee(equation) is None:
                self._add(equation)
        self.results = [self._read(v) for v in jaxpr.jaxpr.outvars]
        self.calls = [n for n in self.nodes if n.equation.primitive.name == PALLAS_CALL]

    def feeds(self, call: Node, primitives: Collection[str]) -> bool:
        """Whether an equation of one of these primitives depends on a launch."""
        named = (node for node in self.nodes if node.equation.primitive.name in primitives)
        return any(call in _leading_to(node) for node in named)

    def _read(self, atom: Any) -> Source:
        return Source(data=atom.val) if isinstance(atom, Literal) else self._env[atom]

    def _begin(self, jaxpr: Jaxpr, consts: Sequence[Source], args: Sequence[Source]) -> set[Var]:
        """Bind a program's inputs, and return the variables that it uses."""
        self._env.update(zip(jaxpr.invars, args, strict=True))
        self._env.update(zip(jaxpr.constvars, consts, strict=True))
        used = {v for e in jaxpr.eqns for v in e.invars if isinstance(v, Var)}
        return used | {v for v in jaxpr.outvars if isinstance(v, Var)}

    def _begins(self, equation: JaxprEqn, inner: Jaxpr) -> None:
        """Enter a call, a loop or a branch; values that a loop carries are abstract."""
        args, times = tuple(map(self._read, equation.invars)), self._times[-1]
        if (called := callee(equation)) is not None:
            self._times.append(times)
            self._used.append(self._begin(inner, _constants(called), args))
            return
        name, p = equation.primitive.name, equation.params
        lost = Source(abstract=frozenset({f"a value that changes inside a `{name}`"}))
        if name == "while":
            times = None
        elif name == "scan" and times is not None:
            times *= p["length"]
        if name == "cond":
            args = args[1:]
        elif name == "scan":
            args = args[: scan_counts(p)[0]]
        elif name == "while" and inner is p["body_jaxpr"].jaxpr:
            args = args[p["cond_nconsts"] :][: p["body_nconsts"]]
        else:
            args = ()
        self._times.append(times)
        carried = (lost,) * (len(inner.invars) - len(args))
        consts = (lost,) * len(inner.constvars)
        self._used.append(self._begin(inner, consts, (*args, *carried)))

    def _add(self, equation: JaxprEqn) -> None:
        inputs = tuple(map(self._read, equation.invars))
        unused = frozenset(n for n, v in enumerate(equation.outvars) if v not in self._used[-1])
        node = Node(equation, inputs, len(self.nodes), self._times[-1], unused)
        self.nodes.append(node)
        abstract = frozenset().union(*(s.abstract for s in inputs))
        if (name := equation.primitive.name) in _OF_DEVICES:
            abstract |= {f"`{name}` inside a `shard_map`"}
        for n, variable in enumerate(equation.outvars):
            self._env[variable] = Source(node, n, None, abstract)


def _is_entered(equation: JaxprEqn, inner: Jaxpr) -> bool:
    """True for the program of a plain call, and for a loop or branch that launches a kernel."""
    if not around_kernels(equation):
        return False
    called = callee(equation)
    return any(True for _ in kernel_calls(inner)) if called is None else inner is called.jaxpr


def ask(subject: str, source: Source) -> NoReturn:
    """Raise `AbstractValueError`.

    subject: the name of the thing that needs data, such as "the grid". source: the missing data.
    """
    names = " and ".join(sorted(source.abstract))
    why = "needs_data" if names.startswith("argument") else "inside_a_loop"
    why = "on_each_device" if "shard_map" in names else why
    raise AbstractValueError(sentence(why, what=subject, names=names))


def _constants(closed: ClosedJaxpr) -> list[Source]:
    return [Source(data=value) for value in closed.consts]


def _lacks(n: int, leaf: Any) -> frozenset[str]:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return frozenset()
    dims = ",".join(map(str, leaf.shape))
    return frozenset({f"argument {n + 1}, {leaf.dtype}[{dims}]"})


def _leading_to(node: Node) -> list[Node]:
    """`node` and all nodes that it depends on, in program order."""
    needed: set[Node] = set()
    stack: list[Node | None] = [node]
    while stack:
        current = stack.pop()
        if current is not None and current not in needed:
            needed.add(current)
            stack += [source.node for source in current.inputs]
    return sorted(needed, key=lambda needed_node: needed_node.order)
