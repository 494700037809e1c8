"""Changes that pass, differ from the solution, and are right all the same: each with its reason.

For each rung: the line of the solution and the change, as `make mutants` prints it.
"""

_STORES_EARLY = (
    "the output is stored at other steps too, and the last one that stores has all of it: "
    "pointless divisions, but the same numbers and the same traffic"
)

_CHANGES_OF_LAST = (
    "flags & 8 -> (flags | 8)",
    "flags & 8 -> flags",
    "flags & 8 -> 8",
    "0 -> 1",
    "0 -> (-1)",
    "8 -> 9",
    "8 -> (7)",
)

EQUIVALENT: dict[str, dict[tuple[str, str], str]] = {
    "attention_one_block": {
        (
            "@pl.when(j == pl.num_programs(1) - 1)",
            "j == pl.num_programs(1) - 1 -> (j <= pl.num_programs(1) - 1)",
        ): _STORES_EARLY
    },
    "splash_attention": {
        ("last = flags & 8 != 0", change): _STORES_EARLY for change in _CHANGES_OF_LAST
    },
}
