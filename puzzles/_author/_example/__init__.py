"""Example: what this ladder leads to."""

# ✎ Write the title, for the notebook and the README: the subject, and the goal.
TITLE = "Example: what this ladder leads to"
# The position among the ladders, and the ladders that learners solve before it.
ORDER = 90
AFTER = ("basics",)
# The puzzles, in order. Each is the name of a module next to this file, and of the function that
# the learner writes. `python -m puzzles new puzzle` adds to it.
PUZZLES = ()

# ✎ Write the introduction: what can the reader do at the top that they cannot do now?
#   Which production kernel does the last puzzle equal, on which tests? What must readers know?
INTRO = """
Every ladder leads to a kernel that somebody runs in production. This one is still an example.

It builds on `basics.ipynb`: Refs, grids, index maps and scratch are taken as known. Every kernel
runs on a CPU under `interpret=True`, and unchanged on a TPU.
"""

# A heading before the named puzzle; leave this empty if the ladder has only one part.
PARTS: dict[str, str] = {}
