"""What a function may not do to the checker: leave settings behind, or an exception untold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np

from puzzles._jax import call_at_fault, come_to_rest, params_at_fault
from puzzles._judge import source
from puzzles._judge.verdict import Rejected
from puzzles._launch import Endless, Unreadable
from puzzles._rules import Finding, Where, rows, sentence


@contextmanager
def jax_at_rest() -> Iterator[None]:
    """Begin with a JAX that is inside of nothing, and leave it so, whatever interrupts.

    For what starts by itself: not within a function that JAX traces.
    """
    come_to_rest()
    try:
        yield
    finally:
        come_to_rest()


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put JAX's settings back as they were: x64, matmul precision, debugging."""
    before = dict(jax.config.values)
    try:
        with np.errstate(), jax_at_rest():
            # Which of JAX's functions called tells where an error was made, as in a notebook.
            jax.config.update("jax_traceback_filtering", "off")
            yield
    finally:
        after = jax.config.values  # gathered anew each time it is asked for
        for name in [name for name, value in before.items() if after.get(name) is not value]:
            jax.config.update(name, before[name])


@contextmanager
def learners_code(label: str) -> Iterator[None]:
    """What a learner's code does within it to Python or to JAX's settings ends with it.

    What it raises is a `Rejected` on the case called `label`.
    """
    try:
        with settings_kept():
            yield
    except Unreadable as error:
        raise Rejected(Finding("unreadable", Where(label), {"says": str(error)})) from None
    except Exception as error:
        raise Rejected(raised(error, label)) from None


def raised(error: Exception, label: str) -> Finding:
    """What the learner's exception says."""
    return Finding("raises", Where(label), {"says": told(error)})


def told(error: Exception) -> str:
    """The learner's exception: their line, the gist, the remedy where we know one."""
    if isinstance(error, Endless):
        return str(error)
    gist = source.first_sentence(error) + source.meant(error)
    where = source.learners_line(error)
    place, line = where or ("", "")
    whose = f"`{line}` in `{place}`" if line else f"`{place}`"  # typed where no file keeps it
    launch = source.launch_of(error)
    whose += f", launched by `{launch}`," if launch else ""
    says = f"{whose} raises\n{gist}" if where else gist
    return "\n".join(filter(None, (says, _known(error, line), _of_the_call(error))))


def unexplained(error: Exception) -> bool:
    """Whether nothing is known of an exception: no line of the learner's, and no remedy."""
    if isinstance(error, Endless) or source.learners_line(error) is not None:
        return False
    return _known(error, "") is None


def _known(error: Exception, line: str) -> str | None:
    return remedy(f"{type(error).__name__}: {error}", line, source.meanwhile(error))


def _of_the_call(error: Exception) -> str:
    """What the call says: prefetched Refs, an index map at fault, arrays without a spec."""
    index_map, prefetched = call_at_fault(error)
    if "positional argument" in str(error):
        line = source.line_of(index_map)
        which = sentence("index map in", line=line) if line else ""
        also = sentence("prefetched first") if prefetched else ""
        return " ".join(filter(None, (which, also)))
    if isinstance(error, AssertionError) and (kind := params_at_fault(error)):
        return sentence("params of a kind", kind=kind)
    if prefetched and "Pytree for `in_specs`" in str(error):
        some = f"{prefetched} arrays of the call have"
        first = some if prefetched > 1 else "array of the call has"
        return sentence("prefetched without a spec", prefetched=prefetched, first=first)
    return ""


def remedy(gist: str, line: str = "", meanwhile: str = "in a kernel") -> str | None:
    """What to try about an exception, given "Type: message" and the learner's line, if we know."""
    for row, found in rows("exceptions", f"{gist}\n{line}\n{meanwhile}"):
        return row.says.format(*found.groups())
    return None
