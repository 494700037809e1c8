"""Cards: the box in which a verdict, an examination, a solution and progress appear.

Every style is inline and follows the page's own text colour, so that a card needs no style sheet
and fits any theme.
"""

from __future__ import annotations

import html
import io
import keyword
import tokenize
from collections.abc import Iterable, Sequence

from puzzles._draw.palette import BLUE, GREEN, MONO, code

FAINT = "opacity:.8"
_BOX = "padding:4px 0 4px 12px;max-width:56em;overflow-wrap:break-word"
_CODE = (
    f"font-family:{MONO};font-size:.92em;line-height:1.45;white-space:pre;overflow-x:auto;"
    "background:#8881;border-radius:4px;padding:8px 10px;margin:6px 0"
).replace('"', "'")


def card(colour: str, title: str, parts: Iterable[str]) -> str:
    """A box with a coloured edge, a bold first line, and parts that are HTML already."""
    content = f"<b>{html.escape(title)}</b>{''.join(parts)}"
    return f'<div style="border-left:4px solid {colour};{_BOX}">{content}</div>'


def paragraph(words: str, style: str = "") -> str:
    """Words as a paragraph, with code between backticks."""
    return f'<div style="margin-top:4px;{style}">{code(words)}</div>'


def fold(summary: str, content: str) -> str:
    """HTML that is folded behind a summary."""
    return (
        f'<details style="margin-top:4px"><summary style="{FAINT};cursor:pointer">'
        f"{code(summary)}</summary>{content}</details>"
    )


def source(text: str) -> str:
    """Python source as a block, with keywords, strings and comments set off."""
    return f'<div style="{_CODE}">{_highlighted(text)}</div>'


def bar(done: int, total: int) -> str:
    """A progress bar as HTML."""
    share = 100 * done / max(total, 1)
    return (
        '<span style="display:inline-block;width:10em;height:.7em;border:1px solid currentColor;'
        f'border-radius:4px;overflow:hidden;vertical-align:middle" role="img" '
        f'aria-label="{done} of {total}"><span style="display:block;height:100%;'
        f'width:{share:.1f}%;background:{GREEN}"></span></span>'
    )


def track(solved: Sequence[bool], at: int) -> str:
    """A ladder as a row of dots, filled if solved; dot `at` grows into place."""
    step, high = 16, 20
    dots = []
    for n, done in enumerate(solved):
        x = step * n + 10
        fill = GREEN if done else "none"
        grow = '<animate attributeName="r" values="0;9;5" dur="1.2s" repeatCount="1"/>' * (n == at)
        dots.append(
            f'<circle cx="{x}" cy="10" r="5" fill="{fill}" stroke="currentColor">{grow}</circle>'
        )
    line = f'<path d="M10 10H{step * len(solved) - 6}" stroke="currentColor" stroke-opacity=".4"/>'
    width = step * len(solved) + 4
    return (
        f'<svg width="{width}" height="{high}" viewBox="0 0 {width} {high}" style="max-width:100%" '
        f'role="img" aria-label="{sum(solved)} of {len(solved)} solved">{line}{"".join(dots)}</svg>'
    )


def _highlighted(text: str) -> str:
    lines = text.splitlines(keepends=True)
    pieces, row, column = [], 1, 0

    def plain(to: tuple[int, int]) -> str:
        """The source between the last token and `to`."""
        nonlocal row, column
        quote = ""
        while row < to[0]:
            quote += lines[row - 1][column:]
            row, column = row + 1, 0
        quote += lines[row - 1][column : to[1]] if row <= len(lines) else ""
        column = to[1]
        return html.escape(quote)

    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            style = _style(token)
            if style:
                pieces.append(plain(token.start))
                pieces.append(f'<span style="{style}">{plain(token.end)}</span>')
    except (tokenize.TokenError, SyntaxError):
        return html.escape(text)  # not Python: no colours
    return "".join([*pieces, plain((len(lines) + 1, 0))])


def _style(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.COMMENT:
        return "opacity:.7"
    if token.type == tokenize.STRING:
        return f"color:{GREEN}"
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return f"color:{BLUE};font-weight:600"
    return ""
