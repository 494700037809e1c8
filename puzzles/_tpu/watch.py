"""What JAX's TPU simulator does during one launch, seen through its callbacks."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import JaxprEqn, array_of
from puzzles._launch import (
    bytes_of,
    launch_name,
    line_of,
    memory_space,
    parameter_names,
    ranges_of,
    recasts,
    taken,
)
from puzzles._tpu.hazards import Place

End = tuple[int, int]  # a device, and its semaphore


class Stuck(Exception):
    """A semaphore or copy that is waited for in vain, or left behind; `args[0]` says which."""


class Outside(Exception):
    """An access to where a buffer has nothing: `args` are its place, and whether it is a copy."""


class Enough(Exception):
    """As many steps as were asked for have run."""


@dataclass(frozen=True)
class How:
    """What a TPU leaves open, and a run decides; all but the seed without compiling it again.

    seed: orders parallel axes. eager: copies are made when started, not when waited for. unwritten:
    what memory holds at first, "nan", "zero", or "padding": NaN beyond the edges of inputs alone.
    most: steps after which a launch is cut off. edges: of a longer axis the first and last ids
    only. calls: after so many callbacks of one launch it is cut off.
    """

    seed: int = 0
    eager: bool = False
    unwritten: str = "nan"
    most: int | None = None
    edges: bool = False
    calls: int | None = None


@dataclass(frozen=True)
class Buffer:
    """What the simulator allocated: its name is None where the kernel allocates it for itself."""

    name: str | None
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Seen:
    """A ref at a grid step: `what` is its contents, or the line that read them."""

    operand: str | None
    step: tuple[int, ...] | None
    what: Any


class Watch:
    """Follows the simulator's callbacks through one `pallas_call`.

    The functions that the simulator calls back are private, but 0.7.2 to 0.12.0 agree on their
    names and on the names of their parameters, which is all that is used here.
    """

    def __init__(
        self, equation: JaxprEqn, how: How, steps: Sequence[tuple[int, ...]] | None = None
    ) -> None:
        """steps: the grid's, of one of several devices, where nobody calls `here`."""
        names, grid = parameter_names(equation), equation.params["grid_mapping"]
        first = grid.num_index_operands
        self.launch = launch_name(equation)
        self.scalars = names[:first]  # the refs that are prefetched
        self.inputs = names[first : first + grid.num_inputs]
        mappings = zip(names[first:], grid.block_mappings, strict=False)
        # The arrays that refs are blocks of.
        self._shapes = {name: tuple(array_of(one).shape) for name, one in mappings}
        self._allocated = _allocated(equation)
        self._alone = steps is None
        self._how = how
        self.carried: list[Seen] = []  # blocks on their way back to HBM, as numbers to compare
        self.nans: list[Seen] = []  # each ref's first NaN that a line of the kernel reads
        self.failure: BaseException | None = None
        self.failed: Mapping[str, Any] = {}  # what the callback was given that did
        self._points = list(steps or ())
        self._done = 0
        self.calls = 0  # of Python by the simulator, so far
        self._buffers: dict[int, Buffer] = {}
        self._held: Counter[End] = Counter()  # what semaphores are at once all copies have ended
        self._signalled: set[End] = set()  # those that tell of no copies

    def here(self, *given: Any) -> Any:
        """The simulator's `grid_point_recorder`; 0.10 threads a token through it, 0.7 does not."""
        *token, point, _ = given
        if self._how.most is not None and len(self._points) >= self._how.most:
            raise Enough
        self._points.append(tuple(int(i) for i in np.asarray(point)))
        return token[0] if token else ()

    @property
    def step(self) -> tuple[int, ...] | None:
        """The program ids of the step in progress."""
        return self._points[self._done] if self._done < len(self._points) else None

    @property
    def launched(self) -> bool:
        """Whether the kernel's parameters have their buffers."""
        return len(self._buffers) >= len(self._allocated)

    @property
    def _next(self) -> str | None:
        """The parameter whose buffer is allocated next; None for what the kernel allocates."""
        return dict(enumerate(self._allocated)).get(len(self._buffers))

    def call(self, *args: Any, callback: Any, **_: Any) -> Any:
        """In place of JAX's `io_callback_impl`."""
        function, bound = _bound(callback, args)
        name, told = getattr(function, "__name__", ""), bound.arguments
        later: Sequence[Any] = ()
        if name == "get":
            told["transforms"], later = _until_recast(told.get("transforms", ()))
        elif name == "_initialize_shared_memory":
            told["interpret_params"] = self._decided(told["interpret_params"])
        elif name == "_allocate_buffer" and self._how.unwritten != "nan":
            told["val"] = self._zeroed(np.asarray(told["val"]))
        self.calls += 1
        make = partial(function, *bound.args, **bound.kwargs)
        if name == "swap":
            make = partial(_swapped, function, told)
        elif name in ("_check_for_revisiting", "_validate"):  # blocks and `_account` tell
            make = partial(told.get, "token", ())
        try:
            if self._how.calls is not None and self.calls > self._how.calls:
                raise Enough
            self._inside(name, told)
            if self._alone:
                self._account(name, told)
            result = held = make()
            if later:
                *token, whole = jax.tree.leaves(result)
                result = (*token, taken(np.asarray(whole), later))
        except BaseException as error:
            if self.failure is None:
                self.failure, self.failed = error, told
            raise
        if name in ("get", "store"):
            self._note(name, told, held)
        if name == "_check_for_revisiting":
            self._done += 1
        elif name == "_allocate_buffer":
            contents = np.asarray(told["val"])
            buffer = Buffer(self._next, contents.shape, contents.dtype)
            self._buffers[int(jax.tree.leaves(result)[-1])] = buffer
        return [np.asarray(x) for x in jax.tree.leaves(result)]

    def _inside(self, name: str, given: dict[str, Any]) -> None:
        """Raises `Outside` where a line of the kernel reads, writes or copies what is not there."""
        ends = _ENDS.get(name, ()) if given.get("source_info") is not None else ()
        for buffer, transforms in ends:
            at = self._buffers.get(int(given[buffer]))
            place = Place(at, ranges_of(given[transforms] or ()))
            if at is not None and place.beyond:
                raise Outside(place, name == "dma_start")

    def brings(self, name: str, given: dict[str, Any]) -> dict[End, int]:
        """What a copy or a signal brings to semaphores; of a copy, its target comes last."""
        if name not in ("semaphore_signal", "dma_start"):
            return {}
        here = int(given["device_id"])
        there = given["target_device_id" if name == "semaphore_signal" else "dst_device_id"]
        there = here if there is None else int(there)
        if name == "semaphore_signal":
            return {(there, int(given["sem_id"])): int(given["inc"])}
        source = self._buffers[int(given["src_id"])]
        size = bytes_of(source, given["src_transforms"]) or 0
        brings: Counter[End] = Counter()
        if given["src_sem_id"] is not None:
            brings[here, int(given["src_sem_id"])] = size
        brings[there, int(given["dst_sem_id"])] += size
        return brings

    def _account(self, name: str, given: dict[str, Any]) -> None:
        """Raises `Stuck` at a wait for more than was started, or signalled: it would never end."""
        brings = self.brings(name, given)
        self._held.update(brings)
        if name == "semaphore_signal":
            self._signalled.update(brings)
        if name in WAITS:
            rule, wanted = WAITS[name]
            end = int(given["device_id"]), int(given["sem_id"])
            self._held[end] -= int(given[wanted])
            if self._held[end] < 0:
                raise Stuck(rule)
        elif name == "_validate" and any(self._held[end] for end in self._signalled):
            raise Stuck("semaphore left signalled")

    def _decided(self, params: Any) -> Any:
        mode = "eager" if self._how.eager else "on_wait"
        contents = "nan" if self._how.unwritten == "nan" else "zero"
        return dataclasses.replace(params, uninitialized_memory=contents, dma_execution_mode=mode)

    def _zeroed(self, value: np.ndarray) -> np.ndarray:
        """What is allocated next, with zeros where the simulator knows of no contents."""
        name, zeros = self._next, np.zeros_like(value)
        if len(self._buffers) >= len(self.inputs):  # these come first
            return value if name in self.scalars else zeros
        if self._how.unwritten == "padding":
            return value
        inside = tuple(map(slice, self._shapes[str(name)]))  # it is padded to whole blocks
        zeros[inside] = value[inside]
        return zeros

    def _note(self, name: str, given: dict[str, Any], result: Any) -> None:
        info, transforms = given.get("source_info"), given.get("transforms") or ()
        operand = self.name_of(int(given["buffer_id"]))
        if name == "get" and info is not None:
            value = np.asarray(jax.tree.leaves(result)[-1])
            if floating(value) and np.isnan(value).any():
                if all(operand != seen.operand for seen in self.nans):
                    self.nans.append(Seen(operand, self.step, line_of(info)))
        elif name == "store" and info is None and transforms:
            value = np.asarray(given["val"])
            shape = self._shapes.get(operand or "")
            contents = value if shape is None else inside(value, transforms, shape)
            self.carried.append(Seen(operand, self.step, comparable(contents)))

    def name_of(self, buffer: int | None) -> str | None:
        """The kernel's parameter that a buffer of the simulator belongs to."""
        known = None if buffer is None else self._buffers.get(buffer)
        return None if known is None else known.name


