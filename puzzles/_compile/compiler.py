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
from puzzles._jax import is_key, key_bits, keys_of
from puzzles._launch import Traced, as_function
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
    """libtpu, or what it takes to hand a program to it, is not installed."""


def has_libtpu() -> bool:
    """Whether libtpu is installed; does not load it."""
    return importlib.util.find_spec("libtpu") is not None


_known: list[tuple[str, ...]] = []  # what the first worker said that it can compile for


def supported_chips() -> tuple[str, ...]:
    """The chips that the installed libtpu compiles for; asks a worker, once (1 to 3 s)."""
    if not has_libtpu():
        return ()
    if not _known:
        with Compiler() as compiler:
            compiler.start()
    return _known[0]


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
        for module in ("libtpu", "flatbuffers"):
            if importlib.util.find_spec(module) is None:
                raise CompilerMissingError(
                    f"compiling for a TPU needs {module}, which is not installed: {INSTALL_LIBTPU}"
                )
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def compile(self, traced: Traced, chips: Sequence[str] | None = None) -> dict[str, str | None]:
        """For each of `chips` (None: all that libtpu knows) None, or why it does not compile.

        A worker that dies, or takes too long, is an answer too.
        """
        refused = self.compile_all([traced], chips)
        return {chip: why and why[1] for chip, why in refused.items()}

    def compile_all(
        self, traces: Sequence[Traced], chips: Sequence[str] | None = None
    ) -> dict[str, tuple[int, str] | None]:
        """For each of `chips` None, or the first program that it refuses, by number, and why.

        Several programs at once take a third of the time that they take one by one.
        """
        if not _known:
            self.start()
        chips = supported_chips() if chips is None else chips
        programs: dict[bytes, tuple[int, dict[str, Any]]] = {}  # equal ones are compiled once
        for number, traced in enumerate(traces):
            try:
                exported = _exported(traced)
            except Exception as error:
                refused = messages.lowering(error, traced.jaxpr)
                return dict.fromkeys(chips, (number, refused.words))
            axes = axes_around_kernels(traced.jaxpr.jaxpr)
            kernels = sum(1 for _ in kernel_calls(traced.jaxpr.jaxpr))
            request = {"program": exported, "kernels": kernels, "devices": math.prod(axes.values())}
            programs.setdefault(exported, (number, request))
        return {chip: self._first_refused(chip, list(programs.values())) for chip in chips}

    def _first_refused(
        self, chip: str, programs: Sequence[tuple[int, dict[str, Any]]]
    ) -> tuple[int, str] | None:
        if chip not in supported_chips():
            return 0, f"the installed libtpu does not know {chip}: {INSTALL_LIBTPU}"
        if len(programs) > 1 and self._one(chip, *(request for _, request in programs)) is None:
            return None
        answers = ((number, self._one(chip, request)) for number, request in programs)
        return next(((number, why) for number, why in answers if why), None)

    def _one(self, chip: str, *programs: dict[str, Any]) -> str | None:
        got = self._ask(topology=CHIPS[chip].topology, programs=programs)
        if isinstance(got, str):
            return got
        if got["text"] is not None:
            return messages.refusal(got["text"], chip)
        if not got["kernels"]:
            return "it compiled, but no kernel is left in it: is its result used?"
        return None

    def _ask(self, **request: Any) -> dict[str, Any] | str:
        """The worker's answer, or in words why there is none."""
        worker = self._worker
        if worker is None or worker[0].poll() is not None:
            worker = self.start()
        _, pipe, _ = worker
        try:
            pipe.send(request)
            if pipe.poll(self._timeout):
                return pipe.recv()
        except (EOFError, OSError):
            return f"the TPU compiler crashed on this kernel{self._stop()}"
        self._stop()
        return f"the TPU compiler gave no answer within {self._timeout:g} s"

    def start(self) -> tuple[subprocess.Popen, Connection, IO[bytes]]:
        """Start the worker, or start it again; CompilerMissingError if there is none."""
        self._stop()
        pipe, its = Pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed in `_stop`
        worker = Path(__file__).with_name("worker.py")
        process = subprocess.Popen(
            [sys.executable, str(worker), str(its.fileno()), *(c.topology for c in CHIPS.values())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | _ENVIRONMENT | self._environment,
            pass_fds=[its.fileno()],
        )
        its.close()
        self._worker = process, pipe, log
        try:
            topologies = pipe.recv()
        except EOFError:
            raise CompilerMissingError(f"libtpu does not start{self._stop()}") from None
        _known[:] = [tuple(name for name, chip in CHIPS.items() if chip.topology in topologies)]
        return self._worker

    def _stop(self) -> str:
        """End the worker. `: ...` from what it wrote: the failed check if there is one."""
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
        given = zip(leaves, forms, strict=True)
        made = (keys_of(leaf, form) if is_key(form) else leaf for leaf, form in given)
        return as_function(traced)(*made)

    with as_tpu():
        return bytes(export.export(jax.jit(function), platforms=["tpu"])(*shapes).serialize())


# On other chips libtpu aborts on many kernels while it estimates.
_CHIPS = ("v5e", "v5p", "v6e")


class NoEstimateError(Exception):
    """There is no estimate; the text says why."""


def estimated_cycles(traced: Traced, chip: str) -> int:
    """Cycles of all kernels of `traced` on a core of `chip`; raises NoEstimateError.

    It follows loops and grids, is the same from run to run, and is optimistic about HBM.
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
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_static_llo_profile_to={folder}",
            "JAX_ENABLE_COMPILATION_CACHE": "false",  # what is not compiled is not estimated
        }
        try:
            with Compiler(environment=environment) as compiler:
                refused = compiler.compile(traced, [chip])[chip]
        except CompilerMissingError as error:
            raise NoEstimateError(str(error)) from None
        if refused:
            raise NoEstimateError(f"{chip} does not compile it: {refused}")
        texts = [path.read_text(errors="replace") for path in Path(folder).rglob("*.textproto")]
    found = [int(n) for text in texts for n in re.findall(r"\bestimated_cycles: (\d+)", text)]
    if not found:
        raise NoEstimateError("the installed libtpu wrote no estimate")
    return sum(found)
