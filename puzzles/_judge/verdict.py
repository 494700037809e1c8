"""A verdict and how it reads, as text and as HTML."""

from __future__ import annotations

import html as escape_html
from dataclasses import dataclass, field

from puzzles._draw import GREEN, VERMILLION, block_squares
from puzzles._launch import Finding as Known
from puzzles._receipt import receipt_html
from puzzles._rules import RULES, Finding, address, title_of

_just_shown: Verdict | None = None


@dataclass(frozen=True)
class Verdict:
    """What `judge` found, at the first stage that failed; `str()` gives all of it.

    says: where, what, what to try. diagnosis: the mistake that the numbers match, in its own words.
    step: program ids of the grid step to look at. picture: right and wrong blocks as text.
    receipt: what the launch costs, on a pass, and details: its parts, to be unfolded. notes: more
    lines, such as progress. seed: what drew the fresh case, where that is the case that failed.
    title: in place of the stage's own. first: what may explain all of it, to be read before the
    rest. rule: what decided, a name in `RULES`; empty on a pass.
    """

    passed: bool
    stage: str
    says: str
    diagnosis: str | None = None
    puzzle: str = ""
    case: str | None = None
    step: tuple[int, ...] | None = None
    receipt: str | None = None
    details: str | None = None
    picture: str | None = None
    notes: tuple[str, ...] = field(default=())
    seed: int | None = None
    title: str | None = None
    first: str | None = None
    rule: str = ""

    @classmethod
    def of(cls, finding: Finding, puzzle: str) -> Verdict:
        """That an answer to `puzzle` breaks a rule."""
        stage, where = RULES[finding.rule].stage, finding.where
        return cls(
            False,
            stage,
            finding.says,
            puzzle=puzzle,
            case=where.case,
            step=where.step,
            title=finding.headline,
            rule=finding.rule,
        )

    @property
    def headline(self) -> str:
        """The first line."""
        mark = "✓" if self.passed else "·" if self.stage == "unsolved" else "✗"
        case = f" (case {self.case})" if self.case and not self.passed else ""
        return f"{mark} {self.puzzle}: {self.title or title_of(self.stage)}{case}"

    def __str__(self) -> str:
        parts = [self.first, self.diagnosis, self.says, self.picture, self.receipt, *self.notes]
        if self._is_a_fault:
            parts.append(f"Rule `{self.rule}`: {address(self.rule)}")
        body = "\n".join(_indent(part) for part in parts if part)
        folded = f"\n\n{_indent(self.details)}" if self.details else ""
        return f"{self.headline}\n{body}{folded}"

    __repr__ = __str__  # what a notebook keeps as plain text

    @property
    def _is_a_fault(self) -> bool:
        """Whether a rule is broken, and not only a gap left open."""
        return bool(self.rule) and self.stage != "unsolved"

    def _ipython_display_(self) -> None:
        """Show the verdict, unless it is what `check` has just shown as the cell's last line."""
        global _just_shown
        if _just_shown is self:
            _just_shown = None
            return
        from IPython.display import display

        display({"text/plain": str(self), "text/html": self.html()}, raw=True)

    def html(self) -> str:
        colour = GREEN if self.passed else VERMILLION
        if self.stage == "unsolved":
            colour = "#888888"
        parts = [f"<b>{escape_html.escape(self.headline)}</b>"]
        for text in (self.first, self.diagnosis, self.says, self.receipt):
            if text:
                parts.append(f"<div style='margin-top:4px'>{_code(text)}</div>")
        if self.picture:
            parts.append(
                block_squares(self.picture.replace(" (. right, x wrong)", ", right and wrong"))
            )
        for text in self.notes:
            parts.append(f"<div style='margin-top:4px;opacity:.8'>{_code(text)}</div>")
        if self._is_a_fault:
            link = f"<a href='{address(self.rule)}' target='_blank'>{self.rule}</a>"
            parts.append(
                f"<div style='margin-top:4px;opacity:.8'>What this rule means: {link}</div>"
            )
        if self.details:
            parts.append(
                "<details style='margin-top:4px'><summary style='opacity:.8'>details</summary>"
                f"{receipt_html(self.details)}</details>"
            )
        return (
            f"<div style='border-left:4px solid {colour};padding:4px 0 4px 12px;"
            f"max-width:56em'>{''.join(parts)}</div>"
        )


class Rejected(Exception):
    """Carries a finding out of the learner's code, to whoever has asked."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.rule)
        self.finding = finding


def rule_of(finding: Known) -> str:
    """The rule that what is known of a launch breaks."""
    if finding.kind == "parallel" and finding.operand is not None:
        return "parallel-state"
    return finding.kind


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _code(text: str) -> str:
    """Escaped text with `backticks` as code and line breaks kept."""
    pieces = escape_html.escape(text).split("`")
    marked = [p if n % 2 == 0 else f"<code>{p}</code>" for n, p in enumerate(pieces)]
    return "".join(marked).replace("\n", "<br>")


def shown(verdict: Verdict) -> None:
    """Say that `verdict` is on the screen: a notebook that echoes a cell's last value skips it."""
    global _just_shown
    _just_shown = verdict
