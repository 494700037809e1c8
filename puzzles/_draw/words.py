"""A launch as plain text, for terminals and below its picture."""

from __future__ import annotations

from puzzles._draw.copies import copies_text
from puzzles._draw.data import Data
from puzzles._draw.palette import tuple_words
from puzzles._receipt import amount, pipeline_words
from puzzles._rules import plural, sentence


def walk_text(data: Data) -> str:
    """The picture in words: faults, the traffic of each operand, and totals."""
    parts = [title(data), *(f"✗ {fault['says']}" for fault in data["faults"])]
    copied = copies_text(data["copies"]) if data["copies"] else []
    return "\n".join([*parts, *summary(data), *copied])


def title(data: Data) -> str:
    """The kernel, its grid and its steps."""
    grid = f"grid {tuple_words(data['grid'])} = " if data["grid"] else "no grid: "
    steps = f"{'' if data['noun'] == 'core' else grid}{plural(data['steps'], data['noun'])}"
    return f"{data['kernel']}: {steps}{pipeline_words(data['pipeline'])}"


def summary(data: Data) -> list[str]:
    """A line for each operand, and a line with the totals."""
    lines = []
    for operand in data["operands"]:
        words = " ".join(describe(operand)).strip()
        lines.append(f"{operand['name']}: {words}; {_totals(operand)}")
    lines.append(f"HBM: {data['moved']}")
    return [*lines, f"{working(data)}."]


def working(data: Data) -> str:
    """A sentence on the number of steps in which the body computes."""
    if data["busy"] is None:
        return "The body does no floating-point arithmetic"
    steps, where = plural(data["steps"], data["noun"]), "on" if data["noun"] == "core" else "in"
    return f"The body computes {where} {data['bound']}{data['busy']:,} of {steps}"


def describe(operand: Data) -> tuple[str, str]:
    """Shape and dtype of an operand, and its blocks; "" if it has no blocks."""
    words = f"{tuple_words(operand['shape'])} {operand['dtype']}"
    if operand["role"] not in ("input", "output"):
        return words, ""
    if operand["block"] == operand["shape"]:
        return words, "as one block"
    return words, f"blocks of {tuple_words(operand['block'])}"


def _totals(operand: Data) -> str:
    times, size = operand["transfers"], amount(operand["bytes"])
    if operand["role"] == "input":
        return f"{plural(times, 'fetch')}, {size}"
    if operand["role"] == "output":
        return f"written back {times:,}×, {size}"
    return still_words(operand)


def still_words(operand: Data) -> str:
    """A phrase on an operand that does not move in blocks."""
    if operand["role"] == "scalar":
        return f"prefetched to SMEM once, {amount(operand['bytes'])}"
    if operand["role"] == "any":
        ways = {way: operand[way] for way in ("from", "to") if operand[way][0]}
        copies = (
            f"{plural(times, 'copy')} {way} it, {amount(size)}"
            for way, (times, size) in ways.items()
        )
        return sentence("copied_by_hand" if ways else "left_in_hbm", copies=" and ".join(copies))
    if "sem" in operand["space"]:
        return "semaphore"
    return f"scratch, stays in {operand['space'].upper()}"
