"""What a TPU, or its compiler, refuses of a program: findings, by chip where chips differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax

from puzzles._launch import ERROR, Finding, Launch, Traced, as_function
from puzzles._tpu import columns, mosaic_words
from puzzles._tpu.chips import CHIPS, Chip
from puzzles._tpu.compiler import Compiler
from puzzles._tpu.libtpu_words import amount


def budget(launch: Launch, chip: Chip) -> int:
    """Bytes of VMEM that a launch may use on `chip`."""
    return launch.vmem_limit_bytes or chip.scoped_vmem_bytes


def room(launch: Launch, chips: Sequence[str]) -> Iterator[Finding]:
    """Where buffers do not fit: a launch and the names of chips in, at most a finding a memory."""
    used = launch.vmem_bytes
    tight = [name for name in chips if used > budget(launch, CHIPS[name])]
    if tight:
        chip = CHIPS[tight[0]]
        has = amount(budget(launch, chip))
        whose = "it asks for" if launch.vmem_limit_bytes else f"a kernel gets on {chip.name}"
        says = (
            f"Buffers and scratch of {launch.name} take {amount(used)} of VMEM, and {whose} {has}."
        )
        remedy = "Take smaller blocks"
        if chip.vmem_bytes > used:
            remedy += (
                ", or ask for more by `pltpu.CompilerParams(vmem_limit_bytes=...)`: a core of "
                f"{chip.name} has {amount(chip.vmem_bytes)}"
            )
        yield Finding(
            "vmem", ERROR, says, f"{remedy}.", launch.name,
            line=launch.line, chips=tuple(tight),
        )  # fmt: skip
    small = [name for name in chips if launch.smem_bytes > CHIPS[name].smem_bytes]
    if small:
        has = amount(CHIPS[small[0]].smem_bytes)
        says = (
            f"Scalars of {launch.name} take {amount(launch.smem_bytes)} of SMEM, which has {has}."
        )
        remedy = "Prefetch less, pack it, and keep it 1-D: the last of two axes is padded to 128."
        yield Finding(
            "smem", ERROR, says, remedy, launch.name, line=launch.line, chips=tuple(small)
        )


class LoweringError(Exception):
    """What Mosaic will not lower, as a `finding`."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.words)
        self.finding = finding


def lower(traced: Traced) -> None:
    """Lower `traced` by Mosaic, which needs neither a TPU nor libtpu; raises `LoweringError`.

    Finds broken rules of blocks, operations without a TPU form, and 1-D masks that become columns,
    which libtpu refuses; not too little memory.
    """
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in traced.leaves]
    try:
        jax.jit(as_function(traced, False)).trace(*shapes).lower(lowering_platforms=("tpu",))
    except Exception as error:
        raise LoweringError(mosaic_words.lowering(error, traced.jaxpr)) from None
    for equation in columns.mask_columns(traced.jaxpr):
        raise LoweringError(mosaic_words.mask_column(equation))


def lowered(traced: Traced) -> Iterator[Finding]:
    """What Mosaic will not lower, or nothing."""
    try:
        lower(traced)
    except LoweringError as error:
        yield error.finding


def compiled(
    traces: Sequence[Traced], compiler: Compiler, chips: Sequence[str] | None = None
) -> Iterator[tuple[int, Finding]]:
    """What libtpu refuses: the number of the first program that a chip refuses, and why.

    Chips that refuse the same for the same reason are told once.
    """
    told: dict[tuple[int, str], list[str]] = {}
    for chip, answer in compiler.compile_all(list(traces), chips).items():
        if answer is not None:
            told.setdefault(answer, []).append(chip)
    for (number, why), refusing in sorted(told.items(), key=lambda one: one[0][0]):
        kind = "vmem" if "VMEM" in why else "smem" if "SMEM" in why else "compile"
        says = f"The compiler for {refusing[0]} refuses it: {why}"
        yield number, Finding(kind, ERROR, says, chips=tuple(refusing))


def known_to_fit(findings: Sequence[Finding], chips: Sequence[str]) -> tuple[Finding, ...]:
    """Findings without estimates that a compiler has refuted for `chips`: it compiled there."""
    kept = []
    for one in findings:
        if one.kind not in ("vmem", "smem") or not one.chips:
            kept.append(one)
        elif left := tuple(chip for chip in one.chips if chip not in chips):
            kept.append(replace(one, chips=left))
    return tuple(kept)
