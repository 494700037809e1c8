"""What the TPU compiler refuses, in plain words."""

from __future__ import annotations

import re

from puzzles._tpu.chips import CHIPS
from puzzles._tpu.mosaic_words import LINE_RULE, MASK_RULE, ROWS_IN_2D, gist

# A pattern in its message, and what to say with the groups of the pattern.
_COMPILER = (
    (
        r"statically prove that index in dimension (\d+) is a multiple of (\d+)",
        "a slice must start at a multiple of {1} on axis {0} of the Ref, and the compiler must see "
        "that: write the start as `i * {1}`, or promise it by `pl.multiple_of(start, {1})`.",
    ),
    (
        r"Failed to verify layout.*shape (\w+\[\d+\]).*block shape to \((\d+)\)",
        f"{LINE_RULE}: for {{0}} it wants a block of {{1}}.",
    ),
    (
        r"unsupported shape cast.*?\(vector<\d+xi1>\) -> vector<\d+x1(?:x1)*xi1>",
        f"{MASK_RULE}: {ROWS_IN_2D}",
    ),
    (
        r"unsupported shape cast.*?\(vector<([\dx]+)x\w+>\) -> vector<([\dx]+)x\w+>",
        "a value of {0} cannot be reshaped to {1} in the kernel: keep the last two axes as they "
        "are, or reshape outside.",
    ),
    (
        r"Bad lhs/rhs type: 'vector<[\dx]+x(\w+)>'",
        "the matrix unit does not multiply {0}: use bfloat16, float32 or int8.",
    ),
    (
        r"float acc with int lhs",
        "the matrix unit of this chip does not multiply integers: use bfloat16 or float32.",
    ),
    (r"'f16'|xf16>", "float16 is not a type of the TPU: use bfloat16."),
    (r"last dim size is not 128", "a slice with a step along the last axis does not compile."),
)


def refusal(text: str, chip: str) -> str:
    """Why libtpu will not compile a kernel for `chip`, from its message."""
    core_has = CHIPS[chip].vmem_bytes
    mib = r"([\d.]+)([KMG])"
    if found := re.search(rf"allocation with size {mib} and limit {mib}", text):
        return _vmem(_bytes(found[1], found[2]), _bytes(found[3], found[4]), chip)
    if found := re.search(rf"memory space vmem\. Used {mib} of {mib}", text):
        return _vmem(_bytes(found[1], found[2]), _bytes(found[3], found[4]), chip)
    if found := re.search(r"\(size=(\d+)\) would exceed memory \(size=(\d+)\).*space=(\w+)", text):
        need, have, space = int(found[1]), int(found[2]), found[3]
        if space == "vmem":
            return _vmem(need, have, chip)
        if space == "smem":
            return (
                f"an array in SMEM takes {amount(need)}, and SMEM has {amount(have)}. Prefetch "
                "less, pack it, and keep it 1-D: the last of two axes is padded to 128."
            )
    if "memory space vmem" in text:
        return f"it needs more VMEM than the {amount(core_has)} of a {chip}. Use smaller blocks."
    for pattern, words in _COMPILER:
        if found := re.search(pattern, text, re.DOTALL):
            return words.format(*found.groups())
    return f"Mosaic refuses the kernel: {gist(text)}"


def _vmem(need: float, have: float, chip: str) -> str:
    core_has = CHIPS[chip].vmem_bytes
    says = f"it needs {amount(need)} of VMEM, and "
    if max(need, have) > 0.99 * core_has:
        return says + f"a core of {chip} has {amount(core_has)}. Use smaller blocks."
    return says + (
        f"a kernel on {chip} gets {amount(have)}. Use smaller blocks, or ask for more with "
        f"`pltpu.CompilerParams(vmem_limit_bytes=...)`: a core has {amount(core_has)}."
    )


def _bytes(number: str, unit: str) -> float:
    return float(number) * 1024 ** ("KMG".index(unit) + 1)


def amount(count: float) -> str:
    return f"{count / 2**20:.4g} MiB"
