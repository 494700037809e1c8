"""Habits of English and of naming that are easy to count, as ratchets: docs/style.md has the rules.

A limit is a rate per 1,000 words. The patterns also hit sentences that are right, so a limit is
above zero; it shows where to look. Lower a limit when a text gets better, and never raise it.
`python tests/test_prose.py` prints the rates, and with the name of a corpus its hits.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.newest  # JAX changes nothing here

ROOT = Path(__file__).parents[1]
_DETERMINER = (
    r"(?:an?|any|another|each|every|first|last|next|no|only|other|right|same|that|the|this|wrong|"
    r"as|for|from|in|of|to|with)"
)
_AFTER = (
    r"(?=[.,;:!?)]|\s*$|\s+(?:and|are|as|at|but|by|for|has|in|is|it|of|on|or|than|that|to|was|which"
    r"|with)\b)"
)
HABITS = {
    # "what comes before it", "whoever forgets": a clause in place of a noun
    "headless": re.compile(r"\b(?:[Ww]hat(?:ever)?|[Ww]ho(?:ever)?)\s+(?=[a-z])"),
    # "the right one": a pronoun in place of a noun
    "one": re.compile(rf"\b(?:{_DETERMINER}\s+)one{_AFTER}|\bones\b", re.MULTILINE),
    # "where it is wrong" in place of if, when or because
    "where": re.compile(r"(?<![.`\w])[Ww]here\b(?=\s+\w)"),
}
# Pronouns, prepositions and participles: none of them names a value.
NAMES = {
    *("apart", "asked", "found", "given", "its", "kept", "known", "made", "mine", "one", "other"),
    *("others", "said", "seen", "some", "stepped", "together", "told", "tried", "wanted", "what"),
    "within",
}
LIMITS = {
    "engine": {"headless": 1.0, "one": 0.4, "where": 0.6},
    "tests": {"headless": 2.0, "one": 0.9, "where": 1.0},
    "guides": {"headless": 2.0, "one": 0.9, "where": 1.0},
    "messages": {"headless": 2.0, "one": 1.0, "where": 1.5},
    "says": {"headless": 2.0, "one": 1.2, "where": 2.0},
    "notebooks": {"headless": 2.0, "one": 0.8, "where": 2.0},
}
NAMED_BADLY = 0.8  # per cent of the names that the engine binds


def engine() -> list[Path]:
    """The engine's modules: the parts of the package whose names begin with an underscore."""
    package = ROOT / "puzzles"
    return sorted([*package.glob("_*.py"), *package.glob("_*/**/*.py")])


def prose_of(source: str) -> str:
    """Docstrings and comments of Python source."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    docstrings = [ast.get_docstring(node) or "" for node in nodes]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*docstrings, *comments])


def words_of(text: str) -> str:
    """`text` without code, formulas, links' targets, HTML tags and questions."""
    text = re.sub(r"```.*?```|~~~.*?~~~", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`|\$[^$\n]*\$", " x ", text)
    text = re.sub(r"\]\([^)]*\)|<[^>\n]*>|https?://\S+", " ", text)
    return re.sub(r"(?:(?<=[.!?]\s)|(?<=\n)|^)[^.!?\n|]*\?", " ", text)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _read(paths: list[Path]) -> Iterator[str]:
    assert paths  # a corpus without files would pass every limit
    yield from (path.read_text(encoding="utf-8") for path in paths)


def _notebooks() -> Iterator[str]:
    for text in _read(sorted(ROOT.glob("*.ipynb"))):
        cells = json.loads(text)["cells"]
        yield from ("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def _says() -> Iterator[str]:
    for text in _read(sorted((ROOT / "puzzles").glob("[!_]*/*.toml"))):
        for mistake in tomllib.loads(text).get("mistake", []):
            yield mistake.get("says", "")


def corpora() -> dict[str, str]:
    """The text of each corpus, ready to be counted."""
    messages = (tomllib.loads(t) for t in _read(sorted((ROOT / "puzzles/_rules").glob("*.toml"))))
    guides = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.md")]
    texts = {
        "engine": map(prose_of, _read(engine())),
        "tests": map(prose_of, _read(sorted((ROOT / "tests").rglob("*.py")))),
        "guides": _read(sorted({path.resolve() for path in guides})),
        "messages": (text for table in messages for text in _strings(table)),
        "says": _says(),
        "notebooks": _notebooks(),
    }
    return {name: words_of("\n".join(parts)) for name, parts in texts.items()}


def rates(text: str) -> dict[str, float]:
    """Hits of each habit per 1,000 words."""
    words = len(re.findall(r"[A-Za-z']+", text))
    return {habit: 1000 * len(p.findall(text)) / max(words, 1) for habit, p in HABITS.items()}


def bound(source: str) -> list[str]:
    """The names that Python source binds: variables, parameters, functions and classes."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
    return names


def bad_names(names: list[str]) -> float:
    """The share of `names` that are pronouns, prepositions or participles, in per cent."""
    return 100 * sum(name.strip("_") in NAMES for name in names) / max(len(names), 1)


@pytest.mark.parametrize("corpus", LIMITS)
def test_the_habits_stay_below_their_limits(corpus: str) -> None:
    measured = rates(corpora()[corpus])
    above = {habit: rate for habit, rate in measured.items() if rate > LIMITS[corpus][habit]}
    assert not above, f"{corpus}: {above}; `python tests/test_prose.py {corpus}` prints the hits"


def test_names_are_nouns() -> None:
    names = [name for source in _read(engine()) for name in bound(source)]
    assert len(names) > 1000
    assert bad_names(names) <= NAMED_BADLY


@pytest.mark.parametrize(
    ("habit", "sentence"),
    [
        ("headless", "What a right kernel seldom does may explain wrong numbers."),
        ("headless", "It names whoever reads the buffer."),
        ("one", "A verdict is found and the next one is skipped."),
        ("one", "It is the right one."),
        ("where", "A line is named where the numbers are wrong."),
    ],
)
def test_a_planted_habit_is_counted(habit: str, sentence: str) -> None:
    assert rates(words_of(sentence))[habit] > 0


@pytest.mark.parametrize(
    "sentence",
    [
        "What does this call do?",
        "Each step stores one block, and one of the steps is the last.",
        "`jnp.where(mask, s, 0)` masks the scores.",
    ],
)
def test_a_plain_sentence_is_not_counted(sentence: str) -> None:
    assert not any(rates(words_of(sentence)).values())


def test_a_planted_name_is_counted() -> None:
    assert bad_names(bound("def told(found, launch):\n    one = launch\n")) == 75.0


def main() -> None:
    """Print the rates of all corpora, or the hits in the corpora that are named."""
    texts = corpora()
    for name in sys.argv[1:]:
        for habit, pattern in HABITS.items():
            for hit in pattern.finditer(texts[name]):
                around = texts[name][max(0, hit.start() - 50) : hit.end() + 50]
                print(f"{habit:9} … {' '.join(around.split())} …")
    for name, text in texts.items():
        measured = ", ".join(f"{habit} {rate:.1f}" for habit, rate in rates(text).items())
        print(f"{name:10} {len(text.split()):6} words: {measured}")
    names = [name for source in _read(engine()) for name in bound(source)]
    print(f"names      {len(names):6} bound: {bad_names(names):.1f} % are no nouns")


if __name__ == "__main__":
    main()
