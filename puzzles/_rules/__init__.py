"""Every way to be wrong, once: the table of rules, and the words for other programs' messages.

`RULES` has a row of `rules.toml` for each rule by which an answer is refused. `rows`, `sentence`
and their like read `words.toml`: what is said of the messages of JAX, Mosaic, libtpu and the
simulator, and of an answer. `listed` prints what each rule decides. Nothing is judged here.
"""

from __future__ import annotations

from puzzles._rules.record import listed
from puzzles._rules.table import RULES, Rule
from puzzles._rules.words import Row, instead, rows, sentence, stuck, title_of

__all__ = ["RULES", "Row", "Rule", "instead", "listed", "rows", "sentence", "stuck", "title_of"]
