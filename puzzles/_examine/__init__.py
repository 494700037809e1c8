"""Examine a kernel's safety and cost: a function and its arguments in, findings out.

`examine` needs no puzzle, no reference and no TPU: it reads the launches of any callable, runs the
finders of the packages below and the compiler, if there is one, and lists the searches that it
made and those that it skipped. `command` does this for a shell.
"""

from __future__ import annotations

from puzzles._examine.context import every_launch
from puzzles._examine.examination import Examination
from puzzles._examine.examining import examine
from puzzles._examine.shell import command, options
