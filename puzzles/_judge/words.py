"""Remedies: what to tell a learner about an exception that JAX raised in their code."""

from __future__ import annotations

import re

from puzzles._jax import call_at_fault, params_at_fault
from puzzles._judge import source
from puzzles._launch import Endless

# Matched in order against three lines: "Type: message", the learner's line, and what JAX was doing
# (`source.meanwhile`); groups may be used in the remedy.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"\nin a derivative$|Linearization failed",
        "JAX cannot differentiate this `pallas_call`: write its gradient, and tell JAX by "
        "`jax.custom_vjp`.",
    ),
    (
        r"name '(\w+)' is not defined",
        "`{0}` is not defined here. Names from a cell need that cell to be run; and a kernel does "
        "not see the variables of the function that launches it: take sizes from `x_ref.shape`.",
    ),
    (
        r"\b_\(\) (?:missing|takes)",
        "The function under `pl.when` takes no arguments.",
    ),
    (
        r"requires ndarray or scalar arguments, got <class '\S+Tracer'>|"
        r"store a Ref into another Ref|unsupported operand type.*: '\w+Tracer' and '\w+Tracer'",
        "A Ref is a handle to memory, not an array: read it with `x_ref[...]` before computing.",
    ),
    (
        r"has no attribute '?(\w+)'?[^\n]*\n.*_ref\.\1\b",
        "A Ref has no `.{0}`: `x_ref[...]` reads it, `o_ref[...] = value` writes it.",
    ),
    (
        r"context manager protocol.*\n.*pl\.when|__enter__.*\n.*pl\.when",
        "`pl.when(condition)` decorates a function: `@pl.when(condition)` on one line, `def _():` "
        "on the next, and what is to run below it.",
    ),
    (
        r"(?:BooleanIndex|Value shape: ).*\n.*_ref\[[^]]*[<>=]|BooleanIndex",
        "How many elements a mask keeps is not known while Python runs, so it cannot select them: "
        "keep the shape, and choose by `jnp.where(mask, x, 0.0)`.",
    ),
    (
        r"(?:not enough values to unpack|must not be longer than `shape`).*\n.*_ref\[[^]]*None",
        "A Ref takes slices and integers: read first, then add axes, `x_ref[...][:, None]`.",
    ),
    (
        r"Tracer(?:Bool|Integer).*\n.*_ref\[.*:.*\]",
        "A slice that starts at a traced number is `pl.ds(start, size)`, and its size is never "
        "traced: choose rows by a mask and `jnp.where`. And a Ref is one block already: its first "
        "element is index 0 at every step.",
    ),
    (
        r"must be Refs|has no attribute 'inner_aval'",
        "What is copied, or given to a pipeline, is named and not read: `x_ref`, or "
        "`x_ref.at[...]` for a piece of it. `x_ref[...]` is a value, and no Ref any more.",
    ),
    (
        r"Shapes must be 1D sequences of concrete values",
        "How large a slice is must be known while Python runs: `pl.ds(start, size)` takes a size, "
        "not an end. In `emit_pipeline`, blocks must divide their array for that.",
    ),
    (
        r"Tracer(?:Bool|Integer).*\n.*\.at\[[^\]]*:",
        "A slice that starts at a traced number is `pl.ds(start, size)`: where it starts, and how "
        "long it is.",
    ),
    (
        r"Cannot (?:signal|wait) on a non-\(\)-shaped semaphore: (\([^)]*\))",
        "A copy takes one semaphore, and here an array of them is left, of shape {0}: "
        "`sems.at[...]` wants an index for each of its axes.",
    ),
    (
        r"emit_pipeline\(\) takes 1 positional",
        "`emit_pipeline(body, grid=…, …)` returns a function: the Refs go to that, as in "
        "`emit_pipeline(…)(x_ref, o_ref)`.",
    ),
    (
        r"Did not ask for inval to be discharged",
        "The CPU interpreter cannot run `emit_pipeline` inside `pl.run_scoped`: what its body "
        "needs, ask for by `scratch_shapes`.",
    ),
    (
        r"pytree structure error.*\n.*_ref|Buffer count >2 not supported for output",
        "A pipeline has a spec for each of its Refs, inputs in `in_specs` and outputs in "
        "`out_specs`; more than two slots only inputs may have.",
    ),
    (
        r"'int' object has no attribute 'buffer_count'",
        "How many slots an operand gets is said by `pipeline_mode=pl.Buffered(n)`.",
    ),
    (
        r"iteration over a 0-d array|'int' object is not iterable.*\n.*emit_pipeline",
        "A grid is a tuple, also of one axis: `grid=(n,)`.",
    ),
    (
        r"Grid must consist of[^\n]*float|'float' object cannot be interpreted as an integer",
        "`/` gives a float: blocks are counted by `//`, or by `pl.cdiv`.",
    ),
    (
        r"must divide tiling: block_size=\d+, tiling=(\d+)",
        "A pipeline cuts its blocks from tiled memory: their rows, or columns, are a multiple of "
        "{0}.",
    ),
    (
        r"'NoneType' object is not callable",
        "Something that is called is None: an index map that a `BlockSpec` lacks (`emit_pipeline` "
        "wants one in each), or the result of a function whose name alone was to be passed.",
    ),
    (
        r"'NoneType' object is not iterable|cannot unpack non-iterable NoneType",
        "A function returned None: is a `return` missing?",
    ),
    (
        r"must not be longer than `shape`",
        "There are more indices than axes: look at the shape of what is indexed.",
    ),
    (
        r"Einstein sum subscript",
        "The blocks have more axes than the formula, or fewer: a number in a block shape keeps its "
        "axis, `None` removes it.",
    ),
    (
        r"`in_specs` must be a tuple or a list",
        "One spec, too, stands in a list: `in_specs=[pl.BlockSpec(…)]`.",
    ),
    (
        r"mutable array reference of type Ref|ellipsis \(`\.\.\.`\)",
        "In an index map the program ids come first and the Refs of scalar prefetch after them; a "
        "Ref is read one number at a time, as in `perm_ref[e]`.",
    ),
    (
        r"[Cc]ustom VJP bwd rule",
        "The backward rule returns one gradient for each argument of the function, of its shape "
        "and dtype, and None for integers.",
    ),
    (
        r"[Cc]ustom VJP fwd rule",
        "The forward rule returns a pair: the result, and a tuple of what the backward rule will "
        "need.",
    ),
    (
        r"'NoneType' object has no attribute '(?:size|dtype|ndim|reshape)'",
        "A function returned None: is a `return` missing, or a part still to be filled in?",
    ),
    (
        r"'NoneType' object is not subscriptable.*\n.*_ref\[",
        "An operand that is absent has no Ref: the kernel gets None in its place. Ask with "
        "Python's `if ... is not None`, which decides while the kernel is traced.",
    ),
    (
        r"'NoneType' object has no attribute 'shape'",
        "An index map returned None, or None among its indices: is a `return` missing?",
    ),
    (
        r"'NoneType' has no len\(\)\n.*pallas_call",
        "An index map returns a whole number for each axis of the array, not a slice.",
    ),
    (
        r"module .*pallas\S* has no attribute '(?:load|store)'",
        "Older tutorials have it. Index the Ref instead: `x_ref[...]`, `o_ref[...] = value`.",
    ),
    (
        r"has no attribute 'TPUCompilerParams'",
        "It is called `pltpu.CompilerParams` now.",
    ),
    (
        r"unhashable type: 'dict'",
        "`compiler_params` is a `pltpu.CompilerParams(...)`, not a dict.",
    ),
    (
        r"'int' object is not iterable",
        "A block shape is a tuple: with one axis, write `(bm,)`, comma included.",
    ),
    (
        r"local variable '(\w+)'",
        "Assigning to `{0}` makes it a new variable. Write through the Ref: `{0}[...] = value`.",
    ),
    (
        r"result is a function",
        "`pl.pallas_call(...)` returns a function: call it with the arrays, as in `(...)(x)`.",
    ),
    (
        r"cond branches|true_fun|branch.* output|return.*pl\.when|[Tt]ree.*branch",
        "The function under `pl.when` returns nothing: it writes, as in `o_ref[...] = value`.",
    ),
    (
        r"primitive '(program_id|num_programs)' not found for platform cpu",
        "The CPU interpreter cannot answer `pl.{0}` inside a function under `pl.when`, or in a "
        "loop: ask at the top of the kernel, and use the number inside.",
    ),
    (
        r"Value shape: \(\)",
        "A Ref takes a whole block, not a single number: `jnp.zeros_like(o_ref)`, or "
        "`jnp.full_like(o_ref, number)`.",
    ),
    (
        r"Expected shape: \((\d+), 1\)\. Value shape: \((?:\1,|\1, \d+)\)",
        "This Ref takes a column, ({0}, 1): a reduction gives one with `axis=1, keepdims=True`, "
        "and zeros are `jnp.zeros_like` of the Ref itself.",
    ),
    (
        r"Expected shape: \((\d+), (\d+)\)\. Value shape: \((?:\1|\2),\)",
        "A vector does not fill a block: `v[:, None]` makes a column of it, `v[None, :]` a row, "
        "and arithmetic with both of them a block.",
    ),
    (
        r"Expected shape: \((\d+), (\d+)\)\. Value shape: \((?:1, \2|\1, 1)\)",
        "This is one row or one column, and a store does not broadcast. Copies of it are "
        "`jnp.broadcast_to(value, o_ref.shape)`; arithmetic of a column with a row fills a block.",
    ),
    (
        r"[Ii]nvalid shape for `?swap.*NDIndexer.*\n.*_ref\[(?!\.\.\.|:|pl\.ds)",
        "A number in the brackets picks one row of the block that the Ref holds; `[...]` is all of "
        "it. Which block that is, the index map has said.",
    ),
    (
        r"Expected shape: \(1, (\d+, \d+)\)\. Value shape: \(\1\)",
        "The Ref has an axis of one that the value lacks: `None` in its block shape removes it.",
    ),
    (
        r"(?:Abstract|Memory)Ref' object is not iterable\n.*pallas_call|get_ref_aval|"
        r"'super' object has no attribute '__getattr__'\n.*pallas_call|MemorySpace\.__call__",
        "`scratch_shapes` is a list with one buffer for each scratch Ref: "
        "`scratch_shapes=[pltpu.VMEM(shape, dtype)]`.",
    ),
    (
        r"Invalid out_shape type",
        "A shape alone has no dtype: `out_shape=jax.ShapeDtypeStruct(shape, dtype)`.",
    ),
    (
        r"'(int|float)' object has no attribute '(shape|dtype)'",
        "A Python {0} has no {1}: pass an array.",
    ),
    (
        r"(?:Value shape: \(1, (?:\d+, )+\d+\)|shapes=\[\(\d+, \d+\), \((?:\d+, ){2,}\d+\)\]|"
        r"shape \(-1).*\nin a kernel",
        "The blocks still have their leading axis. A 1 in a block shape keeps it, `None` removes "
        "it.",
    ),
    (
        r"'function' object is not iterable",
        "`pl.BlockSpec(block_shape, index_map)`: the shape comes first.",
    ),
    (
        r"unsupported operand type.*'tuple'",
        "A tuple does no arithmetic: unpack it first, as in `M, N = x.shape`.",
    ),
    (
        r"missing 1 required (?:positional|keyword-only) argument: '(out_shape)'",
        "`pallas_call` must know what it returns: pass "
        "`out_shape=jax.ShapeDtypeStruct(shape, dtype)`.",
    ),
    (
        r"[Bb]lock shape .*must have the same number of dimensions as the array shape",
        "A block shape has one entry for each axis of its array (`None` for an axis taken one by "
        "one).",
    ),
    (
        r"Index map .*must return .*values to match|block_shape .*must have the same number of "
        r"entries as the index_map|zip\(\) argument \d[^\n]*\n(?!.*zip\()",
        "An index map returns one block index for each axis of the array, counted in blocks; its "
        "block shape has as many entries.",
    ),
    (
        r"(?:kernel|map|<lambda>)\(\) (?:missing \d+ required positional|takes \d+ positional)",
        "A kernel receives one Ref for each input, each output and each scratch, in this order; an "
        "index map receives one program id for each axis of the grid.",
    ),
    (
        r"[Ii]ndex map.*captures? constants",
        "An index map cannot close over an array: pass it as a scalar-prefetch argument, and read "
        "the Ref that comes after the program ids.",
    ),
    (
        r"Too many indices: (?:array is )?0-dimensional",
        "A single number has no axes to index. In an index map the program ids come first and the "
        "Refs of scalar prefetch last.",
    ),
    (
        r"captures constants|closes? over|closed-over",
        "A kernel cannot close over an array: pass it to the call as an input with a BlockSpec of "
        "its own, or make it inside the kernel.",
    ),
    (
        r"should return None|must return None|kernel function .* return",
        "A kernel returns nothing: it writes its result into the output Ref, `o_ref[...] = ...`.",
    ),
    (
        r"UnexpectedTracer|Tracer'> is not a valid JAX (?:array )?type(?!.*\nin a kernel)",
        "This array belongs to another call: something was kept where it outlives the call that "
        "made it, in a list or a global name. Hand it on as an argument, a result or a residual.",
    ),
    (
        r"unsupported operand type.*Ref|AbstractRef|TransformedRef|"
        r"is not a valid JAX (?:array )?type|Ref\{|State effect|Argument .*Ref",
        "A Ref is a handle to memory, not an array: read it with `x_ref[...]` before computing.",
    ),
    (
        r"TracerArrayConversion.*\n.*\bnp\.",
        "NumPy needs the numbers, which are not known while Python runs: write `jnp` for `np`.",
    ),
    (
        r"TracerBoolConversion|truth value|TracerIntegerConversion|ConcretizationType|"
        r"TracerArrayConversion",
        "The value is not known while Python runs. In a kernel, branch with `pl.when(condition)`; "
        "in an index map, use arithmetic or `jnp.where`; outside, take sizes from "
        "`x.shape`, compute with data by `jnp` "
        "alone, and give what depends on data a static length (`length=`, `total_repeat_length=`).",
    ),
    (
        r"(?:dot_general|dot) requires contracting|contracting dimensions?\b.*same|"
        r"(?:dot|matmul)\b.*(?:incompatible|mismatch)",
        "The axes that are summed over must be equally long: (bm, bk) times (bk, bn); where the "
        "kernel sums over the last axes of both, (bm, bk) and (bn, bk); over the first, (bk, bm) "
        "and (bk, bn).",
    ),
    (
        r"[Ii]nvalid shape for `?swap|(?:Cannot (?:store|broadcast)|must have equal shapes|"
        r"\bbroadcast(?:ed|ing)?\b).*\nin a kernel",
        "Inside the kernel the shapes are those of the blocks, not of the arrays; what is stored "
        "must have the shape of the output block.",
    ),
    (
        r"Invalid dtype for `?swap.*Value dtype: float32.*\n.*\w+_ref\[.*\] \+=",
        "Sums are kept in float32. If this Ref is scratch, it was asked for in another dtype: "
        "`scratch_shapes=[pltpu.VMEM(shape, jnp.float32)]`.",
    ),
    (
        r"^[^\n]*(?:Invalid dtype for `?swap|[Dd]ata type '\w+' not understood|same dtypes?\b)",
        "What is stored must have the Ref's dtype. Either the value is to be cast, "
        "`o_ref[...] = value.astype(o_ref.dtype)`; or the Ref was asked for in another dtype than "
        "you meant, in `out_shape` or `scratch_shapes`.",
    ),
    (
        r"in_specs.*(?:length|structure|number)|Pytree for|out_specs",
        "`in_specs` has one BlockSpec for each input, `out_specs` one for each output, in order.",
    ),
    (r"out of memory|RESOURCE_EXHAUSTED", "Block or arrays are too large for this machine."),
    (r"\bEllipsis\b|'ellipsis'", "A `...` still stands where a value belongs: `# YOUR CODE HERE`."),
)


def told(error: Exception) -> str:
    """The learner's exception: their line, the gist, the remedy where we know one."""
    if isinstance(error, Endless):
        return str(error)
    gist = source.first_sentence(error) + source.meant(error)
    where = source.learners_line(error)
    place, line = where or ("", "")
    whose = f"`{line}` in `{place}`" if line else f"`{place}`"  # typed where no file keeps it
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
    for pattern, words in _REMEDIES:
        match = re.search(pattern, f"{gist}\n{line}\n{meanwhile}", re.DOTALL)
        if match:
            return words.format(*match.groups())
    return None
