"""The versions that docs/proofs.md names are those of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_versions_of_jax_are_those_of_the_makefile() -> None:
    page = " ".join((ROOT / "docs" / "proofs.md").read_text(encoding="utf-8").split())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    colab = re.search(r"COLAB_JAX := (\S+)", makefile)
    between = re.search(r"MATRIX := (.+)", makefile)
    assert colab is not None
    assert between is not None
    *most, last = between[1].split()
    assert f"`make test-colab` on JAX {colab[1]}." in page
    assert all(version in page.partition("Every night")[2] for version in (*most, last))
