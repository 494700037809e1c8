"""What Mosaic will not lower, in plain words."""

from __future__ import annotations

import linecache
import re
import types

from puzzles._jax import ClosedJaxpr, JaxprEqn, array_of
from puzzles._launch import ERROR, Finding, kernel_calls, placed
from puzzles._tpu.watch import parameters, source_line

TILE_RULE = (
    "the last two dimensions of a block must be multiples of (8, 128), "
    "or the whole axis of the array"
)
LINE_RULE = "a 1-D block must be the whole array or a multiple of 1024"
MASK_RULE = "a 1-D mask does not become a column"
ROWS_IN_2D = (
    "number the rows in two dimensions from the start, `jax.lax.broadcasted_iota(jnp.int32, "
    "o_ref.shape, 0)`; or make a column of the numbers, `rows[:, None]`, and compare then."
)
_NO_FORM = "only operations with a TPU form may appear in a kernel"
# What to write instead of a primitive that Pallas cannot lower for a TPU.
_INSTEAD = {
    "erf": "the tanh form of GELU lowers: `jax.nn.gelu(x)`",
    "erfc": "the tanh form of GELU lowers: `jax.nn.gelu(x)`",
    "cumsum": "multiply by a triangular matrix of ones instead",
    "cumprod": "for positive numbers, take `jnp.log`, multiply by a triangular matrix of ones, "
    "then `jnp.exp`",
    "cumlogsumexp": "keep a running maximum and a running sum over the grid",
    "cummax": "keep a running maximum over the grid",
    "sort": "sort outside the kernel, or keep a running maximum",
    "top_k": "take the maximum, mask it, and repeat",
    "rev": "reverse outside the kernel, or in the index map",
    "gather": "pick blocks by an index map, or rows by a one-hot matmul",
    "dynamic_slice": "slice the Ref, `x_ref[pl.ds(start, size)]`, not the value",
    "dynamic_update_slice": "write to a slice of the Ref, `o_ref[pl.ds(start, size)] = ...`",
    "scatter": "use `jnp.where` with a mask from `jax.lax.broadcasted_iota`",
    "scatter-add": "multiply by a one-hot matrix",
    "reduce_prod": "`jnp.exp(jnp.sum(jnp.log(x)))` for positive numbers",
    "expm1": "`jnp.exp(x) - 1`",
    "random_bits": "use `pltpu.prng_seed` and `pltpu.prng_random_bits`",
}
_WORDLESS = (
    "it gives no reason ({}). Keep the values in a kernel 2-D (`keepdims=True`), and let a loop "
    "write to a Ref instead of returning a stack."
)
# A pattern in the message, the rule, and what to do.
_LOWERING = (
    (
        r"Cannot store scalars to VMEM",
        "VMEM holds vectors: a scalar cannot be stored there",
        "Store a whole block (`keepdims=True` keeps a sum 2-D), or give this output "
        "`memory_space=pltpu.SMEM`.",
    ),
    (
        r"Loads.* are only allowed on VMEM and SMEM",
        "a kernel cannot index a Ref in HBM (`memory_space=pl.ANY`)",
        "Copy it to a VMEM scratch buffer first, `pltpu.sync_copy(x_ref.at[...], scratch_ref)`.",
    ),
    (
        r"Can only load scalars from SMEM",
        "SMEM holds scalars, which are read one by one",
        "Index down to one element, `s_ref[i]`, or pass the array as a blocked input.",
    ),
    (
        r"Expected matmul acc to be 32-bit",
        "a matmul accumulates in 32 bits",
        "`jnp.dot(a, b, preferred_element_type=jnp.float32)`, then cast what you store.",
    ),
    (
        # HIGH lowers since 0.11.1; the presets break on every version, without such words
        r"Unsupported dot precision|DotAlgorithmPreset",
        "a matmul knows the precisions DEFAULT and HIGHEST, and on newer JAX also HIGH",
        "Leave `precision` out, or ask for `jax.lax.Precision.HIGHEST`.",
    ),
    (
        r"captures constants",
        "a kernel cannot close over an array",
        "Pass it to the call as an input with a BlockSpec of its own, or make it in the kernel.",
    ),
    (
        r"extensive (?:output|input)",
        "a loop in a kernel cannot stack results",
        "Write them to a Ref inside `jax.lax.fori_loop`.",
    ),
    (
        r"placeholders|debug_print|For vector input",
        "in the text of `debug_print`, `{}` takes integers, or at its end one array",
        'A float does without: `pl.debug_print("x", x)`.',
    ),
    (
        r"dimension.semantics",
        "`dimension_semantics` has one entry for each axis of the grid",
        "Count the axes of the grid.",
    ),
    (
        r"elementType.*VectorElementType|complex(?:64|128)|\bc64\b",
        "a TPU kernel knows no complex numbers",
        "Keep the real and the imaginary part in two Refs.",
    ),
    (
        r"\b(?:float64|int64|f64|i64)\b",
        "a TPU kernel knows no 64-bit numbers",
        "Use float32 and int32.",
    ),
    (
        r"take_along_axis-like gathers|not a fori_loop index",
        _NO_FORM,
        "An array is no index: pick blocks by an index map, or rows by a one-hot matmul.",
    ),
    (
        r"Unable to parse attribute",
        "a matmul multiplies two matrices and sums over one axis of each",
        "An outer product is a broadcast, `x[:, None] * y[None, :]`.",
    ),
    (
        r"index_cast.*got 'b?f\d+'",
        "an index into a Ref is an integer, and this one is a float",
        "Divide by `//`, not by `/`.",
    ),
    (
        r"Unsupported cast: (\w+) -> (\w+)",
        "Mosaic does not know this cast",
        "Go by way of float32 or int32, or cast outside the kernel.",
    ),
)


