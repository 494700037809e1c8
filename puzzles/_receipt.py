"""The costs of a launch, in words."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from puzzles._compile import CHIPS, Chip, budget, counted, price
from puzzles._launch import NOTE, Finding, Launch, itemsize, told
from puzzles._program import UnreadableError
from puzzles._rules import plural, sentence

_MANY = 64  # steps that move blocks: fewer are a practice shape
_LARGER = 4  # times the elements of a block
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_CLOSE = 0.8  # of the limit of VMEM
_FEW = 2000  # FLOPs of dots for an exp: with more, exps are not worth a line
_PADDED = 4  # times an array's bytes, from which on its padding is worth a line
_HANGING = (
    "white-space:pre-wrap;overflow-wrap:anywhere;padding-left:7ch;text-indent:-7ch;min-height:1em"
)
_XLA = {"fills": "xla_fills", "computes": "xla_computes", "copies": "xla_copies"}


def amount(count: float) -> str:
    """Bytes with a binary unit: 1536 -> '1.5 KiB'."""
    return amounts(count, count)[0]


def amounts(first: float, second: float) -> tuple[str, str]:
    """Two numbers of bytes in one unit, or in bytes if both would read alike."""
    low, high = sorted((first, second))
    power = next((n for n in range(4) if (low or high) < 1024 ** (n + 1)), 4)
    while high >= 10_000 * 1024**power and power + 1 < len(_UNITS):
        power += 1
    left, right = (
        f"{_three(x / 1024**power)} {_UNITS[power]}" if x else "0 B" for x in (first, second)
    )
    alike = left == right and first != second
    return (f"{first:,.0f} B", f"{second:,.0f} B") if alike else (left, right)


def _three(x: float) -> str:
    """Three digits, but never an exponent."""
    return f"{x:,.0f}" if x >= 999.5 else f"{x:.3g}"


def scaled(count: float) -> str:
    """A count with a decimal unit: 25_165_824 -> '25.2 M'."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f}"


def seconds_words(count: float) -> str:
    """Seconds with a unit: 0.000327 -> '327 µs'."""
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if count >= size:
            return f"{_three(count / size)} {unit}"
    return f"{_three(count / 1e-9)} ns"


def roof(intensity: float, chip: Chip) -> str:
    """An intensity as a bar, on a scale from 1/16 to 4096 FLOPs a byte; `|` is the ridge."""

    def at(x: float) -> int:
        return round(2 * min(max(math.log2(max(x, 1e-9)) + 4, 0), 16))

    bar = ["█"] * at(intensity) + ["·"] * (32 - at(intensity))
    bar.insert(at(chip.ridge), "|")
    reached = f"{intensity / chip.ridge:.1%}" if intensity < chip.ridge else "100%"
    return f"{''.join(bar)} at most {reached} of {chip.name}'s peak"


def receipt_text(
    launches: tuple[Launch, ...],
    chip: str = "v5e",
    ran: tuple[str, ...] = (),
    title: str = "",
    limits: bool = False,
    refused: Sequence[str] = (),
) -> str:
    """The receipt of one launch, or a table of several; ran: the checks that ran on it.

    limits: list the limits of the model. refused: why no TPU runs it, if none does.
    """
    head = f"receipt for {title}" if title else "receipt"
    body = _single if len(launches) == 1 else _table
    parts = [head, *(f"TPU    does not compile: {why}" for why in refused)]
    parts.append(body(launches, CHIPS[chip]))
    if limits:
        parts.append(sentence("without"))
    if ran:
        parts.append(f"ran    {', '.join(ran)}")
    return "\n".join(parts)


def receipt_html(text: str) -> str:
    """A receipt in HTML: its lines wrap to the right of their labels; a table scrolls by itself."""
    shown = []
    for table, lines in groupby(text.splitlines(), lambda line: len(re.split("  +", line)) > 4):
        if table:
            rows = html.escape("\n".join(lines))
            shown.append(f"<div style='white-space:pre;overflow-x:auto'>{rows}</div>")
            continue
        shown += (f"<div style='{_HANGING}'>{html.escape(line)}</div>" for line in lines)
    style = "margin-top:6px;font-family:monospace;line-height:1.35"
    return f"<div style='{style}'>{''.join(shown)}</div>"


