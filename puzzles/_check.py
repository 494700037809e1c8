"""Functions for learners: check, checked, hint, solution, progress. Only these print."""

from __future__ import annotations

import dataclasses
import html
import math
import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from puzzles import _jax, _progress, _regions
from puzzles._compile import Compiler, CompilerMissingError
from puzzles._draw import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    VERMILLION,
    bar,
    block_squares,
    card,
    fold,
    lanes_picture,
    paragraph,
    source,
    strip_page,
    track,
)
from puzzles._judge import Verdict, is_function, judge, unwrap
from puzzles._ladders import (
    UnknownPuzzleError,
    find,
    ladder_module,
    ladders,
    numbered_heading,
    on_main_road,
)
from puzzles._launch import trace_call
from puzzles._program import over_mesh
from puzzles._puzzle import Puzzle
from puzzles._receipt import receipt_html
from puzzles._rules import RULES, address, sentence
from puzzles._simulator import HazardError, Semantics, run_devices

_hinted: dict[str, int] = {}
_passed: dict[str, Callable] = {}
_just_shown: Verdict | None = None


class NotPassedError(AssertionError):
    """Raised by `check` under PUZZLES_STRICT=1 instead of returning anything but a pass."""


class _Shown(Verdict):
    """A verdict of `check`, which a notebook shows as HTML."""

    def _ipython_display_(self) -> None:
        """Show the verdict, unless `check` has just shown it as the last line of the cell."""
        global _just_shown
        if _just_shown is self:
            _just_shown = None
            return
        display(str(self), verdict_page(self))


def check(fn: Callable, seed: int | None = None) -> Verdict | None:
    """Judge a learner's function by the puzzle of its name and show the verdict.

    seed: the seed of the data, which the verdict on a random case names.

    Never raises, unless PUZZLES_STRICT=1: then anything but a pass raises NotPassedError.
    Returns None if there is nothing to judge, after showing a sentence with the reason.
    """
    global _just_shown
    try:
        verdict = _verdict_on(fn, seed)
    except (UnknownPuzzleError, CompilerMissingError) as error:
        return _nothing_judged(str(error))
    except KeyboardInterrupt:
        return _nothing_judged(sentence("interrupted"))
    except Exception:
        return _nothing_judged(our_bug("the checker itself"))
    if verdict.passed:
        _passed[verdict.puzzle] = fn
        first = not _progress.solved()
        unsaved = _progress.add(verdict.puzzle)
        lines = _milestone(verdict.puzzle, first), _progress_line(verdict.puzzle), unsaved
        verdict = dataclasses.replace(verdict, notes=(*verdict.notes, *filter(None, lines)))
    verdict = _just_shown = _Shown(**vars(verdict))
    display(str(verdict), verdict_page(verdict))
    if not verdict.passed and _strict():
        raise NotPassedError(str(verdict))
    return verdict


def verdict_page(verdict: Verdict) -> str:
    """The HTML of a verdict: a card, with the learner's own launch or devices below it."""
    colour = GREEN if verdict.passed else GREY if verdict.stage == "unsolved" else VERMILLION
    words = filter(None, (verdict.first, verdict.diagnosis, verdict.says, verdict.receipt))
    parts = [paragraph(text) for text in words]
    if verdict.picture:
        legend = " (. right, x wrong)", ", right and wrong"
        parts.append(block_squares(verdict.picture.replace(*legend)))
    drawn = {_progress_line(verdict.puzzle)} if verdict.passed else ()  # by `_ahead`
    parts += (paragraph(text, FAINT) for text in verdict.notes if text not in drawn)
    if verdict.rule and RULES[verdict.rule].story:
        link = f'<a href="{address(verdict.rule)}" target="_blank" style="color:inherit">'
        parts.append(
            f'<div style="margin-top:4px;{FAINT}">Read more: {link}{verdict.rule}</a></div>'
        )
    if verdict.passed:
        parts += [_ahead(verdict.puzzle), _other_answers(verdict.puzzle)]
    if verdict.details:
        parts.append(fold("what it costs", receipt_html(verdict.details)))
    if verdict.wire is None:
        parts.append(strip_page(verdict.launches, moving=verdict.passed))
    elif verdict.wire.transfers:
        parts += [paragraph(sentence("devices_drawn"), FAINT), lanes_picture(verdict.wire)]
    return card(colour, verdict.headline, parts)


def _ahead(name: str) -> str:
    """The ladder as a row of dots, and a link to the next puzzle."""
    names, solved = _siblings(name), _progress.solved()
    left = _left_after(name)
    link = _next(left, _link).removesuffix(".")
    passed = [puzzle in solved for puzzle in names]
    dots, count = track(passed, names.index(name)), f"{sum(passed)}/{len(names)}"
    return f'<div style="margin-top:6px">{dots} {count}.{link}</div>'


