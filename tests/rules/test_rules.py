"""The tables of rules and words, and the output of `python -m puzzles rules`."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Formatter

import pytest

from puzzles import __main__
from puzzles._check import verdict_page
from puzzles._judge import Verdict
from puzzles._launch.finding import KINDS
from puzzles._rules import PAGE, RULES, address, page, table, title_of

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.newest

WORDS = tomllib.loads((files("puzzles._rules") / "words.toml").read_text(encoding="utf-8"))


def test_every_rule_speaks_at_a_stage_that_has_a_headline() -> None:
    assert all(title_of(rule.stage) for rule in RULES.values())
    assert all(rule.asks for rule in RULES.values())


def test_every_kind_of_finding_is_a_rule_with_its_section_on_the_page() -> None:
    """A link that leads nowhere leaves a stuck reader alone."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    sections = set(re.findall(r"^### (\S+)$", text, re.MULTILINE))
    assert sections == set(RULES)
    assert set(KINDS) <= sections
    assert address("hazard").endswith(f"{PAGE}#hazard")


def test_a_verdict_links_to_its_rule_only_if_the_rule_has_a_story() -> None:
    wrong = Verdict(False, "memory", "It is read too early.", rule="hazard")
    assert f"Rule `hazard`: {address('hazard')}" in str(wrong)
    assert f'href="{address("hazard")}"' in verdict_page(wrong)
    for rule in ("untouched", "numbers", "raises"):
        plain = Verdict(False, RULES[rule].stage, "Fill it in.", rule=rule)
        assert "Rule" not in str(plain)
        assert "href" not in verdict_page(plain)


@pytest.mark.parametrize("name", ["exceptions", "mosaic", "libtpu"])
def test_a_row_s_groups_are_those_of_its_pattern(name: str) -> None:
    for row in table._table(name):
        asked = {int(n) for n in re.findall(r"\{(\d+)\}", row.says)}
        assert not asked or max(asked) < row.pattern.groups, row.says


def test_a_rule_that_decides_nothing_and_says_nothing_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The committed record passes; one in which a rule has lost its mistakes does not."""
    assert __main__.main(["rules"]) == 0
    assert "DECIDES NOTHING" not in capsys.readouterr().out
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.txt").write_text("a mistake\n  values: numbers\n\n= right\n  passed\n")
    monkeypatch.setattr(page, "RECORD", tmp_path)
    assert __main__.main(["rules"]) == 1
    assert "DECIDES NOTHING: delete it, or say why it stays" in capsys.readouterr().out


def strings(text: str) -> Iterator[str]:
    """The strings of a file that are no docstrings; X stands for a filled-in value."""
    tree = ast.parse(text)
    known = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            known |= {id(part) for part in node.values}
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "" if id(node) in known else node.value


def is_sentence(text: str) -> bool:
    """Whether it is told to somebody: of eight words, or of four and a full stop.

    HTML and patterns are not.
    """
    words = len(text.split())
    return not text.startswith(("<", "^")) and (words >= 8 or (words >= 4 and text.endswith(".")))


def test_what_a_verdict_says_stands_with_the_words() -> None:
    """All sentences are in the same place, easy to find and to mend."""
    for path in sorted((ROOT / "puzzles" / "_judge").rglob("*.py")):
        found = [one for one in strings(path.read_text(encoding="utf-8")) if is_sentence(one)]
        assert not found, path.name


def misfiled(stage: str, text: str) -> list[str]:
    """The findings of a module of questions whose rules belong to another stage."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [c.args[0] for c in calls if re.search(r"(\.wrong|^Breach)$", ast.unparse(c.func))]
    rules = {str(name.value) for name in named if isinstance(name, ast.Constant)}
    return sorted(rule for rule in rules if RULES[rule].stage != stage)


def test_a_rule_is_named_in_the_file_of_its_stage() -> None:
    questions = ROOT / "puzzles" / "_judge" / "questions"
    texts = {path.stem: path.read_text(encoding="utf-8") for path in questions.glob("[!_]*.py")}
    assert set(texts) == {rule.stage for rule in RULES.values()} - {"examine"}
    assert [rule for stage, text in texts.items() for rule in misfiled(stage, text)] == []
    assert "compile" in misfiled("work", texts["tpu"])


def test_what_an_author_is_told_has_its_words_and_its_facts() -> None:
    """Most is told of a rare fault: a name or a fact that is missing would raise only then."""
    there: set[object] = set()
    for path in sorted((ROOT / "puzzles" / "_author").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant):
                there.add(node.value)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("to_author", "problem"):
                name, facts = node.args[-1], {word.arg for word in node.keywords}
                if isinstance(name, ast.Constant) and None not in facts:  # None: `**facts`
                    words = Formatter().parse(WORDS["to_author"][str(name.value)])
                    assert facts == {one[1] for one in words} - {None}, name.value
    assert set(WORDS["to_author"]) <= there


def composed_keys(text: str) -> list[str]:
    """The calls for a message whose key is put together at run time."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    asking = [
        c for c in calls if re.search(r"\b(sentence|told|fault|to_author)$", ast.unparse(c.func))
    ]
    return [
        ast.unparse(call)
        for call in asking
        if any(isinstance(argument, ast.JoinedStr | ast.BinOp) for argument in call.args)
    ]


def unknown_keys(text: str, keys: set[str]) -> list[str]:
    """The calls for a message that the tables do not have."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    first = {"sentence": 0, "to_author": 0, "fault": 0, "told": 1, "problem": 1}
    named = [(call, first.get(ast.unparse(call.func).split(".")[-1], 9)) for call in calls]
    asked = [(call, call.args[n]) for call, n in named if n < len(call.args)]
    literal = [(call, key) for call, key in asked if isinstance(key, ast.Constant)]
    return [ast.unparse(call) for call, key in literal if key.value not in keys]


def test_a_search_for_the_key_of_a_message_finds_its_code() -> None:
    package = ROOT / "puzzles"
    paths = [*package.glob("_*.py"), *package.glob("_*/**/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    written = {
        str(node.value)
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
    }
    keys = {key for table in ("sentences", "faults", "to_author") for key in WORDS[table]}
    assert [key for key in keys if not key.isidentifier()] == []
    assert keys - written == set()
    assert [call for text in texts for call in composed_keys(text)] == []
    assert [call for text in texts for call in unknown_keys(text, keys)] == []
    assert unknown_keys("f\"{sentence('no such key')}\"", keys) != []
    assert composed_keys('sentence(f"{how}_into")\nrules.told("hazard", "read_" + way)') != []


def test_a_sentence_in_a_file_is_seen() -> None:
    text = 'def f(name):\n    "This is a docstring."\n    return f"`{name}` is never read."'
    assert [one for one in strings(text) if is_sentence(one)] == ["`X` is never read."]