def figures(launches: Sequence[Launch], chip: Chip) -> dict[str, str]:
    """The figures of launches together, by name: VMEM of the largest, and sums of the others."""
    runs = [launch.times or 1 for launch in launches]
    moved, flops, steps = (
        sum(getattr(launch, name) * times for launch, times in zip(launches, runs, strict=True))
        for name in ("hbm_bytes", "dot_flops", "all_steps")
    )
    return {
        "VMEM": amount(max((launch.vmem_bytes for launch in launches), default=0)),
        "HBM": amount(moved),
        "steps": f"{steps:,}",
        "FLOP/B": f"{flops / max(1, moved):.0f}",
        "time": seconds_words(price(launches, chip).seconds),
    }


def roofline_figures(launches: Sequence[Launch], chip: Chip) -> tuple[float, float, str]:
    """FLOPs per byte, FLOPs per second, and a sentence on both.

    Raises UnreadableError if the launches compute no matrix product, or move no byte.
    """
    flops, moved = (
        sum(getattr(launch, name) * (launch.times or 1) for launch in launches)
        for name in ("dot_flops", "hbm_bytes")
    )
    if not flops or not moved:
        raise UnreadableError(sentence("no_roofline"))
    launch_price, shown = price(launches, chip), figures(launches, chip)
    rate, limit = flops / launch_price.seconds, chip.scoped_vmem_bytes
    facts = dict(share=f"{rate / chip.flops_per_second:.0%}", cause=next(iter(launch_price.causes)))
    words = [sentence("under_the_roof", time=shown["time"], **facts)]
    words.append(sentence("roofline_figures", flops=shown["FLOP/B"], **shown))
    if any(launch.vmem_bytes > limit for launch in launches):
        words.append(sentence("over_the_limit", limit=amount(limit)))
    return flops / moved, rate, " ".join(words)


def _single(launches: tuple[Launch, ...], chip: Chip) -> str:
    (launch,) = launches
    once = (replace(launch, times=1),)
    often = "" if launch.times == 1 else f", {_times(launch)}: the rest is for one of them"
    rows = {
        "grid": f"{_grid(launch)}{often}",
        "cores": _cores(launch, chip),
        "HBM": moved(launch),
        "copies": _flight(launch),
        "stored": stored(launches),
        "VMEM": _vmem(launch, chip),
        "SMEM": _smem(launch, chip),
        "FLOPs": _flops(launch, chip),
        "exps": _exps(launch),
        "roof": roof(_useful(launch), chip) if launch.dots and _comparable(launch) else "",
        "time": time_words(once, chip),
        "causes": causes_words(once, chip),
        "data": _data(launch),
        "before": _before(launch),
    }
    return "\n".join(f"{label:<6} {text}" for label, text in rows.items() if text)


def _grid(launch: Launch) -> str:
    """The steps of a launch, and of `emit_pipeline` in its kernel."""
    pipeline = pipeline_words(launch.pipeline_steps)
    if launch.settings.cores > 1:
        return f"none, {plural(launch.steps, 'core')}{pipeline}"
    alone = pipeline and not launch.grid
    return ("none" if alone else f"{launch.grid} = {plural(launch.steps, 'step')}") + pipeline


def pipeline_words(steps: int) -> str:
    """The words after a grid: the steps of `emit_pipeline` in the kernel, "" without any."""
    return f", {plural(steps, 'step')} of a pipeline in the kernel" if steps else ""


def _cores(launch: Launch, chip: Chip) -> str:
    """The bytes that each core of a mesh moves, and the core whose time is shown."""
    if launch.settings.cores == 1:
        return ""
    ways = ((amount(read), amount(written)) for read, written in launch.bytes_by_core)
    directions = [f"read {read}, written {written}" for read, written in ways]
    numbered = map("{}: {}".format, range(99), directions)
    alike = [f"each: {directions[0]}"] if len(set(directions)) == 1 else numbered
    whose = "the time is the slower core's" if chip.megacore else f"{chip.name} has one per device"
    return f"{'; '.join(alike)}; {whose}"


def _flight(launch: Launch) -> str:
    """The number of the kernel's own copies in flight at each wait."""
    shown = [] if launch.in_flight is None else list(map(str, launch.in_flight))
    if len(shown) > 12:
        shown = [*shown[:6], "…", *shown[-3:]]
    return f"in flight at each wait: {' '.join(shown)}" if shown else ""


def bounded(launch: Launch, count: str, words: Callable[[float], str]) -> str:
    """A count of a launch in words, after "at most" or "at least" if it is only a bound."""
    most, least = getattr(launch, count), getattr(launch.least, count)
    if most == least:
        return words(most)
    if launch.unknown_loops and not least:
        return f"{words(most)} if each loop runs once"
    return f"{launch.bound} {words(least if launch.unknown_loops else most)}"