def _other_answers(name: str) -> str:
    """Up to three alternatives of the puzzle's record, folded; "" if there are none."""
    puzzle = find(name)
    shown = [
        paragraph(f"A solution that {answer.name}:")
        + source(_solution_of(answer.apply(puzzle.text)))
        for answer in puzzle.alternatives[:3]
    ]
    return fold(sentence("other_answers", count=len(shown)), "".join(shown)) if shown else ""


def _solution_of(text: str) -> str:
    """The cells of a puzzle's text that hold a gap, filled in."""
    cells = [body for _, body in _regions.split_cells(text) if _regions.BEGIN in body]
    return "\n".join(_regions.without_marks(cell).strip() for cell in cells)


def _milestone(name: str, first: bool) -> str:
    """A sentence if this pass is the first, or completes a part or a ladder; otherwise ""."""
    module, names = ladder_module(find(name).ladder), _siblings(name)
    parts = getattr(module, "PARTS", {})
    if not _left(names):
        return sentence("ladder_complete", count=len(names), title=module.TITLE)
    begins = [n for n, part in enumerate(names) if part in parts]
    here = names.index(name)
    start = max((n for n in begins if n <= here), default=0)
    end = min((n for n in begins if n > here), default=len(names))
    if begins and not _left(names[start:end]):
        title = parts.get(names[start], "").splitlines()[0].lstrip("# ")
        return sentence("part_complete", part=title)
    return sentence("first_pass") if first else ""


def _strict() -> bool:
    return os.environ.get("PUZZLES_STRICT") == "1"


def _nothing_judged(why: str) -> None:
    if _strict():
        raise NotPassedError(why)
    say(why)


def our_bug(activity: str) -> str:
    """The sentence for the exception in hand, which `activity` raised."""
    return sentence("our_bug", what=activity, trace=traceback.format_exc())


def _verdict_on(fn: Any, seed: int | None) -> Verdict:
    puzzle = find_for(fn) if not isinstance(fn, str) else _refuse(fn)
    if os.environ.get("PUZZLES_TPU") == "1":
        with Compiler() as compiler:
            return judge(puzzle, fn, seed=seed, compiler=compiler)
    return judge(puzzle, fn, seed=seed)


def find_for(fn: Any) -> Puzzle:
    """The puzzle of a function, or of a name; UnknownPuzzleError has the remedy."""
    if isinstance(fn, str):
        return find(fn)
    if not is_function(fn):
        _refuse(fn)
    name = unwrap(fn).__name__
    try:
        return find(name)
    except UnknownPuzzleError:
        if name.endswith("_kernel"):
            owner = find(name.removesuffix("_kernel")).name
            raise UnknownPuzzleError(sentence("a_kernel_alone", name=name, owner=owner)) from None
        raise


def _refuse(value: object) -> NoReturn:
    raise UnknownPuzzleError(sentence("no_function", got=described(value)))


def described(value: object) -> str:
    """A wrong argument in words, such as "an int"."""
    if isinstance(value, jax.Array):
        return f"an array of shape {value.shape}"
    kind = type(value).__name__
    return "None" if value is None else f"a{'n' * (kind[0] in 'aeiou')} {kind}"


def checked(name: str) -> tuple[Callable, str]:
    """The answer that passed last in this session, "yours"; or "the reference"."""
    if name in _passed:
        return _passed[name], "yours"
    return find(name).solution, "the reference"


def on_devices(fn: Callable, *args: Any, axes: Mapping[str, int]) -> Any:
    """Run `fn` on each device of a mesh, and return the results of all devices.

    On a TPU with enough chips, they run it; elsewhere NumPy simulates the devices.

    Args:
        args: arrays whose first axis counts the devices, in the order of the mesh.
        axes: the name and the length of each axis of the mesh, as `{"x": 4}`.

    Raises RuntimeError for a race between devices, a deadlock, or a semaphore left above zero.
    """
    count = math.prod(axes.values())
    if jax.default_backend() == "tpu":
        if len(jax.devices()) >= count:
            # `make_mesh` orders the chips, so that neighbours on the mesh are one link apart.
            auto = (AxisType.Auto,) * len(axes)
            mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto)
            return jax.jit(over_mesh(fn, axes, mesh))(*args)
        say(sentence("too_few_chips", chips=len(jax.devices()), count=count))
    traced = trace_call(over_mesh(fn, axes), *map(jnp.asarray, args))
    try:
        results = run_devices(traced, Semantics()).results
    except HazardError as error:
        raise RuntimeError(error.finding.words) from None
    return jax.tree.unflatten(jax.tree.structure(traced.out), map(jnp.asarray, results))


def hint(fn: Callable | str) -> None:
    """Show the next hint for a puzzle; after the last hint, start again."""
    try:
        puzzle = find_for(fn)
    except UnknownPuzzleError as error:
        say(str(error))
        return
    shown, total = _hinted.get(puzzle.name, 0), len(puzzle.hints)
    _hinted[puzzle.name] = shown + 1
    number, again = shown % total, ", again from the first" if shown and not shown % total else ""
    title, words = f"hint {number + 1} of {total} for {puzzle.name}{again}", puzzle.hints[number]
    display(f"{title}: {words}", card(BLUE, title, [paragraph(words)]))


