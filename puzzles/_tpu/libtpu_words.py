"""What the TPU compiler refuses, in plain words."""

from __future__ import annotations

import re

from puzzles._rules import rows, sentence
from puzzles._tpu.chips import CHIPS
from puzzles._tpu.mosaic_words import LINE_RULE, MASK_RULE, gist


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
    for row, found in rows("libtpu", text):
        ours = {
            "line_rule": LINE_RULE,
            "mask_rule": MASK_RULE,
            "rows_in_2d": sentence("rows in two dimensions"),
        }
        return row.says.format(*found.groups(), **ours)
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
