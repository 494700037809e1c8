"""Functions for learners: show draws launches, receipt counts their costs, sweep compares choices,
and plot draws numbers.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from puzzles import _draw, _simulator
from puzzles._check import described, display, find_for, our_bug, say
from puzzles._compile import CHIPS, NoEstimateError, lowered
from puzzles._compile import estimated_cycles as cycles_by_libtpu
from puzzles._judge import Code, is_function, message_of, wire_receipt
from puzzles._ladders import UnknownPuzzleError
from puzzles._launch import (
    Launch,
    Traced,
    faults,
    nothing_launched,
    timeline,
    trace,
    trace_call,
)
from puzzles._program import UnreadableError, over_mesh
from puzzles._puzzle import Puzzle
from puzzles._receipt import (
    columns,
    figures,
    receipt_html,
    receipt_text,
    roofline_figures,
    seconds_words,
)
from puzzles._rules import sentence

_IN_A_ROW, _ROWS = 10, 5  # calls in a row before waiting; number of rows


def show(fn: Callable, *args: object) -> None:
    """Draw the blocks that each grid step of `fn(*args)` reads and writes, with fetches and reuse.

    Copies that a kernel starts by hand are drawn with the waits and the computation that they
    overlap. Copies between devices are arrows between lanes: only for them the kernel runs, in
    NumPy. Without arguments, a puzzle's function is drawn on the puzzle's first case. Arguments may
    be `jax.ShapeDtypeStruct(shape, dtype)`.
    """
    with _showing_errors("drawing this"):
        launches, traced = _looked_at(fn, args, "show")
        hunt = _hunted(fn)
        walks = list(_walks(launches, traced, hunt))
        text, page = "\n\n".join(map(_draw.walk_text, walks)), _draw.walk_page(walks)
        if traced and _simulator.on_mesh(traced):
            lanes, picture = _lanes(traced, hunt)
            text, page = f"{lanes}\n\n{text}", f"{picture}{page}"
        display(text, page)


def _hunted(fn: Any) -> bool:
    """True for the answer to a puzzle in which a learner hunts a bug."""
    try:
        return find_for(fn).starter is not None
    except UnknownPuzzleError:
        return False


def _walks(
    launches: Sequence[Launch], traced: Traced | None, hunt: bool
) -> Iterator[dict[str, Any]]:
    """Yield the data of each picture; if data decide the copies of a launch, from a run."""
    read = map(timeline, launches)
    unclear = [bool(copies and copies.unknown) for copies in read]
    meshed = traced and _simulator.on_mesh(traced)
    ran = _simulator.timelines_of_run(traced) if traced and any(unclear) and not meshed else {}
    for launch, doubt in zip(launches, unclear, strict=True):
        data = _draw.walk_data(launch, ran.get(launch) if doubt else None, hunt)
        yield data | {"copies": None} if meshed and doubt else data  # the lanes show them


def _lanes(traced: Traced, hunt: bool) -> tuple[str, str]:
    """The copies between devices up to the first hazard, as text and as a picture."""
    hazard = ""
    try:
        wire = _simulator.run_devices(traced, _simulator.Semantics()).wire
    except _simulator.HazardError as error:
        wire, hazard = error.wire, error.finding.says
    words = f"<p>{_draw.code(hazard)}</p>" * bool(hazard)
    words = _draw.fold(sentence("the_remedy"), words) if hazard and hunt else words
    lanes = f"{hazard}\n{_draw.lanes_text(wire)}".strip()
    return lanes, f"{words}{_draw.lanes_picture(wire)}"


def receipt(fn: Callable, *args: object, chip: str = "v5e") -> None:
    """Show the costs of the launches of `fn(*args)` on `chip` (v4, v5e, v5p, v6e or 7x).

    Without arguments, a puzzle's function is counted on the puzzle's first case. Arguments may be
    `jax.ShapeDtypeStruct`s of production's sizes.
    """
    with _showing_errors("counting this"):
        _require_chip(chip)
        launches, traced = _looked_at(fn, args, "receipt")
        refused = [finding.words for finding in lowered(traced)] if traced else []
        text = receipt_text(tuple(launches), chip, limits=True, refused=refused)
        if wire := wire_receipt(traced, chip) if traced else "":
            text += f"\n{wire}"
        display(text, receipt_html(text))


def estimated_cycles(fn: Callable, *args: object, chip: str = "v5e") -> int | None:
    """Cycles of `fn(*args)` on a core of `chip` (v5e, v5p or v6e) as libtpu estimates them.

    None if there is no estimate: libtpu is not installed, or the kernel's time depends on data.
    Arguments may be shapes. Use it to rank kernels: it is optimistic about HBM. Takes about 10 s.
    """
    try:
        return cycles_by_libtpu(trace_call(fn, *args), chip)
    except NoEstimateError:
        return None


def plot(values: Sequence[float], title: str = "") -> None:
    """Draw a sequence of numbers as a line. Raises ValueError for an empty sequence."""
    if not len(values):
        raise ValueError("nothing to plot: the sequence is empty")
    numbers = [float(value) for value in values]
    words = " ".join([f"{title}:"] * bool(title) + [f"{value:.4g}" for value in numbers])
    display(words, _draw.plot_svg(numbers, title))


def sweep(
    fn: Callable, choices: Sequence[Mapping[str, int]], *args: Any, chip: str = "v5e"
) -> None:
    """Print the costs of `fn(*args, **choice)` for each choice.

    On a TPU, its time is measured: after a call that compiles, ten calls start in a row before the
    wait for the last. Elsewhere it is the receipt's estimate; the last line names the source of the
    time. Arguments may be shapes.
    """
    with _showing_errors("comparing these"):
        _require_chip(chip)
        if not choices or not all(choices):
            raise UnreadableError(sentence("nothing_to_sweep"))
        measured, rows = jax.default_backend() == "tpu", []
        try:
            for choice in choices:
                row, _ = _costs(fn, choice, args, chip)
                if measured:
                    row["time"] = seconds_words(_measured(functools.partial(fn, **choice), args))
                rows.append(row)
        finally:  # a choice that raises is the last
            receipt = f"time on a {chip}, by the receipt (nothing was measured)"
            source = "time measured on this TPU" if measured else receipt
            if rows:
                page = f"{_draw.costs_table(rows)}{_draw.paragraph(source)}"
                display(f"{_lines(rows)}\n{source}", f"<style>{_draw.style()}</style>{page}")


def roofline(
    fn: Callable, sizes: Mapping[str, Sequence[int]], *args: Any, chip: str = "v5e"
) -> None:
    """Draw the costs of `fn(*args, **sizes)` under the roofline of `chip`, with sliders.

    sizes: the values of each keyword to choose from; every combination is traced. The times are the
    receipt's, also on a TPU: nothing runs. Arguments may be shapes.
    """
    with _showing_errors("drawing this"):
        _require_chip(chip)
        products = itertools.product(*sizes.values())
        choices = [dict(zip(sizes, values, strict=True)) for values in products]
        if not sizes or not choices:
            raise UnreadableError(sentence("nothing_to_sweep"))
        rows, places, says = [], [], []
        for choice in choices:
            row, launches = _costs(fn, choice, args, chip)
            intensity, rate, words = roofline_figures(launches, CHIPS[chip])
            rows.append(row)
            places.append((intensity, rate))
            says.append(words)
        display(_lines(rows), _draw.roofline_page(sizes, rows, places, says, CHIPS[chip]))


def _lines(rows: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(columns([tuple(rows[0]), *(tuple(row.values()) for row in rows)]))


def _require_chip(chip: str) -> None:
    if chip not in CHIPS:
        raise UnreadableError(f"no chip is called {chip!r}; there are {', '.join(CHIPS)}")


@contextlib.contextmanager
def _showing_errors(activity: str) -> Iterator[None]:
    """Context manager: show an exception as a sentence instead of raising it."""
    try:
        yield
    except (UnreadableError, _simulator.SimulationError) as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted: nothing was shown; run the cell again.")
    except Exception:
        say(our_bug(activity))


def _looked_at(fn: Any, args: tuple, caller: str) -> tuple[list[Launch], Traced | None]:
    """The launches of a learner's callable, and its trace; None if the answer is a launch.

    caller: the function that the learner has called, "show" or "receipt".
    Raises UnreadableError, with the reason and the remedy, if nothing is launched.
    """
    if not callable(fn) or isinstance(fn, type):
        raise UnreadableError(sentence("no_launch_to_look_at", got=described(fn), asked=caller))
    puzzle, why = None, ""
    if is_function(fn):  # methods and callable objects answer no puzzle
        try:
            puzzle = find_for(fn)
        except UnknownPuzzleError as error:
            why = str(error)
    if puzzle is None and not args:
        try:
            inspect.signature(fn).bind()
        except ValueError:
            pass  # it has no signature
        except TypeError:
            near = f"{why} " if "did you mean" in why else ""
            ask = f"To see a function that is no puzzle, pass its arguments: {caller}(fn, x, ...)"
            raise UnreadableError(why if "is a kernel" in why else f"{near}{ask}") from None
    observe = None
    if puzzle is not None and not args:
        args, observe = puzzle.arguments(0), puzzle.observe
        if puzzle.axes:
            fn, observe = puzzle.judged(fn, puzzle.axes, over_mesh), None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                launches, traced = _launches(puzzle, fn, args)
            except Exception:
                if observe is None:
                    raise
                # The arguments may be for `observe(fn)`, which may take others than `fn`.
                launches, traced = _launches(puzzle, observe(fn), args)
    except UnreadableError:
        raise
    except Exception as error:
        left = None if puzzle is None else Code(puzzle, fn).gap
        if left:
            raise UnreadableError(sentence("no_launch_yet", name=left[0])) from None
        raise UnreadableError(message_of(error)) from None
    if not launches:
        raise UnreadableError(nothing_launched(traced) if traced else "it configures no launch")
    return launches, traced


def _launches(
    puzzle: Puzzle | None, fn: Callable, args: tuple
) -> tuple[list[Launch], Traced | None]:
    if puzzle is not None and puzzle.launches is not None:  # its answer configures a launch
        answer = fn(*args)
        if puzzle.accepts is not None:
            try:
                puzzle.accepts(answer, *args)
            except AssertionError as error:
                raise UnreadableError(str(error)) from None
        return list(puzzle.launches(answer, *args)), None
    traced = trace_call(fn, *args)
    return list(traced.launches), traced


def _costs(
    fn: Callable, choice: Mapping[str, int], args: tuple, chip: str
) -> tuple[dict[str, str], tuple[Launch, ...]]:
    """A row of values, figures and faults, and the launches; UnreadableError if `fn` raises."""
    try:
        launches = trace(functools.partial(fn, **choice), *args)
    except UnreadableError:
        raise
    except Exception as error:
        raise UnreadableError(message_of(error)) from None
    wrong = dict.fromkeys(fault.kind for launch in launches for fault in faults(launch))
    row = {name: str(value) for name, value in choice.items()} | figures(launches, CHIPS[chip])
    return row | {"": " ".join(f"✗ {kind}" for kind in wrong)}, launches


def _measured(chosen: Callable, args: tuple) -> float:
    """Seconds of a call: the median of five rows of ten calls."""
    leaves = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), args)
    run, taken = jax.jit(chosen), []
    jax.block_until_ready(run(*leaves))  # compiles
    for _ in range(_ROWS):
        start = time.perf_counter()
        jax.block_until_ready([run(*leaves) for _ in range(_IN_A_ROW)][-1])
        taken.append((time.perf_counter() - start) / _IN_A_ROW)
    return statistics.median(taken)
