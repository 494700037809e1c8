"""The TPU compiler, kept in a worker process, and its estimate of cycles."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import jax

from puzzles._compile import messages
from puzzles._compile.chips import CHIPS
from puzzles._equations import is_key, key_bits, keys_of
from puzzles._launch import Finding, Traced, as_function
from puzzles._program import as_tpu, axes_around_kernels, kernel_calls

INSTALL_LIBTPU = f'pip install "jax[tpu]=={jax.__version__}" flatbuffers'

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class CompilerMissingError(RuntimeError):
    """libtpu, or flatbuffers, which exports programs, is not installed."""


def has_libtpu() -> bool:
    """Return True if libtpu is installed; does not load it."""
    return importlib.util.find_spec("libtpu") is not None


class NoAnswer(str):
    """The reason why libtpu neither compiled a program nor refused it."""


class NotLowered(str):
    """The reason why Mosaic did not lower a program; finding: with its line."""

    finding: Finding


_supported: list[tuple[str, ...]] = []  # the chips that the first worker compiles for


def supported_chips() -> tuple[str, ...]:
    """The chips of the installed libtpu; the first call starts a worker (1 to 3 s)."""
    if not has_libtpu():
        return ()
    if not _supported:
        with Compiler() as compiler:
            compiler.start()
    return _supported[0]


class Compiler:
    """libtpu in a worker, from `__enter__` to `__exit__`; it starts with the first request.

    timeout: seconds for one chip. environment: more variables for the worker. Entering raises
    CompilerMissingError, with the line that installs it.
    """

    def __init__(self, timeout: float = 120, environment: Mapping[str, str] | None = None) -> None:
        self._timeout = timeout
        self._environment = dict(environment or {})
        self._worker: tuple[subprocess.Popen, Connection, IO[bytes]] | None = None

    def __enter__(self) -> Compiler:
        there = {"libtpu": has_libtpu(), "flatbuffers": importlib.util.find_spec("flatbuffers")}
        for module in (name for name, present in there.items() if not present):
            raise CompilerMissingError(f"{module} is not installed: {INSTALL_LIBTPU}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def compile(self, traced: Traced, chips: Sequence[str] | None = None) -> dict[str, str | None]:
        """Return None by chip, or the reason why it does not compile the program.

        chips: None for all that libtpu supports. A crash or a timeout of the worker is a reason.
        """
        refused = self.compile_all([traced], chips)
        return {chip: why and why[1] for chip, why in refused.items()}

    def compile_all(
        self, traces: Sequence[Traced], chips: Sequence[str] | None = None
    ) -> dict[str, tuple[int, str] | None]:
        """Return None by chip, or the number of the first program that it refuses, and the reason.

        Programs compiled at once take a third of their time one by one.
        """
        if not _supported:
            self.start()
        chips = supported_chips() if chips is None else chips
        programs: dict[bytes, tuple[int, dict[str, Any]]] = {}  # equal programs are compiled once
        for number, traced in enumerate(traces):
            try:
                exported = _exported(traced)
            except Exception as error:
                refused = messages.lowering(error, traced.jaxpr)
                why = NotLowered(refused.words)
                why.finding = refused
                return dict.fromkeys(chips, (number, why))
            axes = axes_around_kernels(traced.jaxpr.jaxpr)
            calls = kernel_calls(traced.jaxpr.jaxpr)
            # XLA drops a call whose results have no elements
            kernels = sum(any(math.prod(v.aval.shape) for v in call.outvars) for call in calls)
            request = {"program": exported, "kernels": kernels, "devices": math.prod(axes.values())}
            programs.setdefault(exported, (number, request))
        return {chip: self._first_refused(chip, list(programs.values())) for chip in chips}

    def _first_refused(
        self, chip: str, programs: Sequence[tuple[int, dict[str, Any]]]
    ) -> tuple[int, str] | None:
        if chip not in supported_chips():
            return 0, f"the installed libtpu does not know {chip}: {INSTALL_LIBTPU}"
        if len(programs) > 1 and self._refusal(chip, *(request for _, request in programs)) is None:
            return None
        unanswered = None
        for number, request in programs:
            why = self._refusal(chip, request)
            if why and not isinstance(why, NoAnswer):
                return number, why
            unanswered = unanswered or (why and (number, why))
        return unanswered or None

    def _refusal(self, chip: str, *programs: dict[str, Any]) -> str | None:
        answer = self._ask(topology=CHIPS[chip].topology, programs=programs)
        if isinstance(answer, NoAnswer):
            return answer
        if answer["text"] is not None:
            return messages.refusal(answer["text"], chip)
        if not answer["kernels"]:
            return "it compiled, but no kernel is left in it: is its result used?"
        return None

    def _ask(self, **request: Any) -> dict[str, Any] | NoAnswer:
        """The worker's answer, or the reason why there is none."""
        worker = self._worker
        if worker is None or worker[0].poll() is not None:
            worker = self.start()
        _, pipe, _ = worker
        try:
            pipe.send(request)
            if pipe.poll(self._timeout):
                return pipe.recv()
        except (EOFError, OSError):
            return NoAnswer(f"the TPU compiler crashed on this kernel{self._stop()}")
        self._stop()
        return NoAnswer(f"the TPU compiler gave no answer within {self._timeout:g} s")

    def start(self) -> tuple[subprocess.Popen, Connection, IO[bytes]]:
        """Start the worker, or start it again; CompilerMissingError if there is none."""
        self._stop()
        pipe, end = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed in `_stop`
        worker = Path(__file__).with_name("worker.py")
        process = subprocess.Popen(
            [sys.executable, str(worker), str(end.fileno()), *(c.topology for c in CHIPS.values())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | _ENVIRONMENT | self._environment,
            pass_fds=[end.fileno()],
        )
        end.close()
        self._worker = process, pipe, log
        try:
            topologies = pipe.recv()
        except EOFError:
            raise CompilerMissingError(f"libtpu does not start{self._stop()}") from None
        _supported[:] = [tuple(name for name, chip in CHIPS.items() if chip.topology in topologies)]
        return self._worker

    def _stop(self) -> str:
        """End the worker. Return `: ` and the failed check in its output, or ""."""
        if self._worker is None:
            return ""
        process, pipe, log = self._worker
        self._worker = None
        process.kill()
        process.wait()
        pipe.close()
        with log:
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()
        failed = [line for line in lines if re.search(r"Check failed|^F\d{4} |Fatal", line)]
        return ": " + re.sub(r"^F\d{4} .*?\] ", "", failed[0].strip())[:200] if failed else ""


def _exported(traced: Traced) -> bytes:
    from jax import export  # on 0.7 `jax.export` exists only once it is imported

    forms = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in traced.leaves]
    shapes = [key_bits(form) if is_key(form) else form for form in forms]  # keys are not exported

    def function(*leaves: Any) -> list:
        pairs = zip(leaves, forms, strict=True)
        arguments = (keys_of(leaf, form) if is_key(form) else leaf for leaf, form in pairs)
        return as_function(traced)(*arguments)

    with as_tpu():
        return bytes(export.export(jax.jit(function), platforms=["tpu"])(*shapes).serialize())


