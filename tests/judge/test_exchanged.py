"""A map or a line is named only if the reference's, put in its place, makes the numbers right."""

from __future__ import annotations

import pytest

import puzzles
from puzzles import Alternative
from puzzles._judge import judge
from puzzles._puzzle import variant

KEYS = "            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),\n"
BACK = KEYS.replace("(j, 0)", "(S // bk - 1 - j, 0)")


def first(rung: str, *edits: tuple[str, str]) -> str | None:
    """Where the verdict on a wrong answer says to look first."""
    puzzle = puzzles.find(rung)
    verdict = judge(puzzle, variant(puzzle, Alternative("tried", edits=edits)))
    assert verdict.stage == "values"
    assert verdict.diagnosis is None
    return verdict.first


def test_values_in_another_order_than_the_keys_are_told_by_the_first_step() -> None:
    assert first("flash_attention", (KEYS * 2, KEYS + BACK)) == (
        "Look here first: with another index map the numbers would be right. At grid step (0, 0) "
        "`v_ref` holds block (4, 0), in the reference block (0, 0)."
    )


def test_two_maps_that_are_wrong_together_are_told_together() -> None:
    look = first(
        "causal_prefetch",
        ("return jnp.minimum(j, last_needed), 0", "return jnp.maximum(last_needed - j, 0), 0"),
    )
    assert look is not None
    assert "with other index maps" in look
    assert "`k_ref`" in look
    assert "`v_ref`" in look


L, ACC = "alpha * l_ref[...] +", "alpha * acc_ref[...] +"
TWICE = "alpha * alpha"


@pytest.mark.parametrize(
    ("old", "new", "look"),
    [
        (
            L,
            L.replace("alpha", TWICE),
            "with something else in place of `l_ref[...] = alpha * alpha * l_ref[...] + "
            "jnp.sum(p, axis=1, keepdims=True)`",
        ),
        (
            "        m_ref[...] = m_new\n",
            "        m_ref[...] = m_new\n        acc_ref[...] *= 2\n",
            "without `acc_ref[...] *= 2`",
        ),
        (
            "        s *= q_ref.shape[1] ** -0.5\n",
            "",
            "with something more after `)`",
        ),
    ],
)
def test_the_only_line_that_is_wrong_is_named(old: str, new: str, look: str) -> None:
    assert first("attention_lse", (old, new)) == (
        f"Look here first: {look} the numbers would be right."
    )


def test_a_kernel_of_one_line_is_no_place() -> None:
    assert first("add_ten", ("x_ref[...] + 10", "jnp.sin(x_ref[...])")) is None


def test_a_wrong_kernel_is_named_where_the_launch_is_the_learners_too() -> None:
    edits = ((one, one.replace("alpha", TWICE)) for one in (L, ACC))
    assert first("attention_lse", *edits) == (
        "Look here first: with another `attention_lse_kernel` in your launch the numbers would be "
        "right: look into it, and into what it calls."
    )


@pytest.mark.parametrize(
    "edits",
    [
        [("alpha * l_ref", "alpha * alpha * l_ref")],
        # The maps are others, and with the reference's it is wrong still.
        [(KEYS * 2, KEYS + BACK), ("alpha * l_ref", "alpha * alpha * l_ref")],
        # Both walk the other way, which is right.
        [(KEYS * 2, BACK * 2), ("alpha * l_ref", "alpha * alpha * l_ref")],
    ],
)
def test_no_map_is_blamed_for_a_wrong_kernel(edits: list[tuple[str, str]]) -> None:
    assert "index map" not in str(first("flash_attention", *edits))
