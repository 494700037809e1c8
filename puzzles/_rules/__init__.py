"""Every way to be wrong, once: the table of rules, and the words for other programs' messages.

`RULES` has the rows of `rules.toml`: a rule for each reason to reject an answer. A `Breach` is a
broken rule with its place and facts, and takes its sentence from there. `rows`, `sentence`,
`fault`, `instead` and `to_author` read `words.toml`: the messages about errors of JAX, Mosaic,
libtpu and the simulator, about launches, and to authors. `listed` prints the number of mistakes
that each rule decides; `rules_page` is the text of `docs/rules.md`, and `address` links to a rule
in it. `plural` writes a count and its noun. This package judges nothing.
"""

from __future__ import annotations

from puzzles._rules.page import PAGE, RECORD, address, home, listed, rules_page
from puzzles._rules.table import (
    RULES,
    Breach,
    fault,
    instead,
    plural,
    rows,
    sentence,
    title_of,
    to_author,
)
