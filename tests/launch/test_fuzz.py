"""Random launches: the blocks read from a trace are those of the index maps at every step.

JAX's TPU simulator agrees.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax_simulator import in_jax
from launched import call, copy_kernel

from puzzles import Launch, Operand, trace
from puzzles._launch import trace_call

STEPS = 30  # of a launch, batches included
ELEMENTS = 20_000  # of an array
EXAMPLES = 84 if sample.ALL else 16  # of each theme: 504 in all


# The description of a launch. All of it is plain data, so that a failing example can be read.


@dataclass(frozen=True)
class Dim:
    """One axis of an operand: `block` None is squeezed; `index` is an expression."""

    size: int
    block: int | None
    index: tuple
    element: bool = False


@dataclass(frozen=True)
class Block:
    """An input or output of the kernel."""

    dims: tuple[Dim, ...]
    dtype: str
    space: str = "vmem"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims)

    def spec(self, bounds: tuple[int, ...]) -> pl.BlockSpec:
        if self.space == "any":
            return pl.BlockSpec(memory_space=pl.ANY)
        shape = [pl.Element(d.block) if d.element else d.block for d in self.dims]

        def index_map(*given: Any) -> tuple:
            env = Env(bounds, given[: len(bounds)], given[len(bounds) :], jnp)
            return tuple(value(d.index, env) for d in self.dims)

        kinds = {"smem": {"memory_space": pltpu.SMEM}}
        return pl.BlockSpec(shape, index_map, **kinds.get(self.space, {}))


@dataclass(frozen=True)
class Table:
    """A prefetched array of scalars, indexed by the program ids of `axes`."""

    axes: tuple[int, ...]
    values: tuple[int, ...]

    def array(self, bounds: tuple[int, ...]) -> np.ndarray:
        return np.array(self.values, np.int32).reshape([bounds[a] for a in self.axes])


@dataclass(frozen=True)
class Case:
    """A launch and how it is called; `vmaps`, the innermost first, has (size, `in_axes`)."""

    bounds: tuple[int, ...]  # no axis of the grid is longer
    grid: tuple[int, ...]
    dynamic: tuple[int, ...]  # axes whose size is computed from data
    tables: tuple[Table, ...]
    inputs: tuple[Block, ...]
    outputs: tuple[Block, ...]
    aliases: tuple[tuple[int, int], ...]
    dots: tuple[tuple, ...]
    vmaps: tuple[tuple[int, tuple[int | None, ...]], ...]
    jitted: bool
    chained: bool  # another launch makes the tables


@dataclass(frozen=True)
class Env:
    """The namespace of an expression: `xp` is NumPy on numbers, jax.numpy in a trace."""

    bounds: tuple[int, ...]
    ids: Any
    tables: Any
    xp: Any = np


def value(expression: tuple, env: Env) -> Any:
    """An index, a condition or a trip count; test_launch.py has the arithmetic of integers."""
    ids, bounds = env.ids, env.bounds
    match expression:
        case ("constant", number):
            return number
        case ("table", number, axes):
            return env.tables[number][tuple(ids[a] for a in axes)]
        case ("less", x, y):
            return value(x, env) < value(y, env)
        case ("equal", x, y):
            return value(x, env) == value(y, env)
        case ("id", i):
            return ids[i]
        case ("reversed", i):
            return bounds[i] - 1 - ids[i]
        case ("halved", i):
            return ids[i] // 2
        case ("capped", i, most):
            return env.xp.minimum(ids[i], most)
        case ("sum", i, j):
            return ids[i] + ids[j]
        case ("flat", i, j):
            return ids[i] * bounds[j] + ids[j]
        case ("causal", i, j):
            return env.xp.where(ids[j] <= ids[i], ids[j], 0)
    raise AssertionError(expression)


# How launches are drawn.


def drawn(theme: str, chance: Random) -> Case:
    """A launch; every example has `theme`, the rest is random."""
    fewest, most = {"vmap": (1, 2), "dots": (0, 1), "dynamic": (0, 1)}.get(theme, (0, 0))
    batches = [chance.randint(2, 3) for _ in range(chance.randint(fewest, most))]
    left = STEPS // math.prod(batches)
    bounds: list[int] = []
    for _ in range(chance.choice([2, 1, 3, 0] if theme == "plain" else [2, 1, 3])):
        longest = max(1, min(6, left // math.prod(bounds)))
        bounds.append(chance.choice([g for g in (3, 2, 4, 5, 6, 1) if g <= longest]))
    some = chance.choice([(0, 1, 2), (0, 1), (0, 2), (1,)])
    dynamic = tuple(a for a in some if a < len(bounds)) or (0,) if theme == "dynamic" else ()
    empty = chance.choice([None] * 2 + [*dynamic[:1]])
    grid = tuple(
        chance.randint(1, g) if a in dynamic and a != empty else g * (a != empty)
        for a, g in enumerate(bounds)
    )
    tables = tuple(
        _table(chance, bounds)
        for _ in range(chance.choice([1, 2] if theme == "prefetch" else [0, 1, 2]) * any(bounds))
    )
    make = _Maker(chance, tuple(bounds), grid, tables, theme, bool(batches))
    inputs = [make.block(output=False) for _ in range(chance.choice([2, 1, 3]))]
    outputs = [make.block(output=True) for _ in range(chance.choice([1, 2, 1, 2, 0]))]
    aliases = []
    if theme == "aliases" or chance.randint(0, 3) == 3:
        # An output in the array of an input: the same map, or one of its own. It has no ragged
        # edge: for such a one the simulator returns the padded array, which JAX refuses.
        inputs[0] = make.block(output=False, whole=True)
        if inputs[0].space == "vmem":
            source = chance.randint(0, len(inputs) - 1)
            inputs[0], inputs[source] = inputs[source], inputs[0]
            aliases.append((source, len(outputs)))
            outputs.append(make.alias_of(inputs[source]))
    dots = make.dots(inputs) if theme == "dots" else []
    if theme == "dynamic":  # only then does a kernel ask for the size of its grid
        dots = [("last", chance.choice(dynamic))]
    vmaps: list[tuple[int, tuple[int | None, ...]]] = []
    ranks = [len(x.dims) for x in inputs]
    for size in batches:
        axes = [chance.choice([None, 0, rank]) for rank in ranks]
        axes = [0 if n == 0 or (n, len(outputs) - 1) in aliases else a for n, a in enumerate(axes)]
        axes[0] = chance.choice([0, ranks[0]]) if not aliases else axes[0]
        ranks = [rank + (a is not None) for rank, a in zip(ranks, axes, strict=True)]
        vmaps.append((size, tuple(axes)))
    return Case(
        bounds=tuple(bounds),
        grid=grid,
        dynamic=dynamic,
        tables=tables,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        aliases=tuple(aliases),
        dots=tuple(dots),
        vmaps=tuple(vmaps),
        jitted=chance.random() < 0.5,
        chained=bool(tables) and chance.randint(0, 3) == 3,
    )


def _table(chance: Random, bounds: list[int]) -> Table:
    axes = tuple(chance.sample(range(len(bounds)), min(len(bounds), chance.randint(1, 2))))
    values = [chance.randint(0, 3) for _ in range(math.prod(bounds[a] for a in axes))]
    return Table(axes, tuple(sorted(values) if chance.random() < 0.5 else values))


@dataclass
class _Maker:
    chance: Random
    bounds: tuple[int, ...]
    grid: tuple[int, ...]
    tables: tuple[Table, ...]
    theme: str
    batched: bool  # then an array in HBM has no trivial block, and the simulator refuses it

    def everywhere(self) -> list[Env]:
        tables = [t.array(self.bounds) for t in self.tables]
        return [Env(self.bounds, ids, tables) for ids in np.ndindex(*self.bounds)]

    def expression(self) -> tuple:
        """An index that no step takes below 0."""
        chance, axes, tables = self.chance, range(len(self.bounds)), range(len(self.tables))
        choices: list[tuple] = [("constant", chance.randint(0, 2))]
        choices += [("table", n, self.tables[n].axes) for n in tables] * (
            6 if self.theme == "prefetch" else 2
        )
        if axes:
            i, j = chance.choice(axes), chance.choice(axes)
            choices += [("id", i)] * 3
            choices += [("reversed", i), ("halved", i)]
            choices += [("capped", i, chance.randint(0, 2))]
            choices += [(chance.choice(["causal", "sum", "flat"]), i, j)]
        return chance.choice(choices)

    def block(self, output: bool, whole: bool = False) -> Block:
        """An operand; a `whole` one has no ragged edge."""
        chance = self.chance
        dtype = chance.choice(["int32", "float32", "bfloat16", "uint8"])
        spaces = ["vmem", "vmem", "vmem", "smem"] + ["any"] * (not self.batched)
        space = chance.choice(spaces)
        if self.theme == "dots":
            space = chance.choice(["vmem", "smem"])
        rank = chance.choice([2, 1, 3, 4])
        if space == "any" and not output:
            return Block(
                tuple(Dim(n + 2, n + 2, ("constant", 0)) for n in range(rank)), "int32", "any"
            )
        space = "vmem" if space == "any" else space
        dtype = "int32" if space == "smem" else dtype
        maps = [self.expression() for _ in range(rank)]
        while output and not self.consecutive(maps):
            maps[next(n for n, m in enumerate(maps) if m[0] != "constant")] = ("constant", 0)
        legal = rank > 1 and chance.randint(0, 5) == 5
        scalar = space == "smem" and chance.random() < 0.5
        dims: list[Dim] = []
        for axis, index in enumerate(maps):
            block: int | None = None
            if legal and axis >= rank - 2:
                block = 8 if axis == rank - 2 else 128
            elif not scalar:
                block = chance.choice([2, None, 3, 1])
            last = max(int(value(index, env)) for env in self.everywhere())
            more = chance.randint(0, 1)
            element = block in (1, 2, 3) and not whole and chance.randint(0, 7) == 7
            if element:
                size = last + block + more
            else:
                ragged = 0 if whole else chance.randint(0, (block or 1) - 1)
                size = (last + 1 + more) * (block or 1) - ragged
            dims.append(Dim(size, block, index, element))
        if math.prod(d.size for d in dims) > ELEMENTS:
            return self.block(output, whole)
        return Block(tuple(dims), dtype, space)

    def alias_of(self, source: Block) -> Block:
        """An output of the same array; the simulator lets such a one come back to a block."""
        if self.chance.random() < 0.5:
            return source
        dims = [Dim(d.size, d.block, ("constant", 0), d.element) for d in source.dims]
        keep = self.chance.randint(0, len(dims) - 1)
        dims[keep] = source.dims[keep]
        return Block(tuple(dims), source.dtype)

    def consecutive(self, maps: list[tuple]) -> bool:
        """No step comes back to a block that was left."""
        tables = [t.array(self.bounds) for t in self.tables]
        seen: list[tuple] = []
        for ids in np.ndindex(*self.grid):
            env = Env(self.bounds, ids, tables)
            at = tuple(int(value(m, env)) for m in maps)
            if at in seen[:-1]:
                return False
            if not seen or seen[-1] != at:
                seen.append(at)
        return True

    def dots(self, inputs: list[Block]) -> list[tuple]:
        """How each of some dots is guarded: (kind, deciding value)."""
        kinds = ["always", "when", "both", "loop", "repeat", "switch", "last"]
        kinds += {f"in {x.space}" for x in inputs if x.space != "any"}
        some = {*self.chance.sample(sorted(kinds), self.chance.randint(3, 4))}
        some |= {"in smem"} & {*kinds}
        return [(kind, *self.deciding(kind, inputs)) for kind in sorted(some)]

    def deciding(self, kind: str, inputs: list[Block]) -> list[Any]:
        chance = self.chance
        if kind in ("when", "both"):
            kinds = ["less", "equal"]
            number = 1 + (kind == "both")
            return [
                (chance.choice(kinds), self.expression(), self.expression()) for _ in range(number)
            ]
        if kind in ("loop", "switch"):
            return [self.expression()]
        if kind == "repeat":
            return [chance.randint(0, 3)]
        if kind == "last":
            return [chance.randint(0, len(self.bounds) - 1)]
        return [n for n, x in enumerate(inputs) if x.space == kind[3:]][:1]


def mark_of(case: Case, ids: Any, first: Callable[[int], Any]) -> Any:
    """A step's value: its number plus the first elements of its blocks, modulo 251."""
    mark = 0
    for i, bound in zip(ids, case.bounds, strict=True):
        mark = mark * bound + i
    aliased = {n for n, _ in case.aliases}  # an earlier step may have written there
    for n, x in enumerate(case.inputs):
        mark = mark + (first(n) if x.space != "any" and n not in aliased else 0)
    return mark % 251


