"""Remedies: what to tell a learner about an exception that JAX raised in their code."""

from __future__ import annotations

from puzzles._jax import call_at_fault, params_at_fault
from puzzles._judge import source
from puzzles._launch import Endless
from puzzles._rules import rows


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
        which = f"It is the index map in `{line}`." if line else ""
        also = (
            "Prefetched Refs come before the kernel's others, and after an index map's program ids."
        )
        return " ".join(filter(None, (which, also if prefetched else "")))
    if isinstance(error, AssertionError) and (kind := params_at_fault(error)):
        return f"`compiler_params` is a {kind}: pass `pltpu.CompilerParams(...)`."
    if prefetched and "Pytree for `in_specs`" in str(error):
        some = f"{prefetched} arrays of the call have"
        first = some if prefetched > 1 else "array of the call has"
        return (
            f"`num_scalar_prefetch={prefetched}` says that the first {first} no BlockSpec; each of "
            "the others has one. Count all three."
        )
    return ""


def remedy(gist: str, line: str = "", meanwhile: str = "in a kernel") -> str | None:
    """What to try about an exception, given "Type: message" and the learner's line, if we know."""
    for row, found in rows("exceptions", f"{gist}\n{line}\n{meanwhile}"):
        return row.says.format(*found.groups())
    return None
