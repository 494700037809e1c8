"""A notebook of an earlier edition still checks: what changed around the learner's code is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from learner import Notebook, solved

import puzzles
from puzzles._judge import edition
from puzzles.splash_attention import _graduation as graduation

pytestmark = pytest.mark.newest  # JAX changes nothing here

LAUNCH = "    bm, bn = 64, 128\n"
OLD = "    bm, bn = 64, 256  # as the first edition had it\n"


@pytest.fixture
def old_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """row_sum's cells with another launch, which an earlier edition is said to have handed out."""
    text = solved("row_sum")
    assert LAUNCH in text
    handed_out = edition.given(puzzles.find("row_sum").text.replace(LAUNCH, OLD))["row_sum"]
    file = tmp_path / "editions.json"
    file.write_text(
        json.dumps({"0.0.1": {"row_sum": {"given": {"row_sum": edition.digest(handed_out)}}}})
    )
    monkeypatch.setattr(edition, "_EDITIONS", file)
    edition._editions.cache_clear()
    yield text.replace(LAUNCH, OLD)
    edition._editions.cache_clear()


def judged(text: str) -> puzzles.Verdict:
    notebook = Notebook()
    notebook.run(text)
    return puzzles.judge(puzzles.find("row_sum"), notebook["row_sum"])


def test_an_old_launch_is_replaced_by_todays_and_the_note_says_so(old_launch: str) -> None:
    verdict = judged(old_launch)
    assert verdict.passed, str(verdict)
    assert "yours, and the reference's" in (verdict.receipt or "")  # with the blocks of today
    assert verdict.notes[-1].startswith("`row_sum` in your notebook is from edition 0.0.1")


def test_what_the_learner_wrote_is_still_judged(old_launch: str) -> None:
    verdict = judged(old_launch.replace("axis=1, keepdims=True)\n", "axis=1, keepdims=True) + 1\n"))
    assert verdict.stage == "values"
    assert "edition 0.0.1" in verdict.notes[-1]


def test_a_launch_that_a_learner_changed_is_judged_as_it_is() -> None:
    verdict = judged(solved("row_sum").replace(LAUNCH, OLD))
    assert not any("edition" in note for note in verdict.notes)


def test_the_digest_sees_code_and_not_its_layout() -> None:
    one = "def f(x):\n    return f'{x!r} and {x:.2f}'  # words\n"
    other = "    def f(x):\n\n        return f'{x!r} and {x:.2f}'\n"
    assert edition.digest(one) == edition.digest(other)
    assert edition.digest(one) != edition.digest(one.replace(".2f", ".3f"))


def test_the_first_edition_is_on_record() -> None:
    rungs = edition._editions()["0.1.0"]
    assert len(rungs) == 43
    assert set(rungs["row_sum"]["given"]) == {"row_sum_spec", "row_sum"}
    assert set(rungs["row_sum"]["around"]) == {"row_sum_kernel"}


LINE = "    (K, M), (_, N) = a.shape, b.shape"
OTHER = "    (K, M), N = a.shape, b.shape[1]"


def test_a_gap_in_old_code_is_told_where_the_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    was = puzzles.find("launch_matmul").text.replace(LINE, OTHER)
    file = tmp_path / "editions.json"
    file.write_text(json.dumps({"0.0.1": {"launch_matmul": {"around": edition.around(was)}}}))
    monkeypatch.setattr(edition, "_EDITIONS", file)
    edition._editions.cache_clear()
    wrong = solved("launch_matmul").replace("lambda i, j, k: (i, j)", "lambda i, j, k: (j, i)")
    notes = []
    for text in (wrong, wrong.replace(LINE, OTHER)):
        notebook = Notebook()
        notebook.run(text)
        notes.append(puzzles.judge(puzzles.find("launch_matmul"), notebook["launch_matmul"]).notes)
    edition._editions.cache_clear()
    assert [any("edition 0.0.1" in note for note in one) for one in notes] == [False, True]


FIRST = Path(__file__).with_name("first_edition")
HEADER = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int
from puzzles import INTERPRET, find
"""


def summit(*edits: tuple[str, str]) -> tuple[Notebook, puzzles.Verdict]:
    """The first edition's cells of the summit, solved and then edited, and what is said of them."""
    text = HEADER + (FIRST / "splash_multi_head.txt").read_text()
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    notebook = Notebook()
    notebook.run(text)
    return notebook, puzzles.judge(puzzles.find("splash_multi_head"), notebook["splash_multi_head"])


def test_the_first_editions_summit_passes_and_hears_of_rules() -> None:
    handed_out = edition._editions()["0.1.0"]["splash_multi_head"]["given"]
    text = (FIRST / "splash_multi_head.txt").read_text()
    given = {name: edition.digest(code) for name, code in edition.given(text).items()}
    assert handed_out.items() <= given.items()
    notebook, verdict = summit()
    assert verdict.passed, str(verdict)
    assert "which had no `rule`" in verdict.notes[-1]
    assert "cases with `rule` were left out" in verdict.notes[-1]
    table = graduation.graduate(notebook["splash_multi_head"])
    assert table.startswith(graduation.HEAD), table
    assert "which had no `rule`" in table
    assert "yours, patterns stored" in graduation.costs(notebook["splash_over_tiles"], T=2048)


def test_a_wrong_summit_of_the_first_edition_is_still_refused() -> None:
    _, verdict = summit(("seen &= q_ids_ref[...] == kv_ids_ref[...]", "pass"))
    assert verdict.stage == "values"
    assert "documents see each other" in (verdict.diagnosis or "")


def test_who_takes_the_rule_out_of_todays_signatures_is_judged_by_all_cases() -> None:
    text = solved("splash_multi_head").replace("soft_cap, rule,", "soft_cap,")
    text = text.replace(", soft_cap=soft_cap, rule=rule)", ", soft_cap=soft_cap)")
    text = text.replace("        if rule is not None:", "        if False:")
    notebook = Notebook()
    notebook.run(HEADER + text)
    verdict = puzzles.judge(puzzles.find("splash_multi_head"), notebook["splash_multi_head"])
    assert not verdict.passed
    assert "rule='prefix'" in verdict.headline or "rule=prefix" in verdict.headline