# On other chips libtpu aborts on many kernels while it estimates.
_CHIPS = ("v5e", "v5p", "v6e")
# XLA may copy operands to VMEM next to other operations, which changes the cycles by 6 %.
_IN_HBM = " ".join(f"--xla_{core}f_vmem_memory_space_assignment=false" for core in "vg")


class NoEstimateError(Exception):
    """There is no estimate; the text says why."""


def estimated_cycles(traced: Traced, chip: str) -> int:
    """Return the cycles of all kernels of `traced` on a core of `chip`; raises NoEstimateError.

    libtpu counts loops and grids. Its estimate is deterministic, and optimistic about HBM, where
    operands start.
    """
    if chip not in _CHIPS:
        raise NoEstimateError(
            f"libtpu estimates them for {', '.join(_CHIPS[:-1])} and {_CHIPS[-1]} only"
        )
    if any(launch.scalars for launch in traced.launches):
        raise NoEstimateError(
            "libtpu takes prefetched scalars for zeros, and these steer the kernel"
        )
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_static_llo_profile_to={folder} {_IN_HBM}",
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # a cached program has no estimate
        }
        try:
            with Compiler(environment=environment) as compiler:
                refused = compiler.compile(traced, [chip])[chip]
        except CompilerMissingError as error:
            raise NoEstimateError(str(error)) from None
        if refused:
            raise NoEstimateError(f"{chip} does not compile it: {refused}")
        texts = [path.read_text(errors="replace") for path in Path(folder).rglob("*.textproto")]
    cycles = [int(n) for text in texts for n in re.findall(r"\bestimated_cycles: (\d+)", text)]
    if not cycles:
        raise NoEstimateError("the installed libtpu wrote no estimate")
    return sum(cycles)
