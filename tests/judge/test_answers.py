"""The message on every answer in answers.toml: a sentence and a remedy of its own, or none."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jax
import pytest
import sample
from learner import Notebook, edited, solved

from puzzles import find, judge
from puzzles._judge.exceptions import remedy
from puzzles._judge.source import handed_out
from puzzles._record import edits_of

LISTED = tomllib.loads(Path(__file__).with_name("answers.toml").read_text(encoding="utf-8"))
ANSWERS = LISTED["answer"]
# Texts that no message contains, unless the answer lists them.
NEVER = (
    "Your numbers are those of",
    "Your kernel fails like",
    "read it with `x_ref[...]`",
    "shapes are those of blocks",
    "Traceback",
)

RIGHT = [answer for answer in ANSWERS if answer["stage"] == "passed"]
WRONG = [answer for answer in ANSWERS if answer not in RIGHT]


@pytest.mark.parametrize(
    "answer", [*RIGHT, *sample.share(WRONG)], ids=lambda answer: answer["name"]
)
def test_what_is_said_of_an_answer(answer: dict) -> None:
    puzzle, said = answer["puzzle"], answer.get("says", ())
    if jax.__version_info__ < tuple(map(int, answer.get("since", "0").split("."))):
        pytest.skip(f"JAX before {answer['since']} may give another verdict")
    verdict = judge(find(puzzle), edited(puzzle, *edits_of(answer)))
    text = str(verdict)
    assert verdict.stage == answer["stage"], text
    assert [words for words in said if words not in text] == [], text
    unsaid = (one for one in NEVER if not any(one in words for words in said))
    assert [words for words in (*answer.get("never", ()), *unsaid) if words in text] == [], text


def test_no_answer_is_listed_twice() -> None:
    assert len({answer["name"] for answer in ANSWERS}) == len(ANSWERS)
    assert len({(one["puzzle"], edits_of(one)) for one in ANSWERS}) == len(ANSWERS)


def test_names_of_ipython_are_not_what_was_meant() -> None:
    notebook = Notebook()
    notebook.run(solved("scale_blocks").replace("pl.program_id(0) * ", "ii + In1 * "))
    notebook.names |= {"_ii": "", "In": [], "Out": {}, "_i": ""}
    verdict = judge(find("scale_blocks"), notebook["scale_blocks"])
    assert verdict.stage == "error"
    assert "Did you mean" not in verdict.says


def test_only_functions_without_a_gap_are_handed_out() -> None:
    lines = handed_out(find("flash_attention"))
    assert "p = jnp.exp(s - spread(m_new, s))" in lines
    assert "return pl.pallas_call(" not in lines
    assert "p = jnp.exp(s - m_new)" not in handed_out(find("attention_one_block"))


@pytest.mark.parametrize("error", LISTED["error"], ids=lambda error: error["says"])
def test_errors_about_copies_and_pipelines_have_a_remedy(error: dict) -> None:
    assert error["says"] in str(remedy(error["gist"], error.get("line", "")))