def moved(launch: Launch) -> str:
    """The bytes that the whole launch reads and writes."""
    read, written = (bounded(launch, f"hbm_bytes_{way}", amount) for way in ("read", "written"))
    return f"read {read}, written {written}"


def _comparable(launch: Launch) -> bool:
    """Whether FLOPs per byte are an upper bound: bytes are exact, no FLOP is left out."""
    moved = launch.hbm_bytes == launch.least.hbm_bytes > 0
    once = all(dot.passes == 1 for dot in launch.dots)
    return moved and once and not launch.unknown_loops


def _flops(launch: Launch, chip: Chip) -> str:
    counted = bounded(launch, "flops", scaled)
    if not launch.flops:
        return "0"
    if not launch.dots:
        return f"{counted}, no dot among them: the matrix unit has nothing to do"
    if (passes := max(dot.passes for dot in launch.dots)) > 1:
        return sentence("several_passes", counted=counted, passes=passes)
    if not _comparable(launch):
        return counted
    useful, asked = _useful(launch), launch.settings.asked
    if asked and asked < launch.dot_flops:
        padding = 1 - asked / launch.dot_flops
        counted += f", {scaled(asked)} of them useful by `cost_estimate` and {padding:.0%} padding"
    bound = "compute-bound" if useful >= chip.ridge else "memory-bound"
    facts = dict(chip=chip, rounded=_rounded(launch), bound=bound)
    return sentence("flops_per_byte", counted=counted, each=useful, **facts)


def _useful(launch: Launch) -> float:
    """FLOPs of dots per byte, without those that the launch's `cost_estimate` does not ask for."""
    asked = launch.settings.asked or launch.dot_flops
    return launch.intensity * min(1, asked / launch.dot_flops)


def _rounded(*launches: Launch) -> str:
    """Words that the ridge is for bf16, if dots have f32 operands; else ""."""
    dots = [dot for launch in launches for dot in launch.dots]
    f32 = any(dot.rounds for dot in dots) and all(dot.passes == 1 for dot in dots)
    return ", with f32 operands rounded to bf16, as by default" if f32 else ""


def _exps(launch: Launch) -> str:
    """Transcendentals, if they are many next to the dots; else ""."""
    if not launch.transcendentals:
        return ""
    counted = bounded(launch, "transcendentals", scaled)
    if not launch.dots:
        return counted
    ratio = launch.dot_flops / launch.transcendentals
    if ratio > _FEW:
        return ""
    return f"{counted}, one for every {ratio:.0f} FLOPs of the dots"


def time_words(launches: Sequence[Launch], chip: Chip) -> str:
    """The price of launches with its longest cause; "" if they do nothing that takes time."""
    launch_price = price(launches, chip)
    if not launch_price.causes:
        return ""
    time = f"{launch_price.bound} {seconds_words(launch_price.seconds)}"
    return sentence("price", time=time, chip=chip.name, cause=next(iter(launch_price.causes)))


def causes_words(launches: Sequence[Launch], chip: Chip) -> str:
    """Every term of a price, and which of them libtpu does not estimate."""
    launch_price = price(launches, chip)
    terms = [f"{name} {seconds_words(time)}" for name, time in launch_price.causes.items()]
    if launch_price.causes and "HBM" not in launch_price.causes and launch_price.hbm:
        terms.append(sentence("hbm_meanwhile", time=seconds_words(launch_price.hbm)))
    if terms and not chip.step_seconds:
        terms.append(sentence("not_estimated", chip=chip.name))
    return ", ".join(terms)


def _data(launch: Launch) -> str:
    """Which counts depend on data, and how they are made all the same."""
    notes = []
    if count := launch.unknown_branches:
        notes.append(
            f"{count} branch{'es' * (count > 1)} on data or in too long a loop, counted as taken"
        )
    if count := launch.unknown_loops:
        notes.append(f"{plural(count, 'loop')} of unknown length, counted once")
    if count := sum(not copy.exact for copy in launch.copies):
        notes.append(f"{count} cop{'ies' if count > 1 else 'y'} of unknown size, counted whole")
    return "; ".join(notes)


def _before(launch: Launch) -> str:
    """What XLA does for aliased outputs before the launch; no launch counts it."""
    arrays = [
        sentence(_XLA[array.how], size=amount(array.bytes), name=array.output)
        for array in launch.around.made
    ]
    return f"{'; '.join(arrays)}: not counted above" if arrays else ""


