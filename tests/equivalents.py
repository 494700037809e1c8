"""Changes that pass, differ from the solution, and are right all the same: each with its reason.

For each rung: the line of the solution and the change, as `make mutants` prints it.
"""

_STORES_EARLY = (
    "the output is stored at other steps too, and the last one that stores has all of it: "
    "pointless divisions, but the same numbers and the same traffic"
)


def _at_every(axis: int) -> dict[tuple[str, str], str]:
    last = f"pl.num_programs({axis}) - 1"
    return {(f"@pl.when(j == {last})", f"j == {last} -> (j <= {last})"): _STORES_EARLY}


def _at_every_tile(line: str) -> dict[tuple[str, str], str]:
    changes = (
        "flags & 8 -> (flags | 8)",
        "flags & 8 -> flags",
        "flags & 8 -> 8",
        "0 -> 1",
        "0 -> (-1)",
        "8 -> 9",
        "8 -> (7)",
    )
    return {(line, change): _STORES_EARLY for change in changes}


EQUIVALENT: dict[str, dict[tuple[str, str], str]] = {
    "attention_one_block": _at_every(1),
    "causal_attention": _at_every(1),
    "splash_attention": _at_every_tile("last = flags & 8 != 0"),
    "splash_multi_head": _at_every_tile("@pl.when(flags & 8 != 0)"),
}
