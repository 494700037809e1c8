"""Every `pallas_call` of a traced program taken apart: from its equation to a `Launch`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from puzzles._equations import array_of, compiler_param, is_key, unknown_params
from puzzles._jax import close, written_refs
from puzzles._launch.abstract_evaluation import FUEL, AbstractInterpreter
from puzzles._launch.abstract_refs import UNKNOWN, Buffer, Ref, memory_space
from puzzles._launch.events import COPIES
from puzzles._launch.finding import line_of, line_of_function
from puzzles._launch.launch import AliasCost, Launch, Settings, Surroundings
from puzzles._launch.log import Access, Log
from puzzles._launch.operand import Operand, blocked, itemsize, resident
from puzzles._program import (
    LAYOUT,
    PALLAS_CALL,
    AbstractValueError,
    Node,
    Source,
    ask,
    equations,
    launch_name,
    parameter_names,
)
from puzzles._rules import sentence

# What these make of an array of `jax.lax.empty` is garbage as well.
_KEEPS_MEMORY = LAYOUT - {"concatenate", "pad"}
_KEEPS_MEMORY |= {"convert_element_type", "with_memory_space_constraint"}
LISTED = 4_000_000  # steps of which each is listed: some seconds, and a gigabyte


class Call:
    """One `pallas_call` equation taken apart."""

    def __init__(self, node: Node) -> None:
        p = node.equation.params
        self.p, self.kernel = p, p["jaxpr"]
        self.node = node
        self.mapping = p["grid_mapping"]
        bounds = sum(not isinstance(g, int | np.integer) for g in self.mapping.grid)
        scalars = bounds + self.mapping.num_index_operands
        self.bounds, self.scalars = node.inputs[:bounds], node.inputs[bounds:scalars]
        self.inputs = node.inputs[scalars:]
        self.avals = [v.aval for v in self.kernel.invars]
        self.name, self.names = launch_name(node.equation), parameter_names(node.equation)
        self.maps: list[Log] = []  # of walks over index maps
        self.moved: list[tuple[str, str]] = []  # see `Log.moved`

    def grid(self) -> tuple[int, ...]:
        bounds, grid = iter(self.bounds), []
        for size in self.mapping.grid:
            if not isinstance(size, int | np.integer):
                source = next(bounds)
                size = source.value
                if size is None:
                    ask(f"the grid of {self.name}", source)
            grid.append(int(size))
        return tuple(grid)

    def launch(self) -> Launch:
        grid, names, first = self.grid(), self.names, len(self.scalars)
        last = first + len(self.mapping.block_mappings)
        prefetch = zip(names[:first], self.avals[:first], strict=True)
        scratch = tuple(zip(names[last:], self.avals[last:], strict=True))
        scalars = tuple(resident(name, aval, grid, prefetched=True) for name, aval in prefetch)
        data = tuple(source.value for source in self.scalars)
        changed = [n for n in written_refs(self.kernel) if n < first] if len(grid) else []
        equation_steps = sum(1 for _ in equations(self.kernel)) * math.prod(grid)
        in_turn = bool(changed) and 1000 * equation_steps < FUEL  # a few seconds long
        refs: list[Any] = [
            # A later step no longer reads the passed data of a ref that the kernel writes.
            Ref.whole(o.shape, x if in_turn or n not in changed else None, name=o.name)
            for n, (o, x) in enumerate(zip(scalars, data, strict=True))
        ]
        operands: list[Operand] = []
        for n, mapping in enumerate(self.mapping.block_mappings):
            name, aval = names[first + n], self.avals[first + n]
            space = memory_space(aval)
            output = n >= self.mapping.num_inputs
            index = self.index(mapping, grid, name)
            operands.append(blocked(name, output, space, mapping, index, grid))
            readable = space == "smem" and not output and not is_key(aval)
            contents = self.inputs[n].value if readable else None
            if contents is None:
                refs.append(Buffer.of(name, aval))
                continue
            starts = tuple(i * s for i, s in zip(index, operands[-1].stride, strict=True))
            visible = tuple(b is not None for b in operands[-1].block)
            refs.append(Ref(contents, starts, visible, name=name))
        refs += map(Buffer.of, names[len(refs) :], self.avals[len(refs) :])

        vmapped = self.mapping.vmapped_dims
        axes = [a for a in range(len(grid)) if a not in vmapped]
        copying = any(e.primitive.name in COPIES for e in equations(self.kernel))
        walk = AbstractInterpreter(grid, axes, events=copying)
        (walk.in_turn if in_turn else walk.start)(close(self.kernel), refs)
        log = walk.log
        logs = (*self.maps, log)
        log.looks, log.strays = sum((x.looks for x in logs), ()), sum((x.strays for x in logs), ())
        log.moved, log.written_inputs = tuple(self.moved), self.written_inputs(log.touches)
        settings = Settings(
            self.semantics(),
            tuple((i - first, o) for i, o in self.p["input_output_aliases"]),
            self.p["interpret"],
            unknown_params(self.p["compiler_params"]),
            math.prod(grid) if self.mapping.grid_names else 1,
            getattr(self.p.get("cost_estimate"), "flops", None),
        )
        return Launch(
            name=self.name,
            grid=grid,
            inputs=tuple(o for o in operands if not o.output),
            outputs=tuple(o for o in operands if o.output),
            scratch=tuple(resident(*entry, grid) for entry in scratch),
            scalars=scalars,
            scalar_values=data,
            log=log,
            settings=settings,
            vmem_limit_bytes=compiler_param(self.p["compiler_params"], "vmem_limit_bytes"),
            around=Surroundings(self.node.unused, tuple(self.made()), self.empty(log.touches)),
            line=line_of(self.node.equation.source_info) or line_of_function(self.kernel),
            times=self.node.times,
        ).with_copies()

    def index(self, mapping: Any, grid: tuple[int, ...], name: str) -> list[np.ndarray]:
        """Block indices of operand `name` along every axis, each broadcasting over the grid."""
        what, refs, names = f"the index map of {name} in {self.name}", [], self.names
        for source, aval, scalar in zip(self.scalars, self.avals, names, strict=False):
            absent = partial(ask, f"{what} reads {scalar}, which", source)
            refs.append(Ref.whole(aval.shape, source.value, absent, scalar))
        walk = AbstractInterpreter(grid)
        outs = walk.start(mapping.index_map_jaxpr, [*walk.ids, *refs])
        self.maps.append(walk.log)
        if math.prod(grid) != 1:
            written = {names[n] for n in written_refs(self.kernel)}
            read = (look.ref.name for look in walk.log.looks)
            self.moved += dict.fromkeys((name, scalar) for scalar in read if scalar in written)
        index = []
        given = jax.tree.unflatten(mapping.index_map_out_tree, outs)
        for entry in given if isinstance(given, tuple | list) else (given,):
            entry = getattr(entry, "start", entry)  # a pl.ds of a BoundedSlice
            if entry is UNKNOWN:
                asks = f", one number at a time, as in `{names[0]}[n]`" if refs else ""
                raise AbstractValueError(sentence("map_unknown", what=what, asks=asks))
            value = np.asarray(entry)
            while value.ndim > len(grid):  # an axis indexed by an array stands for its first
                value = value[..., 0]
            index.append(value.reshape(value.shape or (1,) * len(grid)))
        return index

    def made(self) -> Iterator[AliasCost]:
        """What XLA writes for the outputs that share an input's memory."""
        first = len(self.scalars)
        for i, o in self.p["input_output_aliases"]:
            source = self.inputs[i - first] if i >= first else self.scalars[i]
            if source.node is not None and source.node.equation.primitive.name == PALLAS_CALL:
                continue  # another launch wrote it, and was counted
            if _is_empty(source):
                continue
            if source.node is None:
                how = "copies" if source.index >= 0 else "fills"
            else:
                inputs = source.node.inputs
                constant = all(s.node is None and s.index < 0 for s in inputs)
                how = "fills" if constant else "computes"
            output = self.mapping.num_inputs + o
            array = array_of(self.mapping.block_mappings[output])
            size = math.prod(array.shape) * itemsize(self.avals[first + output].dtype)
            yield AliasCost(self.names[first + output], size, how)

    def empty(self, touches: Sequence[Access]) -> tuple[str, ...]:
        read, first = {touch.ref for touch in touches if not touch.writes}, len(self.scalars)
        aliased = {self.names[i] for i, _ in self.p["input_output_aliases"]}
        made = zip(self.names[first:], self.inputs, strict=False)
        return tuple(
            name for name, source in made
            if _is_empty(source) and (name in read or name not in aliased)
        )  # fmt: skip

    def written_inputs(self, touches: Sequence[Access]) -> tuple[str, ...]:
        first = len(self.scalars)
        aliased = {i for i, _ in self.p["input_output_aliases"]}
        aliased |= {n for n, source in enumerate(self.inputs, first) if _is_empty(source)}
        inputs = range(first, first + self.mapping.num_inputs)
        # JAX also counts the source of a copy to another device as written.
        stored = {touch.ref for touch in touches if touch.writes}
        written = written_refs(self.kernel) - aliased
        return tuple(self.names[n] for n in inputs if n in written and self.names[n] in stored)

    def semantics(self) -> tuple[str, ...] | None:
        given = compiler_param(self.p["compiler_params"], "dimension_semantics")
        if given is None:
            return None
        words = [str(getattr(word, "value", word)).lower() for word in given]
        # JAX made a tuple of one word's letters; without a grid there may be no word at all.
        if words and all(len(word) == 1 for word in words):
            words = ["".join(words)]
        mapped, rank = set(self.mapping.vmapped_dims), len(self.mapping.grid)
        if len(words) + len(mapped) != rank:
            return tuple(words)
        rest = iter(words)
        return tuple("parallel" if a in mapped else next(rest) for a in range(rank))


def _is_empty(source: Source) -> bool:
    """True for an array of `jax.lax.empty`, also in another layout or dtype.

    It may be memory for the kernel to write in.
    """
    node = source.node
    while node is not None and node.equation.primitive.name in _KEEPS_MEMORY:
        node = node.inputs[0].node
    return node is not None and node.equation.primitive.name == "empty"
