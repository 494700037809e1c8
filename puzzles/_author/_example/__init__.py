"""Example: what this ladder leads to."""

# ✎ Write the title, for the notebook and the README: the subject, and where the climb ends.
TITLE = "Example: what this ladder leads to"
# The position among the ladders, and the ladders whose puzzles are taken as known.
ORDER = 90
AFTER = ("basics",)
# The rungs in the order of the climb; each is the name of a module beside this file, and of the
# function that is asked for in it. `python -m puzzles new puzzle` adds to it.
RUNGS = ()

# ✎ Write the introduction: what can the reader do at the top that they cannot do now?
#   What must the last rung equal: which production kernel, on which tests? What is taken as known?
INTRO = """
Every ladder leads to a kernel that somebody runs in production. This one is still an example.

It builds on `basics.ipynb`: Refs, grids, index maps and scratch are taken as known. Every kernel
runs on a CPU under `interpret=True`, and unchanged on a TPU.
"""

# A heading before the rung named; take it out if the ladder has one part only.
PARTS: dict[str, str] = {}
