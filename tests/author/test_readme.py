"""The README's figures are those of the repository, and its tables those of the commands."""

from __future__ import annotations

import re
from pathlib import Path

import puzzles

TEXT = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())


# A fork may have others: the README's figures are about these.
LADDERS = ("basics", "splash_attention", "grouped_matmul", "pipelines")


def test_the_totals_are_those_of_the_ladders() -> None:
    rungs = [rung for name in LADDERS for rung in puzzles.ladder(name)]
    mistakes = sum(len(rung.mistakes) for rung in rungs)
    alternatives = sum(len(rung.alternatives) for rung in rungs)
    assert (
        f"{len(rungs)} rungs, {mistakes} mistakes, all rejected, and {alternatives} other correct"
        in TEXT
    )


def test_the_versions_of_jax_are_those_of_the_makefile() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    colab = re.search(r"COLAB_JAX := (\S+)", makefile)
    between = re.search(r"MATRIX := (\S+) (\S+)", makefile)
    assert colab is not None
    assert between is not None
    assert f"JAX {colab[1]} and 0.10.2 are what CI runs" in TEXT
    assert f"`make test-matrix` adds {between[1]} and {between[2]}." in TEXT
