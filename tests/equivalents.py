"""Changes that pass, differ from the solution, and are right all the same: each with its reason."""

EQUIVALENT: dict[str, dict[str, str]] = {}
