"""Lists of the rules: `docs/rules.md`, and counts of their mistakes, `python -m puzzles rules`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from itertools import groupby
from pathlib import Path

from puzzles._rules.table import RULES, Rule, sentence, title_of

RECORD = Path("tests") / "verdicts"
PAGE = "docs/rules.md"


def rules_page(record: Iterable[Path]) -> str:
    """The page, with an example for each rule: the first mistake in `record` that it decides.

    record: the files of verdicts, a file for each puzzle.
    """
    examples: dict[str, tuple[str, str]] = {}
    for puzzle, mistake, name in mistakes(record):
        examples.setdefault(name, (puzzle, mistake))
    parts = [sentence("page_of_rules")]
    for stage, rules in groupby(RULES.items(), key=lambda row: row[1].stage):
        title = title_of(stage)
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        for name, rule in rules:
            parts += _section(name, rule, None if stage == "unsolved" else examples.get(name))
    return "".join(parts)


def _section(name: str, rule: Rule, example: tuple[str, str] | None) -> Iterator[str]:
    yield f"\n### {name}\n\n**Asks:** {rule.asks}.\n\n{rule.means}\n\n**Try:** {rule.remedy}\n"
    if example is not None:
        puzzle, mistake = example
        yield f"\n**An answer that breaks it:** in `{puzzle}`, one that {mistake}.\n"


def address(rule: str) -> str:
    """The link to a rule on the page, in the repository that this package comes from."""
    return f"{home()}/blob/HEAD/{PAGE}#{rule}" if home() else f"{PAGE}#{rule}"


@cache
def home() -> str:
    """The repository that this package was installed from; "" if it is not installed."""
    try:
        urls = metadata("pallas-puzzles").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    return next((u.removeprefix("Repository, ") for u in urls if u.startswith("Repository, ")), "")


def mistakes(record: Iterable[Path]) -> Iterator[tuple[str, str, str]]:
    """Yield (puzzle, mistake, rule that decides it) from files that `tests/verdicts.py` writes.

    An answer's block begins with its name, after "= " if it is right, and "  stage: rule".
    """
    for file in record:
        for block in file.read_text(encoding="utf-8").split("\n\n"):
            answer, stage, *_ = block.split("\n")
            if not answer.startswith("= "):
                yield file.stem, answer, stage.partition(": ")[2]


def listed() -> int:
    """Print each rule with its count; return 1 if a rule decides nothing and has no `why`."""
    record = sorted(RECORD.glob("*/*.txt"))
    counts, idle = Counter(rule for _, _, rule in mistakes(record)), False
    if not counts:
        print(f"no verdicts on record in {RECORD}: here is what each rule asks")
    for name, rule in RULES.items():
        says = rule.asks
        if counts and not counts[name]:
            says = rule.why or "DECIDES NOTHING: delete it, or say why it stays"
            idle = idle or not rule.why
        print(f"{counts[name]:5}  {name:20} {rule.stage:9} {says}")
    return int(idle)