def kernel_of(case: Case) -> Any:
    def kernel(*refs: Any) -> None:
        tables, rest = refs[: len(case.tables)], refs[len(case.tables) :]
        inputs, outputs, log = rest[: len(case.inputs)], rest[len(case.inputs) : -1], rest[-1]
        ids = [pl.program_id(a) for a in range(len(case.bounds))]
        env = Env(case.bounds, ids, tables, jnp)
        mark = mark_of(case, ids, lambda n: first_of(inputs[n]).astype(jnp.int32))
        for out, ref in zip(case.outputs, outputs, strict=True):
            ref[...] = jnp.full(ref.shape, mark).astype(out.dtype)
        for n, guard in enumerate(case.dots):

            def tick(n: int = n) -> None:
                log[0, 0] += jnp.dot(jnp.ones((n + 1, 2)), jnp.ones((2, n + 3)))[0, 0]

            _guarded(guard, tick, env, inputs)

    return kernel


def first_of(ref: Any) -> Any:
    return ref[(0,) * len(ref.shape)]


def _guarded(guard: tuple, tick: Any, env: Env, inputs: Any) -> None:
    kind, *given = guard
    if kind == "always":
        tick()
    elif kind == "when":
        pl.when(value(given[0], env))(tick)
    elif kind == "both":
        one, two = (value(e, env) for e in given)
        pl.when(one)(lambda: pl.when(two)(tick))
    elif kind == "last":
        pl.when(env.ids[given[0]] == pl.num_programs(given[0]) - 1)(tick)
    elif kind in ("loop", "repeat"):
        trips = value(given[0], env) if kind == "loop" else given[0]
        lax.fori_loop(0, trips, lambda _, c: (tick(), c)[1], 0)
    elif kind == "switch":
        twice = lambda: (tick(), tick())[0]  # noqa: E731
        lax.switch(value(given[0], env), [lambda: None, tick, twice])
    else:
        ref = inputs[given[0]]
        pl.when(first_of(ref) % 5 < 2)(tick)