def stored(launches: Sequence[Launch]) -> str:
    """Arrays whose rows are padded to much more than they hold, each told once."""
    lines: dict[str, None] = {}
    for operand in (o for launch in launches for o in launch.inputs + launch.outputs):
        if len(operand.shape) < 2 or operand.space == "smem":
            continue
        rows, lanes = math.prod(operand.shape[:-1]), operand.shape[-1]
        padded = -(-lanes // 128) * 128
        if padded >= _PADDED * lanes > 0:
            size = amount(rows * padded * itemsize(operand.dtype))
            lines[f"{operand.name} {operand.shape} takes {size} of HBM"] = None
    arrays = list(lines)
    if not arrays:
        return ""
    more = f" and {len(arrays) - 3} more" if len(arrays) > 3 else ""
    return f"{', '.join(arrays[:3])}{more}: padded to 128 columns, which is not counted above"


def _vmem(launch: Launch, chip: Chip) -> str:
    most, total = budget(launch, chip), launch.vmem_bytes
    whose = "this launch may use" if launch.vmem_limit_bytes else f"a kernel gets on {chip.name}"
    return f"{amount(total)} of the {amount(most)} {whose}{_fitting(launch, chip)}"


def _smem(launch: Launch, chip: Chip) -> str:
    used, most = launch.smem_bytes, chip.smem_bytes
    if used > most:
        return " of ".join(amounts(used, most)) + ": does not fit"
    return f"{amount(used)} of {amount(most)}" if used else ""


def _fitting(launch: Launch, chip: Chip) -> str:
    most, total = budget(launch, chip), launch.vmem_bytes
    if total <= _CLOSE * most:
        return ""
    if total <= most:
        return ": close, and the compiler may need some more"
    words = "does_not_fit" if chip.vmem_bytes <= most else "does_not_fit_yet"
    return sentence(words, chip=chip.name, core=amount(chip.vmem_bytes))


def _times(launch: Launch) -> str:
    return "in a loop" if launch.times is None else f"{launch.times} times"


def _table(launches: tuple[Launch, ...], chip: Chip) -> str:
    """A row for each launch, without the columns in which none has anything."""
    names = ("grid", "steps", "read", "written", "VMEM", "SMEM", "FLOPs", "per byte", "time")
    rows = [("", *names)]
    for number, launch in enumerate(launches, 1):
        often = "" if launch.times == 1 else f", {_times(launch)}"
        rows.append(
            (
                f"{number} {launch.name}{often}",
                str(launch.grid),
                f"{launch.all_steps:,}",
                bounded(launch, "hbm_bytes_read", amount),
                bounded(launch, "hbm_bytes_written", amount),
                f"{amount(launch.vmem_bytes)} of {amount(budget(launch, chip))}"
                + _fitting(launch, chip).partition(".")[0],
                _smem(launch, chip),
                bounded(launch, "flops", scaled),
                f"{launch.intensity:.3g}" if launch.dots and _comparable(launch) else "",
                figures((launch,), chip)["time"],
            )
        )
    lines = columns(rows)
    lines.append(sentence("busy", chip=chip, rounded=_rounded(*launches)))
    if padded_rows := stored(launches):
        lines.append(f"stored {padded_rows}")
    return "\n".join(lines)


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, without the columns in which no row but the first has anything."""
    shown = [column for column in zip(*rows, strict=True) if any(column[1:])]
    wide = [max(map(len, column)) for column in shown]
    lines = []
    for name, *cells in zip(*shown, strict=True):
        padded = (text.rjust(width) for text, width in zip(cells, wide[1:], strict=True))
        lines.append("  ".join([name.ljust(wide[0]), *padded]))
    return lines


def many_steps(launch: Launch, chip: Chip) -> Iterator[Finding]:
    """A note on steps that take longer than HBM, and than the arithmetic."""
    steps, launch_price = counted(launch).moving_steps, price((replace(launch, times=1),), chip)
    work = max(launch_price.hbm, launch_price.matrix + launch_price.vector)
    if steps < _MANY or launch_price.steps <= work:
        return
    fewer = -(-steps // _LARGER)
    yield told(
        "steps",
        "many_steps",
        NOTE,
        launch=launch.name,
        line=launch.line,
        steps=steps,
        time=seconds_words(launch_price.steps),
        whole=seconds_words(launch_price.seconds),
        chip=chip.name,
        hbm=seconds_words(launch_price.hbm),
        fewer=fewer,
        less=seconds_words(fewer * chip.step_seconds),
    )
