"""libtpu's own estimate of the cycles that kernels take: for ranking, not for promises."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from puzzles._launch import Traced
from puzzles._tpu.compiler import Compiler, CompilerMissing, supported_chips

# On others libtpu aborts on many kernels while it estimates.
_CHIPS = ("v5e", "v5p")


class NoEstimate(Exception):
    """There is no estimate; the text says why."""


def estimated_cycles(traced: Traced, chip: str) -> int:
    """Cycles of all kernels of `traced` on a core of `chip`; raises NoEstimate.

    It follows loops and grids, is the same from run to run, and is optimistic about HBM.
    """
    if chip not in _CHIPS:
        raise NoEstimate(f"libtpu estimates them for {' and '.join(_CHIPS)} only")
    if any(launch.scalars for launch in traced.launches):
        raise NoEstimate("libtpu takes prefetched scalars for zeros, and these steer the kernel")
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_static_llo_profile_to={folder}",
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # what is not compiled is not estimated
        }
        started: tuple[str, ...] = ()
        try:
            started = supported_chips()
            with Compiler(environment=environment) as compiler:
                refused = compiler.compile(traced, [chip])[chip]
        except CompilerMissing as error:
            # Where libtpu itself starts, it is the flag that stops it: an older one.
            old = started and "does not start" in str(error)
            says = "the installed libtpu is too old to estimate them" if old else str(error)
            raise NoEstimate(says) from None
        if refused:
            raise NoEstimate(f"{chip} does not compile it: {refused}")
        texts = [path.read_text(errors="replace") for path in Path(folder).rglob("*.textproto")]
    found = [int(n) for text in texts for n in re.findall(r"\bestimated_cycles: (\d+)", text)]
    if not found:
        raise NoEstimate("the installed libtpu wrote no estimate")
    return sum(found)