def _until_recast(each: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """What is read before the first `ref.reshape` or `bitcast`, which the simulator does not know,
    and the rest."""
    first = next((n for n, one in enumerate(each) if recasts(one)), len(each))
    return each[:first], each[first:]


def _swapped(function: Callable, given: Mapping[str, Any]) -> Any:
    """What a store gives back: one with a mask is made in pieces, as many rows as its least axis.

    The simulator takes what a mask has in further rows for a place outside.
    """
    transforms, value, mask = (given[name] for name in ("transforms", "val", "mask"))
    indices = getattr(transforms[0], "indices", ()) if len(transforms) == 1 else ()
    if mask is None or not indices or not hasattr(indices[0], "stride"):
        return function(**given)
    rows, *others = indices
    value, mask = np.asarray(value), np.asarray(mask)
    token: list[Any] = []
    old: list[np.ndarray] = []
    step = min(value.shape)
    for n in range(0, len(value), step):
        part = value[n : n + step]
        here = dataclasses.replace(rows, start=rows.start + n * rows.stride, size=len(part))
        there = dataclasses.replace(transforms[0], indices=(here, *others))
        put = dict(transforms=(there,), val=part, mask=mask[n : n + step])
        made = function(**{**given, **put})
        *token, piece = jax.tree.leaves(made)
        old.append(np.asarray(piece))
    return (*token, np.concatenate(old))


# The buffers that a callback names, and the transforms that name parts of them.
_ENDS: dict[str, tuple[tuple[str, str], ...]] = dict.fromkeys(
    ("get", "store", "swap"), (("buffer_id", "transforms"),)
) | {"dma_start": (("src_id", "src_transforms"), ("dst_id", "dst_transforms"))}
# The rule that a wait in vain breaks, and what says how much it waits for.
WAITS = {
    "dma_wait": ("wait never ends", "size"),
    "semaphore_wait": ("semaphore never signalled", "value"),
}


def given_to(callback: Any, args: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The name of the function that a callback calls, and what it is given by name."""
    function, bound = _bound(callback, args)
    return getattr(function, "__name__", ""), bound.arguments


def _bound(callback: Any, args: Sequence[Any]) -> tuple[Callable, inspect.BoundArguments]:
    """The function that a callback calls, and what it is given."""
    function = callback.callback_func
    given, keywords = jax.tree.unflatten(callback.in_tree, args)
    if isinstance(function, partial):
        given, keywords = (*function.args, *given), {**function.keywords, **keywords}
        function = function.func
    return function, _signature(function).bind(*given, **keywords)


# To read a signature takes longer than most callbacks do.
_signature = lru_cache(maxsize=64)(inspect.signature)


def _allocated(equation: JaxprEqn) -> list[str]:
    """Parameter names in the order in which the simulator allocates buffers (on both versions)."""
    grid, names = equation.params["grid_mapping"], parameter_names(equation)
    scalars, inputs = grid.num_index_operands, grid.num_inputs
    aliased = {out for _, out in equation.params["input_output_aliases"]}
    outputs = range(scalars + inputs, scalars + inputs + grid.num_outputs)
    order = [*range(scalars, scalars + inputs)]
    order += [n for k, n in enumerate(outputs) if k not in aliased]
    order += range(scalars)
    refs, elsewhere = equation.params["jaxpr"].invars, ("any", "hbm", "semaphore_mem")
    held = [n for n, ref in enumerate(refs) if memory_space(ref.aval) not in elsewhere]
    return [names[n] for n in (*order, *(n for n in held if n >= scalars))]


def floating(value: np.ndarray) -> bool:
    """Whether it holds floats, narrow ones included."""
    return jax.numpy.issubdtype(value.dtype, jax.numpy.floating)


def comparable(value: np.ndarray) -> int:
    """A number that equal arrays share, NaNs of any kind included."""
    if floating(value):
        value = value.astype(np.float32)
        value = np.where(np.isnan(value), np.float32(np.nan), value)
    return hash((value.shape, value.tobytes()))


def inside(value: np.ndarray, transforms: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The part of a block that does not hang over the edge of its array."""
    ranges = ranges_of(transforms)
    if ranges is None or len(ranges) != len(shape):
        return value
    kept = [max(0, n - a) for (a, _, index), n in zip(ranges, shape, strict=True) if not index]
    return value[tuple(map(slice, kept))] if len(kept) == value.ndim else value