def solution(fn: Callable | str) -> None:
    """Show the reference solution of a puzzle and why it works."""
    try:
        puzzle = find_for(fn)
    except UnknownPuzzleError as error:
        say(str(error))
        return
    code = _solution_of(puzzle.text)
    why = " ".join(puzzle.explain.split())
    title = f"One solution of {puzzle.name}"
    page = card(BLUE, title, [source(code), paragraph(f"Why it works: {why}")])
    display(f"{code}\n\nWhy it works: {why}", page)


def welcome(ladder_name: str) -> None:
    """Show the versions, the device, and how far the learner is in a ladder."""
    device = jax.devices()[0]
    kind = "a CPU" if device.platform == "cpu" else f"{jax.device_count()} × {device.device_kind}"
    tested = "" if _jax.is_newer_than_tried() else " (tested)"
    names = tuple(ladder_module(ladder_name).PUZZLES)
    left = _left(names)
    title = f"Pallas Puzzles {metadata.version('pallas-puzzles')}"
    where = f"JAX {jax.__version__}{tested}, on {kind}."
    done = f"{ladder_name}: {len(names) - len(left)} of {len(names)} solved."
    text, link = _next(left), _next(left, _link)
    page = [paragraph(where), f'<div style="margin-top:4px">{done}{link}</div>']
    display(f"{title}. {where} {done}{text}", card(GREEN, title, page))


def progress() -> None:
    """Show which puzzles of each ladder are solved, and how long that is remembered."""
    lines, rows = [], []
    for name in ladders():
        names = ladder_module(name).PUZZLES
        if squares := _bar(names):
            done, total = squares.count("■"), len(squares)
            road = on_main_road(names)
            stars = f", {len(road) - len(_left(road))} of {len(road)} ★" * bool(road)
            lines.append(f"{name}: {done} of {total} solved{stars} {squares}")
            ahead = _next(_left(names), _link) or " All solved."
            rows.append(
                f'<div style="margin-top:6px">{bar(done, total)} <b>{name}</b>: {done} of {total} '
                f"solved{stars}.{ahead}</div>"
            )
    where = _progress.where()
    page = card(GREEN, "Your progress", [*rows, paragraph(where, FAINT)])
    display("\n".join([*lines, where]), page)


def _next(left: Sequence[str], shown: Callable[[str], str] = str) -> str:
    """The next puzzle to solve, and if it is a side road, the next on the main road; or ""."""
    if not left:
        return ""
    road = on_main_road(left)
    also = f", or {shown(road[0])} ★" if road and road[0] != left[0] else ""
    return f" Next: {shown(left[0])}{also}."


def _left(names: Sequence[str]) -> list[str]:
    """The puzzles that are not solved yet, in order."""
    solved = _progress.solved()
    return [name for name in names if name not in solved]


def _left_after(name: str) -> list[str]:
    """The puzzles of a puzzle's ladder that are left: those after it, then those before it."""
    names = _siblings(name)
    here = names.index(name)
    return _left(names[here + 1 :] + names[:here])


def _siblings(name: str) -> tuple[str, ...]:
    """The puzzles of a puzzle's ladder, with itself, in order."""
    return tuple(ladder_module(find(name).ladder).PUZZLES)


def _link(name: str) -> str:
    """A link to a puzzle's heading in its notebook, by the id that JupyterLab gives to it."""
    puzzle = find(name)
    number = _siblings(name).index(name) + 1
    heading = next((m[1] for m in re.finditer("^# ## (.+)$", puzzle.text, re.MULTILINE)), name)
    anchor = html.escape(numbered_heading(number, heading, name).replace(" ", "-"), quote=True)
    return f'<a href="#{anchor}" style="color:inherit">{html.escape(name)}</a>'


def _bar(names: tuple[str, ...]) -> str:
    solved = _progress.solved()
    return "".join("■" if name in solved else "□" for name in names)


def _progress_line(name: str) -> str:
    left, bar = _left_after(name), _bar(_siblings(name))
    ahead = _next(left) or " All of it is solved."
    return f"{find(name).ladder} {bar} {bar.count('■')}/{len(bar)}.{ahead}"


def say(text: str) -> None:
    """Show a sentence."""
    display(text, _pre(text))


def _pre(text: str) -> str:
    style = "background:transparent;color:inherit;font-family:monospace"
    return f"<pre style='{style}'>{html.escape(text)}</pre>"


def display(text: str, page: str) -> None:
    """Show HTML in a notebook, with the text as an alternative; print the text elsewhere."""
    if not _progress.in_notebook():
        print(text)
        return
    from IPython.display import display

    display({"text/plain": text, "text/html": page}, raw=True)