def lowering(error: Exception, program: ClosedJaxpr) -> tuple[Finding, str | None]:
    """What to say of an exception of Mosaic's lowering, and the rule that is broken, if known."""
    text = str(error)
    if "block shape" in text and (found := re.search(r"Block spec for (\S+)", text)):
        rule = LINE_RULE if "rank 1" in text else TILE_RULE
        operand, block, shape = _block(found[1], program)
        named = f"`{operand}`" if operand else found[1]
        whose = f"the block {block} of {named}, whose array has shape {shape}" if block else named
        says = f"Mosaic refuses {whose}: {rule}."
        return Finding("misaligned", ERROR, says, operand=operand), rule
    where = _learners_line(error, program)
    line = _shown(*where) if where else None
    place = placed(*where) if where else None
    refused = f"`{line}`" if line else "the kernel"
    if found := re.search(r"Unimplemented primitive.*?: ([\w-]+)", text):
        remedy = f": {_INSTEAD[found[1]]}" if found[1] in _INSTEAD else ""
        used = f" It is used in `{line}`." if line else ""
        says = f"`{found[1]}` has no TPU lowering in Pallas{remedy}.{used}"
        return Finding("lowering", ERROR, says, line=place), _NO_FORM
    for pattern, rule, remedy in _LOWERING:
        if re.search(pattern, text):
            says = f"Mosaic refuses {refused}: {rule}."
            return Finding("lowering", ERROR, says, remedy, line=place), rule
    reason = gist(text) or _WORDLESS.format(type(error).__name__)
    return Finding("lowering", ERROR, f"Mosaic refuses {refused}: {reason}", line=place), None


def mask_column(equation: JaxprEqn) -> Finding:
    """What to say of the equation that makes a column of a 1-D mask."""
    where = source_line(equation.source_info)
    line = _shown(*where) if where else None
    refused = f"`{line}`" if line else "the kernel"
    says, remedy = f"The TPU compiler refuses {refused}: {MASK_RULE}.", f"N{ROWS_IN_2D[1:]}"
    return Finding("lowering", ERROR, says, remedy, line=placed(*where) if where else None)


def _block(origin: str, program: ClosedJaxpr) -> tuple[str | None, object, object]:
    """The operand that JAX calls `args[0]` or `outputs`: its name, block and shape."""
    for call in kernel_calls(program.jaxpr):
        grid = call.params["grid_mapping"]
        for position, mapping in enumerate(grid.block_mappings):
            if mapping.origin == origin:
                array = array_of(mapping)
                name = parameters(call)[grid.num_index_operands + position]
                block = tuple(getattr(b, "block_size", None) for b in mapping.block_shape)
                return name, block, tuple(array.shape)
    return None, None, None


def _learners_line(error: Exception, program: ClosedJaxpr) -> tuple[str, int] | None:
    """The line of the kernel whose operation failed, if it is known.

    The verifier names it in a cause, `"kernel"("file.py":12:4 to :9)`; else JAX chains the
    traceback of the operation, which ends at the `pallas_call` where it knows no better.
    """
    cause: BaseException | None = error
    while cause is not None:
        if found := re.search(r'\("([^"]+)":(\d+):', str(cause)):
            return found[1], int(found[2])
        cause = cause.__cause__ or cause.__context__
    tb: types.TracebackType | None = getattr(error.__cause__, "__traceback__", None)
    last = None
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if not re.search(r"[\\/](?:jax|jaxlib)[\\/]|[\\/]puzzles[\\/]_\w+\.py$|<frozen", name):
            last = (name, tb.tb_lineno)
        tb = tb.tb_next
    calls = {source_line(call.source_info) for call in kernel_calls(program.jaxpr)}
    if last is None or last in calls:
        return None
    return last


def _shown(file: str, line: int) -> str | None:
    text = linecache.getline(file, line).strip()
    return text if len(text) <= 100 else text[:97] + "..."


def gist(text: str) -> str:
    """The first line that says something, without locations, codes and calls for bug reports."""
    for noise in (
        r"^(?:INTERNAL|INVALID_ARGUMENT|UNIMPLEMENTED|RESOURCE_EXHAUSTED): ",
        r"Mosaic failed to compile TPU kernel: ",
        r"Pallas encountered .* error\.\s*Please file a bug at \S+ Error details: ",
        r"^\w*\s*(?:Verification failed|Invalid type):\s*",
        r"error: .*\)\): |loc\([^)]*\)",
        r"\bE\d{4}: \w+: ?",
        r" ?Please (?:file|report) .*",
    ):
        text = re.sub(noise, "", text.strip())
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("See http")), "")
