"""Messages for the errors of Mosaic and libtpu."""

from __future__ import annotations

import linecache
import os
import re
import types

from puzzles._compile.chips import CHIPS
from puzzles._equations import array_of
from puzzles._jax import ClosedJaxpr, JaxprEqn, user_frame
from puzzles._launch import Finding, line_of, placed, text_of, told
from puzzles._program import kernel_calls, parameter_names
from puzzles._rules import instead, rows, sentence

_PYTHON = os.path.dirname(os.__file__)  # its own library
# libtpu's messages about memory: the bytes needed, and the bytes that there are.
_MEMORY = (
    "allocation with size {need} and limit {have}",
    r"memory space (?P<space>vmem)\. Used {need} of {have}",
    r"\(size={need}\) would exceed memory \(size={have}\).*space=(?P<space>vmem|smem)",
)


def lowering(error: Exception, program: ClosedJaxpr) -> Finding:
    """Return the finding for an exception of Mosaic's lowering."""
    text = str(error)
    if "block shape" in text and (match := re.search(r"Block spec for (\S+)", text)):
        operand, whose = _block(match[1], program)
        words = "one_d_block_in_mosaic" if "rank 1" in text else "block_in_mosaic"
        return told("misaligned", words, operand=operand, whose=whose)
    place = _learners_line(error, program)
    line = _short(linecache.getline(*place).strip()) if place else None
    refused = f"`{line}`" if line else "the kernel"
    facts = dict(line=placed(*place) if place else None, refused=refused)
    if match := re.search(r"Unimplemented primitive.*?: ([\w-]+)", text):
        replacement = instead(match[1])
        facts |= dict(primitive=match[1], other=f": {replacement}" if replacement else "")
        facts["used"] = f" It is used in `{line}`." if line else ""
        return told("lowering", "no_lowering", **facts)
    for row, _ in rows("mosaic", text):
        return told("lowering", "rule_of_mosaic", rule=row.rule, remedy=row.says, **facts)
    reason = gist(text) or sentence("wordless", error=type(error).__name__)
    return told("lowering", "refused_by_mosaic", reason=reason, **facts)


def mask_column(equation: JaxprEqn) -> Finding:
    """Return the finding for an equation that turns a 1-D mask into a column."""
    line = _short(text_of(equation.source_info))
    refused = f"`{line}`" if line else "the kernel"
    return told("lowering", "mask", line=line_of(equation.source_info), refused=refused)


def _block(origin: str, program: ClosedJaxpr) -> tuple[str | None, str]:
    """The operand that JAX calls `args[0]` or `outputs`, and a phrase for its block."""
    for call in kernel_calls(program.jaxpr):
        grid = call.params["grid_mapping"]
        for position, mapping in enumerate(grid.block_mappings):
            if mapping.origin == origin:
                name = parameter_names(call)[grid.num_index_operands + position]
                block = tuple(getattr(b, "block_size", None) for b in mapping.block_shape)
                facts = dict(name=name, block=block, shape=tuple(array_of(mapping).shape))
                return name, sentence("block_of_an_array", **facts)
    return None, origin


def _learners_line(error: Exception, program: ClosedJaxpr) -> tuple[str, int] | None:
    """File and line number of the operation that failed in the kernel; None if unknown.

    Mosaic's verifier names the line in a cause, `"kernel"("file.py":12:4 to :9)`. Otherwise JAX
    chains the operation's traceback; it ends at the `pallas_call` if JAX has no line.
    """
    cause: BaseException | None = error
    while cause is not None:
        if match := re.search(r'\("([^"]+)":(\d+):', str(cause)):
            return match[1], int(match[2])
        cause = cause.__cause__ or cause.__context__
    tb: types.TracebackType | None = getattr(error.__cause__, "__traceback__", None)
    last = None
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        ours = re.search(r"[\\/](?:jax|jaxlib)[\\/]|[\\/]puzzles[\\/]_|<frozen", name)
        if not ours and os.path.dirname(name) != _PYTHON:
            last = (name, tb.tb_lineno)
        tb = tb.tb_next
    frames = (user_frame(call.source_info) for call in kernel_calls(program.jaxpr))
    calls = {(frame.file_name, frame.start_line) for frame in frames if frame is not None}
    return None if last in calls else last


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."


def gist(text: str) -> str:
    """The first line of a message, without locations, codes and requests for bug reports."""
    for noise in (
        r"^(?:INTERNAL|INVALID_ARGUMENT|UNIMPLEMENTED|RESOURCE_EXHAUSTED): ",
        r"Mosaic failed to compile TPU kernel(?: with MLIR module name .*?HLO name \S+)?: ",
        r"Pallas encountered .* error\.\s*Please file a bug at \S+ Error details: ",
        r"^\w*\s*(?:Verification failed|Invalid type):\s*",
        r"error: .*\)\): |loc\([^)]*\)",
        r"\bE\d{4}: \w+: ?",
        r" ?Please (?:file|report) .*",
    ):
        text = re.sub(noise, "", text.strip())
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("See http")), "")


def refusal(text: str, chip: str) -> str:
    """Explain libtpu's message `text`, its reason not to compile a kernel for `chip`."""
    core = CHIPS[chip].vmem_bytes
    for pattern in _MEMORY:
        sizes = {name: rf"(?P<{name}>[\d.]+)(?P<{name}_unit>[KMG]?)" for name in ("need", "have")}
        if match := re.search(pattern.format(**sizes), text):
            need, have = (_bytes(match[name], match[f"{name}_unit"]) for name in sizes)
            words = "no_room_for_scalars"
            if match.groupdict().get("space") != "smem":
                words = "no_room_on_a_core" if max(need, have) > 0.99 * core else "no_room_in_vmem"
            facts = dict(need=mebibytes(need), have=mebibytes(have), chip=chip)
            return sentence(words, core=mebibytes(core), **facts)
    if "memory space vmem" in text:
        return sentence("more_vmem_than_there_is", core=mebibytes(core), chip=chip)
    for row, match in rows("libtpu", text):
        return row.says.format(*match.groups())
    return f"Mosaic refuses the kernel: {gist(text)}"


def _bytes(number: str, unit: str) -> float:
    return float(number) * 1024 ** " KMG".index(unit)


def mebibytes(count: float) -> str:
    return f"{count / 2**20:.4g} MiB"
