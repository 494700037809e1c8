"""What Mosaic will not lower, in plain words."""

from __future__ import annotations

import linecache
import re
import types

from puzzles._jax import ClosedJaxpr, JaxprEqn, array_of, user_frame
from puzzles._launch import (
    ERROR,
    Finding,
    kernel_calls,
    line_of,
    parameter_names,
    placed,
    text_of,
)
from puzzles._rules import instead, rows, sentence

TILE_RULE = (
    "the last two dimensions of a block must be multiples of (8, 128), "
    "or the whole axis of the array"
)
LINE_RULE = "a 1-D block must be the whole array or a multiple of 1024"
MASK_RULE = "a 1-D mask does not become a column"


def lowering(error: Exception, program: ClosedJaxpr) -> Finding:
    """What to say of an exception of Mosaic's lowering."""
    text = str(error)
    if "block shape" in text and (found := re.search(r"Block spec for (\S+)", text)):
        rule = LINE_RULE if "rank 1" in text else TILE_RULE
        operand, block, shape = _block(found[1], program)
        named = f"`{operand}`" if operand else found[1]
        whose = f"the block {block} of {named}, whose array has shape {shape}" if block else named
        says = f"Mosaic refuses {whose}: {rule}."
        return Finding("misaligned", ERROR, says, operand=operand)
    where = _learners_line(error, program)
    line = _short(linecache.getline(*where).strip()) if where else None
    place = placed(*where) if where else None
    refused = f"`{line}`" if line else "the kernel"
    if found := re.search(r"Unimplemented primitive.*?: ([\w-]+)", text):
        other = instead(found[1])
        remedy = f": {other}" if other else ""
        used = f" It is used in `{line}`." if line else ""
        says = f"`{found[1]}` has no TPU lowering in Pallas{remedy}.{used}"
        return Finding("lowering", ERROR, says, line=place)
    for row, _ in rows("mosaic", text):
        says = f"Mosaic refuses {refused}: {row.rule}."
        return Finding("lowering", ERROR, says, row.says, line=place)
    reason = gist(text) or sentence("wordless", error=type(error).__name__)
    return Finding("lowering", ERROR, f"Mosaic refuses {refused}: {reason}", line=place)


def mask_column(equation: JaxprEqn) -> Finding:
    """What to say of the equation that makes a column of a 1-D mask."""
    line = _short(text_of(equation.source_info))
    refused = f"`{line}`" if line else "the kernel"
    says = f"The TPU compiler refuses {refused}: {MASK_RULE}."
    remedy = sentence("rows in two dimensions")
    return Finding("lowering", ERROR, says, remedy, line=line_of(equation.source_info))


def _block(origin: str, program: ClosedJaxpr) -> tuple[str | None, object, object]:
    """The operand that JAX calls `args[0]` or `outputs`: its name, block and shape."""
    for call in kernel_calls(program.jaxpr):
        grid = call.params["grid_mapping"]
        for position, mapping in enumerate(grid.block_mappings):
            if mapping.origin == origin:
                array = array_of(mapping)
                name = parameter_names(call)[grid.num_index_operands + position]
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
    frames = (user_frame(call.source_info) for call in kernel_calls(program.jaxpr))
    calls = {(frame.file_name, frame.start_line) for frame in frames if frame is not None}
    return None if last in calls else last


def _short(text: str) -> str:
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
