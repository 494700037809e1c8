"""What JAX's TPU simulator does during one launch, seen through its callbacks."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import inspect
import io
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import Jaxpr, JaxprEqn, array_of, user_frame
from puzzles._launch import (
    launch_name,
    line_of,
    memory_space,
    parameter_names,
    ranges_of,
    text_of,
    visited,
)
from puzzles._tpu.seen import Seen, comparable, floating, inside, recasts, taken

WAIT_SECONDS = 5.0  # at most, and less where nothing else happens at several looks in a row
_LOOKS, _IN_VAIN = 50, 8


class Stuck(Exception):
    """A semaphore or copy that is waited for in vain, or left behind; `args[0]` says which."""


class Enough(Exception):
    """As many steps as were asked for have run."""


@dataclass(frozen=True)
class How:
    """What a TPU leaves open, and a run decides; all but the seed without compiling it again.

    seed: orders parallel axes. eager: copies are made when started, not when waited for. unwritten:
    what memory holds at first, "nan", "zero", or "padding": NaN beyond the edges of inputs alone.
    most: steps after which a launch is cut off. edges: of a longer axis the first and last ids
    only. noting: keep what is carried back to HBM. revisits: a block may come back. calls: after
    so many callbacks of one launch it is cut off.
    """

    seed: int = 0
    eager: bool = False
    unwritten: str = "nan"
    most: int | None = None
    edges: bool = False
    noting: bool = False
    revisits: bool = False
    calls: int | None = None


class Watch:
    """Follows the simulator's callbacks through one `pallas_call`.

    The functions that the simulator calls back are private, but 0.7.2 to 0.12.0 agree on their
    names and on the names of their parameters, which is all that is used here.
    """

    def __init__(
        self,
        equation: JaxprEqn,
        how: How,
        steps: Sequence[tuple[int, ...]] = (),
        runs: Mapping[str, Callable[[Callable[[], Any]], Any]] | None = None,
    ) -> None:
        """steps: the grid's, where nobody calls `here`. runs: how callbacks that wait are run."""
        self.equation = equation
        self._runs = _RUN if runs is None else runs
        self._how = how
        self.carried: list[Seen] = []  # blocks on their way back to HBM, as numbers to compare
        self.nans: list[Seen] = []  # each ref's first NaN that a line of the kernel reads
        self.failure: BaseException | None = None
        self.failed: tuple[str, dict[str, Any]] = ("", {})
        self._points = list(steps)
        self._done = 0
        self.calls = 0  # of Python by the simulator, so far
        self._buffers: list[int] = []
        self._forms: dict[int, tuple[tuple[int, ...], Any]] = {}

    @property
    def launch(self) -> str:
        """The name of the launch."""
        return launch_name(self.equation)

    @property
    def inputs(self) -> list[str]:
        """The names of the refs that are fetched from HBM."""
        grid = _grid(self.equation)
        first = grid.num_index_operands
        return parameter_names(self.equation)[first : first + grid.num_inputs]

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
        return len(self._buffers) >= len(_allocated(self.equation))

    def call(self, *args: Any, callback: Any, **_: Any) -> Any:
        """In place of JAX's `io_callback_impl`."""
        function = callback.callback_func
        given, keywords = jax.tree.unflatten(callback.in_tree, args)
        plain = function.func if isinstance(function, partial) else function
        name = getattr(plain, "__name__", "")
        later: Sequence[Any] = ()
        if name == "get":
            given, later = _until_recast(plain, given)
        if name == "_initialize_shared_memory":
            keywords = keywords | self._decided(function)
        elif name == "_allocate_buffer" and self._how.unwritten != "nan":
            given = (*given[:-1], self._zeroed(np.asarray(given[-1])))
        self.calls += 1
        called = function
        if self._how.revisits and name == "_check_for_revisiting":
            called = partial(_passed, function)
        elif name == "swap":
            called = partial(_swapped, function)
        try:
            if self._how.calls is not None and self.calls > self._how.calls:
                raise Enough
            result = held = self._runs.get(name, _at_once)(partial(called, *given, **keywords))
            if later:
                *token, whole = jax.tree.leaves(result)
                result = (*token, taken(np.asarray(whole), later))
        except BaseException as error:
            if self.failure is None:
                self.failure = error
                self.failed = (name, _named(function, given, keywords))
            raise
        if self._how.noting and name in ("get", "store"):
            self._note(name, _named(function, given, keywords), held)
        if name == "_check_for_revisiting":
            self._done += 1
        elif name == "_allocate_buffer":
            self._buffers.append(int(jax.tree.leaves(result)[-1]))
            contents = np.asarray(_named(function, given, keywords).get("val"))
            self._forms[self._buffers[-1]] = contents.shape, contents.dtype
        return [np.asarray(x) for x in jax.tree.leaves(result)]

    def _decided(self, function: Any) -> dict[str, Any]:
        params = function.keywords["interpret_params"]
        mode = "eager" if self._how.eager else "on_wait"
        contents = "nan" if self._how.unwritten == "nan" else "zero"
        chosen = dict(uninitialized_memory=contents, dma_execution_mode=mode)
        return {"interpret_params": dataclasses.replace(params, **chosen)}

    def _zeroed(self, value: np.ndarray) -> np.ndarray:
        """What is allocated next, with zeros where the simulator knows of no contents."""
        names, grid = _allocated(self.equation), _grid(self.equation)
        position = len(self._buffers)
        name = names[position] if position < len(names) else None
        if position < grid.num_inputs:  # with padding to whole blocks
            if self._how.unwritten == "padding":
                return value
            zeros = np.zeros_like(value)
            inside = tuple(map(slice, _shapes(self.equation)[str(name)]))
            zeros[inside] = value[inside]
            return zeros
        scalars = parameter_names(self.equation)[: grid.num_index_operands]
        return value if name in scalars else np.zeros_like(value)

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
            shape = _shapes(self.equation).get(operand or "")
            contents = value if shape is None else inside(value, transforms, shape)
            self.carried.append(Seen(operand, self.step, comparable(contents)))

    def name_of(self, buffer: int | None) -> str | None:
        """The kernel's parameter that a buffer of the simulator belongs to."""
        if buffer not in self._buffers:
            return None
        allocated = _allocated(self.equation)
        position = self._buffers.index(buffer)
        if position < len(allocated):
            return allocated[position]
        form = self._forms[buffer]
        names = {name for name, aval in _scoped(self.equation.params["jaxpr"])
                 if (tuple(aval.shape), aval.dtype) == form}  # fmt: skip
        return names.pop() if len(names) == 1 else None

    def line(self) -> str | None:
        """The learner's line that failed, stripped."""
        return text_of(self.failed[1].get("source_info"))[:100] or None

    def in_index_map(self) -> bool:
        """True if what failed belongs to an index map, not to the kernel."""
        info = self.failed[1].get("source_info")
        if info is None:
            return False
        maps = (m.index_map_jaxpr.jaxpr for m in _grid(self.equation).block_mappings)
        return any(e.source_info is info for m in maps for e in m.eqns)