def function_of(case: Case) -> Any:
    """A function of (grid sizes, tables, inputs) that launches the kernel."""

    def launch(sizes: Any, tables: Any, *inputs: Any) -> Any:
        if case.chained:
            tables = [_copied(t) for t in tables]
        sizes = jnp.sum(sizes, axis=1)
        grid = [sizes[a] if a in case.dynamic else g for a, g in enumerate(case.grid)]
        log = pl.BlockSpec((8, 128), lambda *_: (0, 0))
        specs = [x.spec(case.bounds) for x in case.inputs]
        out_specs = [*(x.spec(case.bounds) for x in case.outputs), log]
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in case.outputs]
        shapes.append(jax.ShapeDtypeStruct((8, 128), jnp.float32))
        aliases = {len(tables) + i: o for i, o in case.aliases}
        fn = call(
            kernel_of(case), shapes, tuple(grid), specs, out_specs, scalars=len(tables),
            input_output_aliases=aliases,
        )  # fmt: skip
        return fn(*tables, *inputs)

    if case.jitted:
        launch = jax.jit(launch)
    for _, axes in case.vmaps:
        launch = jax.vmap(launch, in_axes=(None, None, *axes))
    return jax.jit(launch) if case.jitted else launch


def _copied(table: Any) -> Any:
    return pl.pallas_call(copy_kernel, out_shape=table, interpret=True)(table)


