"""What the TPU compiler refuses, in plain words."""

from __future__ import annotations

import re

from puzzles._rules import rows, sentence
from puzzles._tpu.chips import CHIPS
from puzzles._tpu.mosaic_words import gist

# What it says of memory: how much is needed of how much.
_MEMORY = (
    "allocation with size {need} and limit {have}",
    r"memory space (?P<space>vmem)\. Used {need} of {have}",
    r"\(size={need}\) would exceed memory \(size={have}\).*space=(?P<space>vmem|smem)",
)


def refusal(text: str, chip: str) -> str:
    """Why libtpu will not compile a kernel for `chip`, from its message."""
    core = CHIPS[chip].vmem_bytes
    for pattern in _MEMORY:
        sizes = {name: rf"(?P<{name}>[\d.]+)(?P<{name}_unit>[KMG]?)" for name in ("need", "have")}
        if found := re.search(pattern.format(**sizes), text):
            need, have = (_bytes(found[name], found[f"{name}_unit"]) for name in sizes)
            words = "no room for scalars"
            if found.groupdict().get("space") != "smem":
                words = "no room on a core" if max(need, have) > 0.99 * core else "no room in VMEM"
            facts = dict(need=amount(need), have=amount(have), chip=chip)
            return sentence(words, core=amount(core), **facts)
    if "memory space vmem" in text:
        return sentence("more VMEM than there is", core=amount(core), chip=chip)
    for row, found in rows("libtpu", text):
        return row.says.format(*found.groups())
    return f"Mosaic refuses the kernel: {gist(text)}"


def _bytes(number: str, unit: str) -> float:
    return float(number) * 1024 ** " KMG".index(unit)


def amount(count: float) -> str:
    return f"{count / 2**20:.4g} MiB"
