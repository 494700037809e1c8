"""Changes that pass, differ from the solution, and are right all the same: each with its reason."""

_STORES_EARLY = (
    "the output is stored at other steps too, and the last one that stores has all of it: "
    "pointless "
    "divisions, but the same numbers and the same traffic"
)

EQUIVALENT: dict[str, dict[str, str]] = {
    "attention_one_block": {
        "j == pl.num_programs(1) - 1 -> (j <= pl.num_programs(1) - 1)": _STORES_EARLY,
    },
}