def arguments_of(case: Case) -> list[Any]:
    sizes = np.array([[g // 2, g - g // 2] for g in case.grid], np.int32).reshape(-1, 2)
    inputs = []
    for n, x in enumerate(case.inputs):
        shape = list(x.shape)
        for size, axes in case.vmaps:
            if axes[n] is not None:
                shape.insert(axes[n], size)
        numbers = np.arange(math.prod(shape)).reshape(shape) * (n + 1) + 1
        inputs.append(
            jnp.asarray(numbers if x.dtype in ("int32", "float32") else numbers % 251, x.dtype)
        )
    tables = [jnp.asarray(t.array(case.bounds)) for t in case.tables]
    return [jnp.asarray(sizes), tables, *inputs]


def blocks(operand: Operand, step: int) -> tuple[tuple[int, int], ...]:
    """The block that is read from the trace: (first element, how many) along every axis."""
    return tuple(zip(operand.starts[step].tolist(), operand.sizes, strict=True))


def features(case: Case, launch: Launch) -> Counter:
    """The themes that an example really has."""
    inputs, outputs = launch.inputs, launch.outputs[:-1]
    moving = [x for x in (*inputs, *outputs) if x.space != "any"]
    return Counter(
        name
        for name, has in {
            "squeezed": any(None in x.block for x in moving),
            "ragged": any(s % b for x in moving for s, b in zip(x.shape, x.sizes, strict=True)),
            "stays": any(0 < x.transfers < launch.steps for x in inputs),
            "revisited": any(0 < x.transfers < launch.steps for x in outputs),
            "again": any(len(np.unique(x.blocks, axis=0)) < x.transfers for x in inputs),
            "empty": launch.steps == 0,
            "two dynamic": len({case.grid[a] for a in case.dynamic}) > 1,
            "scalar": any(x.space == "smem" and set(x.block) == {None} for x in inputs),
            "prefetch": any(
                d.index[0] == "table" for x in case.inputs + case.outputs for d in x.dims
            ),
            "alias": bool(case.aliases),
            "vmap": bool(case.vmaps),
            "vmap of vmap": len(case.vmaps) > 1,
            "smem": any(x.space == "smem" for x in moving),
            "any": any(x.space == "any" for x in inputs),
            "element": any(d.element for x in case.inputs + case.outputs for d in x.dims),
            "skipped": any((d.executed == 0).any() for d in launch.dots),
            **{guard[0]: True for guard in case.dots},
        }.items()
        if has
    )


THEMES = {
    "plain": ("squeezed", "ragged", "stays", "revisited"),
    "prefetch": ("prefetch", "again"),
    "dynamic": ("two dynamic", "empty", "vmap"),
    "aliases": ("alias", "revisited"),
    "vmap": ("vmap", "vmap of vmap", "again"),
    "dots": (
        *("skipped", "always", "when", "both", "loop", "repeat", "switch", "last"),
        *("in smem", "scalar", "in vmem"),
    ),
}


# The results of index maps and guards: every step by plain Python, without a trace.


def steps_of(case: Case) -> list[tuple[tuple[int, ...], Env]]:
    """Program ids of each step, those of batches first; and the namespace of its expressions."""
    tables = [t.array(case.bounds) for t in case.tables]
    grid = (*(size for size, _ in case.vmaps[::-1]), *case.grid)
    return [(ids, Env(case.bounds, ids[len(case.vmaps) :], tables)) for ids in np.ndindex(*grid)]


def block_at(case: Case, x: Block, axes: list[int | None], ids: Any, env: Env) -> list:
    """(first element, how many) along every axis; `axes` has that of each `vmap`, or None."""
    if x.space == "any":
        return [(0, d.size) for d in x.dims]
    found = []
    for d in x.dims:
        size = d.block or 1
        found.append((int(value(d.index, env)) * (1 if d.element else size), size))
    for batch, axis in enumerate(axes):
        if axis is not None:
            found.insert(axis, (ids[len(axes) - 1 - batch], 1))
    return found


def times(case: Case, guard: tuple, env: Env, inputs: Any) -> int:
    """How often a step executes a guarded part; the most, if a block in VMEM decides."""
    kind, *given = guard
    if kind in ("when", "both"):
        return int(all(value(e, env) for e in given))
    if kind == "last":
        return int(env.ids[given[0]] == case.grid[given[0]] - 1)
    if kind == "repeat":
        return given[0]
    if kind in ("loop", "switch"):
        return min(int(value(given[0], env)), 2 if kind == "switch" else 99)
    if kind == "in smem":
        return int(inputs[given[0]] % 5 < 2)
    assert kind in ("always", "in vmem")
    return 1


def first_elements(launch: Launch, arguments: list, step: int) -> list:
    """Of the block of each input at a step."""
    starts = [operand.starts[step] for operand in launch.inputs]
    return [np.asarray(x)[tuple(at)] for x, at in zip(arguments[2:], starts, strict=True)]


def compare_with_maps(case: Case, launch: Launch, arguments: list) -> None:
    scalars = [(o.shape, o.transfers, o.hbm_bytes) for o in launch.scalars]
    assert scalars == [(x.shape, 1, x.nbytes) for x in arguments[1]]
    assert launch.aliases == case.aliases
    steps = steps_of(case)
    assert launch.program_ids.tolist() == [list(ids) for ids, _ in steps]
    batched = [[axes[n] for _, axes in case.vmaps] for n in range(len(case.inputs))]
    batched += [[0] * len(case.vmaps) for _ in case.outputs]
    operands = (*launch.inputs, *launch.outputs[:-1])
    for operand, x, axes in zip(operands, case.inputs + case.outputs, batched, strict=True):
        held = [block_at(case, x, axes, *step) for step in steps]
        moved = [b for n, b in enumerate(held) if n == 0 or b != held[n - 1]]
        moved = [] if x.space == "any" else moved
        assert [list(blocks(operand, n)) for n in range(len(held))] == held, operand.name
        assert operand.transfers == len(moved)
        inside = sum(
            math.prod(min(n, size - at) for (at, n), size in zip(b, operand.shape, strict=True))
            for b in moved
        )
        assert operand.hbm_bytes == inside * np.dtype(operand.dtype).itemsize
    for n, guard in enumerate(case.dots):
        executed = np.zeros(launch.steps, int)
        for dot in launch.dots:
            executed += dot.executed * (dot.lhs == (n + 1, 2))
        assert executed.tolist() == [
            times(case, guard, env, first_elements(launch, arguments, step))
            for step, (_, env) in enumerate(steps)
        ], guard


def compare_with_simulator(case: Case, launch: Launch, arguments: list) -> None:
    """The values that the kernel writes identify its step, and the step's blocks."""
    results = in_jax(trace_call(function_of(case), *arguments))[: len(case.outputs)]
    wanted = [(np.zeros(x.shape), np.zeros(x.shape, bool)) for x in results]
    for step in range(launch.steps):
        ids = launch.program_ids[step, len(case.vmaps) :]
        first = first_elements(launch, arguments, step)
        mark = mark_of(case, ids, lambda n, first=first: int(first[n]))
        for operand, (numbers, written) in zip(launch.outputs, wanted, strict=False):
            block = tuple(slice(at, at + n) for at, n in blocks(operand, step))
            numbers[block], written[block] = mark, True
    for got, (numbers, written) in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(got[written].astype(float), numbers[written])


@pytest.mark.graduate
@pytest.mark.parametrize("theme", sample.some(list(THEMES), 2))
def test_a_launch_is_read_as_its_index_maps_say(theme: str) -> None:
    simulated = EXAMPLES if sample.ALL else 1
    had: Counter = Counter()
    for seed in range(EXAMPLES):
        case = drawn(theme, Random(f"{theme} {seed}"))
        print(case)  # which pytest shows if it fails
        arguments = arguments_of(case)
        launch = trace(function_of(case), *arguments)[-1]
        compare_with_maps(case, launch, arguments)
        if seed < simulated:
            compare_with_simulator(case, launch, arguments)
        had.update(features(case, launch))
    assert not set(THEMES[theme]) - set(had), "no example has it: draw more that have"
