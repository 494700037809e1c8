"""The README's versions are those of the Makefile; its counts and its table `build` writes."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = " ".join((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split())


def test_the_versions_of_jax_are_those_of_the_makefile() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    colab = re.search(r"COLAB_JAX := (\S+)", makefile)
    between = re.search(r"MATRIX := (\S+) (\S+)", makefile)
    assert colab is not None
    assert between is not None
    assert f"CI runs JAX {colab[1]} and the newest (0.10.2 on Python 3.11)" in TEXT
    assert f"`make test-matrix` adds {between[1]} and {between[2]}." in TEXT
