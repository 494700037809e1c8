"""Is anybody's kernel safe, and what does it cost? A function and its arguments in, findings out.

`examine` needs no puzzle, no reference and no TPU: it reads the launches of any callable, asks the
finders of the wings below and the compiler where there is one, and says what it looked for and
what not. `command` is the same for a shell.
"""

from __future__ import annotations

from puzzles._examine.context import every_launch
from puzzles._examine.examination import Examination
from puzzles._examine.examining import examine
from puzzles._examine.shell import command, options