def _shapes(equation: JaxprEqn) -> dict[str, tuple[int, ...]]:
    """The arrays that the kernel's refs are blocks of."""
    grid = _grid(equation)
    names = parameter_names(equation)[grid.num_index_operands :]
    mappings = zip(names, grid.block_mappings, strict=False)
    return {name: tuple(array_of(one).shape) for name, one in mappings}


def _until_recast(plain: Any, given: tuple) -> tuple[tuple, Sequence[Any]]:
    """A read up to the first `ref.reshape` or `bitcast`, which the simulator does not know."""
    at = _parameters(plain).index("transforms")
    each = tuple(given[at]) if at < len(given) else ()
    first = next((n for n, one in enumerate(each) if recasts(one)), len(each))
    if first == len(each):
        return given, ()
    return (*given[:at], each[:first], *given[at + 1 :]), each[first:]


def _passed(function: Any, *given: Any, **keywords: Any) -> Any:
    """What a check returns that finds nothing."""
    return _named(function, given, keywords).get("token", ())


def _swapped(function: Any, *given: Any, **keywords: Any) -> Any:
    """What a store gives back: one with a mask is made in pieces, as many rows as its least axis.

    The simulator takes what a mask has in further rows for a place outside.
    """
    plain = function.func if isinstance(function, partial) else function
    places = [_parameters(plain).index(name) for name in ("transforms", "val", "mask")]
    transforms, value, mask = (given[place] for place in places)
    indexer: Any = transforms[0] if len(transforms) == 1 else None
    first = getattr(indexer, "indices", (None,))[:1]
    if mask is None or not first or not hasattr(first[0], "stride") or not _lies_inside(indexer):
        return function(*given, **keywords)
    rows: Any = first[0]
    value, mask = np.asarray(value), np.asarray(mask)
    token: list[Any] = []
    old: list[np.ndarray] = []
    step = min(value.shape)
    for n in range(0, len(value), step):
        part = value[n : n + step]
        here = dataclasses.replace(rows, start=rows.start + n * rows.stride, size=len(part))
        there = dataclasses.replace(indexer, indices=(here, *indexer.indices[1:]))
        put = dict(zip(places, ((there,), part, mask[n : n + step]), strict=True))
        made = function(*(put.get(n, one) for n, one in enumerate(given)), **keywords)
        *token, piece = jax.tree.leaves(made)
        old.append(np.asarray(piece))
    return (*token, np.concatenate(old))


