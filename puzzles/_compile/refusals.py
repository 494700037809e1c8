"""What a TPU, or its compiler, refuses of a program: findings, by chip where chips differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import jax

from puzzles._compile import columns, messages
from puzzles._compile.chips import CHIPS, Chip
from puzzles._compile.compiler import Compiler
from puzzles._compile.messages import amount
from puzzles._launch import ERROR, Finding, Launch, Traced, as_function, told
from puzzles._program import as_tpu


def budget(launch: Launch, chip: Chip) -> int:
    """Bytes of VMEM that a launch may use on `chip`."""
    return launch.vmem_limit_bytes or chip.scoped_vmem_bytes


def room(launch: Launch, chips: Sequence[str]) -> Iterator[Finding]:
    """Where buffers do not fit: a launch and the names of chips in, at most a finding a memory."""
    used, where = launch.vmem_bytes, dict(launch=launch.name, line=launch.line)
    tight = [name for name in chips if used > budget(launch, CHIPS[name])]
    if tight:
        chip = CHIPS[tight[0]]
        whose = "it asks for" if launch.vmem_limit_bytes else f"a kernel gets on {chip.name}"
        sizes = dict(used=amount(used), has=amount(budget(launch, chip)))
        words = "vmem_of_a_kernel" if chip.vmem_bytes > used else "vmem_of_a_core"
        facts = dict(whose=whose, chip=chip.name, core=amount(chip.vmem_bytes), **sizes)
        yield told("vmem", words, chips=tuple(tight), **where, **facts)
    small = [name for name in chips if launch.smem_bytes > CHIPS[name].smem_bytes]
    if small:
        sizes = dict(used=amount(launch.smem_bytes), has=amount(CHIPS[small[0]].smem_bytes))
        yield told("smem", "smem", chips=tuple(small), **where, **sizes)


def lowered(traced: Traced) -> Iterator[Finding]:
    """The first thing that Mosaic will not lower, or nothing; needs neither a TPU nor libtpu.

    Finds broken rules of blocks, operations without a TPU form, and 1-D masks that become columns,
    which libtpu refuses; not too little memory.
    """
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in traced.leaves]
    try:
        with as_tpu():  # from JAX 0.11.2 on `run_scoped` asks for the chip here
            jax.jit(as_function(traced)).trace(*shapes).lower(lowering_platforms=("tpu",))
    except Exception as error:
        yield messages.lowering(error, traced.jaxpr)
    else:
        masks = columns.mask_columns(traced.jaxpr)
        yield from map(messages.mask_column, islice(masks, 1))


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


def known_to_fit(one: Finding, chips: Sequence[str]) -> Iterator[Finding]:
    """A finding, unless it is an estimate that a compiler has refuted: it compiled for `chips`."""
    left = tuple(chip for chip in one.chips if chip not in chips)
    if one.kind not in ("vmem", "smem") or not one.chips:
        yield one
    elif left:
        yield replace(one, chips=left)
