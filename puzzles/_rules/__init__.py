"""Every way to be wrong, once: the table of rules, and the words for other programs' messages.

`RULES` has a row of `rules.toml` for each rule by which an answer is refused; a `Finding` says
which of them is broken, where, and by what facts, and finds its sentence there. `rows`, `sentence`
and their like read `words.toml`: what is said of the messages of JAX, Mosaic, libtpu and the
simulator, of a launch, of an answer, and what an author is told. `listed` prints what each rule
decides; `rules_page` is the text of `docs/rules.md`, and `address` is where a rule stands in it.
Nothing is judged here.
"""

from __future__ import annotations

from puzzles._rules.page import PAGE, RECORD, address, home, listed, rules_page
from puzzles._rules.table import RULES, Finding, fault, instead, rows, sentence, title_of, to_author