def _lies_inside(indexer: Any) -> bool:
    """Whether an index is within the shape that it is of."""
    ranges = ranges_of([indexer])
    pairs = zip(ranges or (), indexer.shape, strict=False)
    return ranges is not None and all(a >= 0 and b <= n for (a, b, _), n in pairs)


def _at_once(run: Callable[[], Any]) -> Any:
    return run()


def in_a_thread(run: Callable[[], Any]) -> tuple[threading.Thread, queue.SimpleQueue]:
    """The thread that runs it, and the queue that gets what it returned and what it raised."""
    done: queue.SimpleQueue = queue.SimpleQueue()

    def begin() -> None:
        try:
            done.put((run(), None))
        except BaseException as error:
            done.put((None, error))

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    return thread, done


def _in_time(rule: str, wait: Callable[[], Any]) -> Any:
    """What a wait returns; with one core, one that only waits waits for what never comes.

    Its thread is ended: the simulator of 0.7 waits in a loop without a pause.
    """
    thread, done = in_a_thread(wait)
    in_vain = 0
    for _ in range(_LOOKS):
        with contextlib.suppress(queue.Empty):
            result, error = done.get(timeout=WAIT_SECONDS / _LOOKS)
            if error is not None:
                raise error
            return result
        in_vain = in_vain + 1 if _only_waits(thread) else 0
        if in_vain == _IN_VAIN:
            break
    ident, end = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, end)
    raise Stuck(rule)


def _only_waits(thread: threading.Thread) -> bool:
    """Whether it is in the semaphore's own `wait`, and makes no copy that is due."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and "jax" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "wait"


def _silently(validate: Callable[[], Any]) -> Any:
    """What the end of a launch returns; the simulator prints which semaphores are not at zero."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = validate()
    if printed.getvalue():
        raise Stuck("semaphore left signalled")
    return result


_RUN: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "dma_wait": partial(_in_time, "wait never ends"),
    "semaphore_wait": partial(_in_time, "semaphore never signalled"),
    "_validate": _silently,
}


def given_to(callback: Any, args: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """The name of the function that a callback calls, and what it is given by name."""
    function = callback.callback_func
    plain = function.func if isinstance(function, partial) else function
    given, keywords = jax.tree.unflatten(callback.in_tree, args)
    return getattr(plain, "__name__", ""), _named(function, given, keywords)


def _named(function: Any, args: tuple, keywords: dict[str, Any]) -> dict[str, Any]:
    """What a callback is given, by the names of its parameters."""
    if isinstance(function, partial):
        args, keywords = (*function.args, *args), {**function.keywords, **keywords}
        function = function.func
    return {**dict(zip(_parameters(function), args, strict=False)), **keywords}


@lru_cache(maxsize=64)
def _parameters(function: Callable) -> tuple[str, ...]:
    """The names of a function's parameters: to read them takes longer than most callbacks do."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def source_line(info: Any) -> tuple[str, int] | None:
    """File and line outside JAX at which an equation was traced, from its `source_info`."""
    frame = user_frame(info)
    return None if frame is None else (frame.file_name, frame.start_line)


def _grid(equation: JaxprEqn) -> Any:
    return equation.params["grid_mapping"]


def _scoped(jaxpr: Jaxpr) -> Iterator[tuple[str, Any]]:
    """The names that `run_scoped` gives to what it allocates, and their avals; some come twice."""
    for _, path in visited(jaxpr):
        for inner in (e.params["jaxpr"] for e in path if e.primitive.name == "run_scoped"):
            names = inner.debug_info.arg_names or ()
            if len(names) == len(inner.invars):
                yield from zip(map(str, names), (v.aval for v in inner.invars), strict=True)


def _allocated(equation: JaxprEqn) -> list[str]:
    """Parameter names in the order in which the simulator allocates buffers (on both versions)."""
    grid, names = _grid(equation), parameter_names(equation)
    scalars, inputs = grid.num_index_operands, grid.num_inputs
    aliased = {out for _, out in equation.params["input_output_aliases"]}
    outputs = range(scalars + inputs, scalars + inputs + grid.num_outputs)
    order = [*range(scalars, scalars + inputs)]
    order += [n for k, n in enumerate(outputs) if k not in aliased]
    order += range(scalars)
    order += [
        n
        for n, ref in enumerate(equation.params["jaxpr"].invars)
        if n >= scalars and memory_space(ref.aval) not in ("any", "hbm", "semaphore_mem")
    ]
    return [names[n] for n in order]
