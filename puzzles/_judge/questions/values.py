"""Questions of stage `values`: form and numbers of the result."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np

from puzzles._judge.answer import Run
from puzzles._judge.numbers import number_words
from puzzles._rules import Breach, sentence

_WITHOUT_DTYPE = re.compile(r"jnp\.(?:zeros|ones|empty)\((?:\w+|\([^()]*\))\)")


def accepted(run: Run) -> Breach | None:
    """Require a result that the puzzle's `accepts` passes, if the puzzle has one."""
    if run.puzzle.accepts is None:
        return None
    if run.result is None:
        return run.wrong("none", name=run.puzzle.name)
    try:
        run.puzzle.accepts(run.result, *run.case.args)
    except AssertionError as error:
        return run.wrong("not-accepted", says=str(error))
    return None


def same_form(run: Run) -> Breach | None:
    """Require the spec's structure, shapes and dtypes."""
    puzzle = run.puzzle
    if puzzle.accepts is not None:
        return None
    out, want = run.traced.out if puzzle.kernel else run.result, run.case.expected
    if out is None:
        return run.wrong("none", name=puzzle.name)
    if jax.tree.structure(out) != jax.tree.structure(want):
        return run.wrong("structure", name=puzzle.name, got=_form(out), expected=_form(want))
    shapes, expected = ([np.shape(x) for x in jax.tree.leaves(tree)] for tree in (out, want))
    if shapes != expected and sorted(shapes) == sorted(expected):
        right, got = (" and ".join(map(str, items)) for items in (expected, shapes))
        return run.wrong("order", expected=right, got=got)
    look = sentence("look_at_the_shape") if puzzle.kernel else ""
    for leaf, theirs in zip(jax.tree.leaves(out), jax.tree.leaves(want), strict=True):
        leaf = leaf if hasattr(leaf, "shape") else np.asarray(leaf)
        for attribute in ("shape", "dtype"):
            a, b = getattr(leaf, attribute), getattr(theirs, attribute)
            if a != b:
                if attribute == "shape" and puzzle.axes:  # the shapes on a device
                    a, b = a[1:], b[1:]
                if a == np.float32 and _WITHOUT_DTYPE.search(run.answer.code.text):
                    look = sentence("look_at_new_arrays")
                return run.wrong(attribute, expected=b, got=a, look=look)
    return None


def _form(tree: Any) -> str:
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "one array" if hasattr(tree, "shape") else f"a {type(tree).__name__}"


def same_numbers(run: Run) -> Breach | None:
    """Require the spec's numbers; a finding names the block of the first wrong number."""
    if run.puzzle.accepts is not None or run.differs is None:
        return None
    position, want, wrong = run.mismatch
    block_words = ""
    if (place := run.place) is not None and place.launch.grid and place.operand.piped:
        block, operand = place.block, place.operand
        holding = np.flatnonzero((operand.blocks == np.asarray(block)).all(axis=1))
        held = "held_last" if len(holding) else "held_by_none"
        step = place.launch.at(holding[-1]) if len(holding) else None
        block_words = sentence(held, block=block, name=operand.name, step=step)
    return run.wrong(
        "numbers",
        count=int(wrong.wrong.sum()),
        size=want.size,
        which=run.case.which(position),
        index=_place(run, wrong.first),
        expected=number_words(wrong.expected),
        got=number_words(wrong.got),
        place=block_words,
    )


def _place(run: Run, index: tuple[int, ...]) -> str:
    """The index of an element; with several devices, the device and the index there."""
    if not run.puzzle.axes:
        return str(list(index))
    return sentence("element_of_a_device", device=index[0], index=list(index[1:]))
