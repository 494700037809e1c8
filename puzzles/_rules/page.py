"""The rules, listed: `docs/rules.md`, and what each of them decides, `python -m puzzles rules`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from itertools import groupby
from pathlib import Path

from puzzles._rules.table import RULES, Rule, sentence, title_of

RECORD = Path("tests") / "verdicts"
PAGE = "docs/rules.md"


def rules_page(record: Path) -> str:
    """The page, with an example for each rule that decides a mistake in the folder `record`."""
    examples: dict[str, tuple[str, str]] = {}
    for rung, mistake, name in mistakes(record):
        examples.setdefault(name, (rung, mistake))
    parts = [sentence("page of rules")]
    for stage, rules in groupby(RULES.items(), key=lambda row: row[1].stage):
        title = title_of(stage)
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        for name, rule in rules:
            parts += _section(name, rule, None if stage == "unsolved" else examples.get(name))
    return "".join(parts)


def _section(name: str, rule: Rule, example: tuple[str, str] | None) -> Iterator[str]:
    yield f"\n### {name}\n\n**Asks:** {rule.asks}.\n\n{rule.means}\n\n**Try:** {rule.remedy}\n"
    yield f"\n**Since:** version {rule.since}.\n"
    if example is not None:
        rung, mistake = example
        yield f"\n**An answer that breaks it:** in `{rung}`, one that {mistake}.\n"


def address(rule: str) -> str:
    """Where a rule stands in the page, in the repository that this package comes from."""
    return f"{home()}/blob/HEAD/{PAGE}#{rule}" if home() else f"{PAGE}#{rule}"


@cache
def home() -> str:
    """The repository that this package was installed from; "" where it is not installed."""
    try:
        urls = metadata("pallas-puzzles").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    return next((u.removeprefix("Repository, ") for u in urls if u.startswith("Repository, ")), "")


def mistakes(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(rung, mistake, the rule that decides it) of the verdicts on record in a folder.

    Their lines hold, tabs between them: rung, answer, stage, rule, words. Answers that are right
    begin with "= ".
    """
    for file in sorted(folder.glob("*.txt")):
        for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
            rung, answer, _, rule, *_ = line.split("\t")
            if not answer.startswith("= "):
                yield rung, answer, rule


def listed() -> int:
    """Print each rule with its count; 1 if one decides nothing and does not say why it stays."""
    counts, idle = Counter(rule for _, _, rule in mistakes(RECORD)), False
    if not counts:
        print(f"no verdicts on record in {RECORD}: here is what each rule asks")
    for name, rule in RULES.items():
        says = rule.asks
        if counts and not counts[name]:
            says = rule.why or "DECIDES NOTHING: delete it, or say why it stays"
            idle = idle or not rule.why
        print(f"{counts[name]:5}  {name:20} {rule.stage:9} {says}")
    return int(idle)
