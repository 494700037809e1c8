"""A walk as plain text: for terminals, and beside the picture for screen readers."""

from __future__ import annotations

from collections.abc import Iterator

from puzzles._draw.copies import copies_text
from puzzles._draw.data import Data
from puzzles._draw.phrases import STATES, plural, program_ids, tuple_words
from puzzles._receipt import amount

ROWS = 24  # steps that are listed
_KEY = {
    "F": "fetched from HBM",
    "=": "still in VMEM, nothing moves",
    "W": "written back to HBM after the step",
    "!": "outside the array",
}


def walk_text(data: Data) -> str:
    """What the picture shows: faults, the first steps (or those around a fault), the totals."""
    parts = [title(data), *(f"✗ {fault['says']}" for fault in data["faults"])]
    if data["steps"]:
        parts += [*_table(data), ""]
    copied = copies_text(data["copies"]) if data.get("copies") else []
    return "\n".join([*parts, *summary(data), *copied])


def title(data: Data) -> str:
    """The kernel, its grid and its steps."""
    grid = f"grid {tuple_words(data['grid'])} = " if data["grid"] else "no grid: "
    return f"{data['kernel']}: {grid}{plural(data['steps'], 'step')}"


def _table(data: Data) -> Iterator[str]:
    moving = [operand for operand in data["operands"] if "count" in operand]
    work, at = data["work"], data["at"]
    first = max(0, min(data["open"] - ROWS // 2, data["kept"] - ROWS))
    shown = range(first, min(first + ROWS, data["kept"]))
    heads = ["step", "program ids", *(operand["name"] for operand in moving), work_name(data)]
    rows, letters = [heads], set()
    for k in shown:
        cells = [f"{at[k]}", tuple_words(program_ids(data, at[k]))]
        for operand in moving:
            letter = _letter(operand, k)
            letters.add(letter)
            cells.append(f"{tuple_words(operand['blocks'][k])} {letter}".strip())
        rows.append([*cells, str(work[k]) if data["unit"] else "computes" if work[k] else "idle"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
    if len(shown) < data["steps"]:
        yield f"steps {at[shown[0]]} to {at[shown[-1]]} of {data['steps']:,}"
    yield "; ".join(f"{letter} {words}" for letter, words in _KEY.items() if letter in letters)


def _letter(operand: Data, k: int) -> str:
    state, blocks = operand["states"][k], operand["blocks"]
    stays = state == "held" and k and blocks[k] == blocks[k - 1]
    return "=" if stays else STATES[state][2]


def work_name(data: Data) -> str:
    """What the strip of the body counts."""
    return "dots" if data["unit"] else "body"


def summary(data: Data) -> list[str]:
    """One line for each operand, and one for the totals."""
    lines = []
    for operand in data["operands"]:
        lines.append(f"{operand['name']}: {described(operand)}; {_totals(operand)}")
    lines.append(f"HBM: {moved(data)}")
    if data["steps"]:
        words = working(data)
        lines.append(f"{words[0].upper()}{words[1:]}.")
    if data["kept"] < data["steps"]:
        lines.append(sampled(data))
    return lines


def moved(data: Data, form: str = "{}") -> str:
    """What the whole launch reads and writes; each amount in a form of its own."""
    bound = f"{data['bound']} " if "bound" in data else ""
    read, written = (form.format(amount(data[way])) for way in ("read", "written"))
    return f"read {bound}{read}, written {bound}{written}"


def working(data: Data) -> str:
    """In how many steps the body computes."""
    if data["busy"] is None:
        if not data["maximal"]:
            return "the body stores nothing"
        return "the body does no floating-point arithmetic"
    bound = f"{data['bound']} " if "bound" in data else ""
    return f"the body computes in {bound}{data['busy']:,} of {plural(data['steps'], 'step')}"


def sampled(data: Data) -> str:
    """How many steps of a long walk are shown."""
    return (
        f"{data['kept']:,} of {data['steps']:,} steps are shown, evenly spread, "
        "and colour the blocks; counts and bytes are those of all."
    )


def describe(operand: Data) -> tuple[str, str]:
    """Shape and dtype; how it is cut, empty if it never is."""
    words = f"{tuple_words(operand['shape'])} {operand['dtype']}"
    if operand["role"] not in ("input", "output"):
        return words, ""
    if operand["block"] == operand["shape"]:
        return words, "as one block"
    return words, f"blocks of {tuple_words(operand['block'])}"


def described(operand: Data) -> str:
    """Both in one line."""
    return " ".join(describe(operand)).strip()


def _totals(operand: Data) -> str:
    times, size = operand["transfers"], amount(operand["bytes"])
    if operand["role"] == "input":
        return f"{plural(times, 'fetch')}, {size}"
    if operand["role"] == "output":
        return f"written back {times:,}×, {size}"
    return still_words(operand)


def still_words(operand: Data) -> str:
    """What happens to an operand that does not move in blocks."""
    if operand["role"] == "scalar":
        return f"prefetched to SMEM once, {amount(operand['bytes'])}"
    if operand["role"] == "any":
        return _far_words(operand)
    if "sem" in operand["space"]:
        return "semaphore"
    return f"scratch, stays in {operand['space'].upper()}"


def _far_words(operand: Data) -> str:
    """What becomes of a ref that stays in HBM."""
    ways = [
        f"{plural(times, 'copy')} {way} it, {amount(size)}"
        for way, (times, size) in (("from", operand["from"]), ("to", operand["to"]))
        if times
    ]
    if not ways:
        return "stays in HBM: nothing fetches it, and the kernel copies nothing"
    return f"stays in HBM: the kernel makes {' and '.join(ways)}"
