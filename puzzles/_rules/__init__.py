"""Every way to be wrong, once: the table of rules, and the words for other programs' messages.

`RULES` has a row for each rule by which an answer is refused; `words` reads `words.toml`, which
holds what is said of the messages of JAX, Mosaic, libtpu and the simulator. Nothing is judged here.
"""

from __future__ import annotations

from puzzles._rules.record import listed
from puzzles._rules.table import RULES, Rule
from puzzles._rules.words import Row, instead, rows, stuck

__all__ = ["RULES", "Row", "Rule", "instead", "listed", "rows", "stuck"]
