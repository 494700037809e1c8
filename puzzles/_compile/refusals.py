"""Findings about programs that a TPU or its compiler refuses, with the chips that refuse them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice

import jax

from puzzles._compile import columns, messages
from puzzles._compile.chips import CHIPS, Chip
from puzzles._compile.compiler import Compiler, NoAnswer, NotLowered
from puzzles._compile.messages import mebibytes
from puzzles._launch import ERROR, WARNING, Finding, Launch, Traced, as_function, told
from puzzles._program import aimed_at, as_tpu
from puzzles._rules import sentence


def on_chip(name: str) -> AbstractContextManager[None]:
    """Context manager: `as_tpu` means the devices of this chip."""
    chip = CHIPS[name]
    return aimed_at(chip.kind, 1 + chip.megacore)


def budget(launch: Launch, chip: Chip) -> int:
    """Bytes of VMEM that a launch may use on `chip`."""
    return launch.vmem_limit_bytes or chip.scoped_vmem_bytes


def room(launch: Launch, chips: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for VMEM and one for SMEM if a launch's buffers do not fit."""
    used, where = launch.vmem_bytes, dict(launch=launch.name, line=launch.line)
    tight = [name for name in chips if used > budget(launch, CHIPS[name])]
    if tight:
        chip = CHIPS[tight[0]]
        whose = "it asks for" if launch.vmem_limit_bytes else f"a kernel gets on {chip.name}"
        sizes = dict(used=mebibytes(used), has=mebibytes(budget(launch, chip)))
        words = "vmem_of_a_kernel" if chip.vmem_bytes > used else "vmem_of_a_core"
        facts = dict(whose=whose, chip=chip.name, core=mebibytes(chip.vmem_bytes), **sizes)
        yield told("vmem", words, chips=tuple(tight), **where, **facts)
    small = [name for name in chips if launch.smem_bytes > CHIPS[name].smem_bytes]
    if small:
        sizes = dict(used=mebibytes(launch.smem_bytes), has=mebibytes(CHIPS[small[0]].smem_bytes))
        yield told("smem", "smem", chips=tuple(small), **where, **sizes)


def on_shared_cores(finding: Finding, chips: Sequence[str]) -> Finding:
    """Limit a finding about two cores to the chips whose cores share a grid; warn without any."""
    shared = finding.kind in ("parallel", "race") and finding.operand is not None
    if not shared or finding.severity != ERROR:
        return finding
    if both := tuple(chip for chip in chips if CHIPS[chip].megacore):
        return replace(finding, chips=both)
    named = " and ".join(name for name, chip in CHIPS.items() if chip.megacore)
    says = sentence("two_cores", says=finding.says, on=named)
    return replace(finding, severity=WARNING, says=says)


def lowered(traced: Traced) -> Iterator[Finding]:
    """Yield a finding for the first operation that Mosaic refuses; needs no TPU and no libtpu.

    Detects block shapes that break a rule, operations without a TPU form, and 1-D masks that
    become columns, which libtpu refuses. Does not detect too little memory.
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
    """Yield the number of the first program that a chip refuses, and the finding.

    Chips that refuse one program for one reason share a finding. Its kind is "unanswered" if libtpu
    was too slow or died.
    """
    yield from _refusals(compiler.compile_all(list(traces), chips))


def compiled_as_traced(
    trace: Callable[[], Sequence[Traced]], compiler: Compiler, chips: Sequence[str]
) -> Iterator[tuple[int, Finding]]:
    """As `compiled`, for programs that are traced for each chip: SparseCores differ.

    A chip without SparseCores gives no answer.
    """
    answers: dict[str, tuple[int, str] | None] = {}
    for chip in chips:
        with on_chip(chip):
            try:
                programs = trace()
            except Exception as error:
                answers[chip] = 0, NoAnswer(error)
            else:
                answers |= compiler.compile_all(programs, [chip])
    yield from _refusals(answers)


def _refusals(answers: Mapping[str, tuple[int, str] | None]) -> Iterator[tuple[int, Finding]]:
    refusals: dict[tuple[int, str], list[str]] = {}
    for chip, answer in answers.items():
        if answer is not None:
            refusals.setdefault(answer, []).append(chip)
    for (number, why), refusing in sorted(refusals.items(), key=lambda refusal: refusal[0][0]):
        kind = "vmem" if "VMEM" in why else "smem" if "SMEM" in why else "compile"
        says = f"The compiler for {refusing[0]} refuses it: {why}"
        if isinstance(why, NoAnswer):
            kind, says = "unanswered", why
        finding = why.finding if isinstance(why, NotLowered) else Finding(kind, ERROR, says)
        yield number, replace(finding, chips=tuple(refusing))


def known_to_fit(finding: Finding, chips: Sequence[str]) -> Iterator[Finding]:
    """Yield `finding`, unless the compiler contradicts it: limits of `chips`, and layouts.

    chips: those for which the program compiled; for a layout, at least one.
    """
    left = tuple(chip for chip in finding.chips if chip not in chips)
    if finding.kind == "misaligned" and finding.severity != ERROR and chips:
        return
    if finding.kind not in ("vmem", "smem") or not finding.chips:
        yield finding
    elif left:
        yield replace(finding, chips=left)
