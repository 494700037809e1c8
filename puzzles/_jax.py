"""The supported versions of JAX, patches of JAX, and all private names of JAX that we need.

`_equations.py` has the differences between versions in the parameters of equations.

The tests run on 0.7.2, 0.8.3, 0.9.2, 0.10.2, 0.11.0, 0.11.2 and the newest release. A newer version
is accepted with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

import jax
from jax.core import Tracer  # noqa: F401

OLDEST = "0.7.2"
NEWEST_TRIED = "0.12.0.1"  # `make test` writes it after it has passed on a newer JAX


class UnsupportedJaxError(ImportError):
    """This JAX is too old, or lacks a name without which nothing works here."""


def too_old(version: str) -> str | None:
    """The message for a JAX before `OLDEST`, or None."""
    if _numbers(version) >= _numbers(OLDEST):
        return None
    return (
        f"Pallas Puzzles needs JAX {OLDEST} or newer (tried up to {NEWEST_TRIED}), and this is JAX "
        f'{version}: run `pip install -U "jax>={OLDEST}"` and restart Python, or the notebook\'s '
        "kernel."
    )


def lacking(version: str, error: ImportError) -> str:
    """The message for a JAX `version` that lacks a name that an import needs."""
    if error.name == "absl":  # 0.9.2 imports it, but does not bring it along
        return (
            f"JAX {version} needs the module `absl` for its TPU simulator: run `pip install "
            "absl-py`, and restart Python, or the notebook's kernel."
        )
    gone = re.search(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
    name = f"{gone[2]}.{gone[1]}" if gone else error.name or str(error)
    return (
        f"JAX {version} has no `{name}`, which Pallas Puzzles needs (it works with JAX {OLDEST} to "
        f"{NEWEST_TRIED}): update Pallas Puzzles, or run "
        f'`pip install "jax>={OLDEST},<={NEWEST_TRIED}"`, and restart Python, or the notebook\'s '
        "kernel."
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _add_to_environment(flags: Mapping[str, int]) -> None:
    added = [f"--{flag}={str(value).lower()}" for flag, value in flags.items()]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *added]).strip()


if refused := too_old(jax.__version__):
    raise UnsupportedJaxError(refused)
try:
    from jax._src import source_info_util
    from jax._src.interpreters import partial_eval
    from jax._src.state.types import AccumEffect, TransformedRef, WriteEffect
    from jax.experimental.pallas import tpu as _tpu  # noqa: F401
    from jax.extend import core as _public
    from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun  # noqa: F401
except ImportError as error:
    raise UnsupportedJaxError(lacking(jax.__version__, error)) from None


def is_newer_than_tried() -> bool:
    """True if this JAX is newer than the newest version that the tests ran on."""
    return _numbers(jax.__version__) > _numbers(NEWEST_TRIED)


if is_newer_than_tried():
    warnings.warn(
        f"This is JAX {jax.__version__}, and Pallas Puzzles was tested up to {NEWEST_TRIED}: if a "
        "verdict surprises you, report it with both versions.",
        stacklevel=2,
    )

# JAX's simulator calls Python from compiled programs. With asynchronous dispatch such a program can
# wait for a thread that waits for it, on two cores now and then, and for ever:
# https://github.com/jax-ml/jax/issues/25861. Read when the CPU's backend starts, so set here.
jax.config.update("jax_cpu_enable_async_dispatch", False)

# On a CPU and before 0.8.2, XLA's XNNPACK kept the second factor of a dot by its address: now and
# then the product was that with an earlier array that had lain there. XLA reads its flags when it
# compiles its first program.
if _numbers(jax.__version__) < (0, 8, 2):
    _add_to_environment({"xla_cpu_use_xnnpack": False})

# Without LLVM's optimiser and XLA's fusion emitters a kernel compiles in a third of the time and
# runs, at the sizes of a puzzle, just as fast.
_QUICK_FLAGS = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
if _numbers(jax.__version__) < (0, 11):  # 0.11.2 has no others, and would end with the process
    _QUICK_FLAGS["xla_cpu_use_fusion_emitters"] = False


def _libtpu() -> tuple[int, ...]:
    """The version of libtpu that is installed, or else the version that this JAX requires."""
    try:
        return _numbers(metadata.version("libtpu"))
    except metadata.PackageNotFoundError:
        required = " ".join(metadata.requires("jax") or ())
        return _numbers((re.search(r"libtpu==([\d.]+)", required) or [""])[0])


# libtpu 0.0.23 and 0.0.50 accept blocks of 8 rows of an 8-bit array, whose tiles have 32 rows.
# 0.0.40 (JAX 0.10) to 0.0.48 (JAX 0.11.2) reject them.
CUTS_TILES_OF_BYTES = not (0, 0, 40) <= _libtpu() < (0, 0, 50)

# Until 0.10 a ClosedJaxpr held a Jaxpr and its constants. 0.11 made them one class, which answers
# to `.jaxpr` and `.consts`; 0.12 dropped the second name.
ClosedJaxpr = getattr(_public, "ClosedJaxpr", Jaxpr)

# On 0.11 and later kernels and index maps are traced by `trace_to_jaxpr`, which is cached by
# function; 0.10 has that name too, but neither the other one nor kernels under it.
_cached = getattr(partial_eval, "trace_to_jaxpr", None)
_uncached = getattr(partial_eval, "trace_to_jaxpr_nocache", None)


# The class of `jax.jit`'s results is in jaxlib, and has no public name.
_Jitted = type(jax.jit(lambda: None))


def unjitted(fn: Callable) -> Callable:
    """`fn` without `jax.jit`, whose cached trace may be stale, also under a partial.

    Every other wrapper stays.
    """
    if isinstance(fn, functools.partial):
        inner = unjitted(fn.func)
        return fn if inner is fn.func else functools.partial(inner, *fn.args, **fn.keywords)
    return unjitted(getattr(fn, "__wrapped__", fn)) if isinstance(fn, _Jitted) else fn


def close(jaxpr: Any) -> Any:
    """`jaxpr` with its constants: an open one, without any, is closed."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def compile_quickly() -> None:
    """Without a TPU, compile all programs with `_QUICK_FLAGS`, from the first on.

    An XLA without a flag ends the process, so only versions that were tried get the flags.
    """
    if not has_tpu() and _numbers(jax.__version__) <= _numbers(NEWEST_TRIED):
        _add_to_environment(_QUICK_FLAGS)


def has_tpu() -> bool:
    """Whether this machine has a TPU; asked of the machine, so that no backend is started."""
    try:
        from jax._src.hardware_utils import num_available_tpu_chips_and_device_id
    except ImportError:
        return True  # nobody knows, so JAX may look for itself
    return num_available_tpu_chips_and_device_id()[0] > 0


@contextlib.contextmanager
def instead(module: Any, name: str, function: Any) -> Iterator[None]:
    """Within it, JAX's `module` has `function` of this name; every passing patch is made here."""
    original = getattr(module, name, None)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, original)


def parts_not_iterable() -> contextlib.AbstractContextManager[None]:
    """Within it, `*ref.at[...]` is an error, as on new JAX; on 0.7 it never ends."""
    return instead(TransformedRef, "__iter__", None)


@contextlib.contextmanager
def retraced() -> Iterator[None]:
    """Within it, no kernel or index map is answered from an earlier trace of the same function.

    On 0.11 an earlier trace may come from another grid: `num_programs` is wrong (jax#40847, mended
    in 0.12). On both it may be older than a helper or a constant that another cell has since
    redefined, while the kernel itself is still the same function.
    """
    if _cached is None or _uncached is None:  # before 0.11
        yield
        return
    with instead(partial_eval, "trace_to_jaxpr", _uncached):
        yield


def _read_by_a_line(kernel: Any) -> set[Var]:
    """The variables that a line of the kernel itself reads."""
    return {v for line in kernel.eqns for v in line.invars if isinstance(v, Var)}


def _cut_as_the_output(interpret: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's interpreter, for which an aliased input has the output's blocks if no line uses it.

    From 0.11.2 on it copies the output over the input after each step. The output is padded to
    whole blocks and an input in `pl.ANY` is not, so that it raises a TypeError. A kernel that reads
    the input itself gets an error that names the version.
    """

    @functools.wraps(interpret)
    def interpreted(*args: Any, **params: Any) -> Any:
        kernel, grid = params["jaxpr"], params["grid_mapping"]
        used = _read_by_a_line(kernel)
        blocks, read = list(grid.block_mappings), False
        for n, output in params["input_output_aliases"]:
            if kernel.invars[n] not in used:
                blocks[n - grid.num_index_operands] = blocks[grid.num_inputs + output]
            else:
                read = True
        params["grid_mapping"] = grid.replace(block_mappings=tuple(blocks))
        try:
            return interpret(*args, **params)
        except TypeError as error:
            if not read or "carry" not in str(error):
                raise
            raise TypeError(
                f"JAX {jax.__version__} cannot interpret this launch: the kernel reads an input in "
                "`pl.ANY` that is aliased to an output whose last block hangs over the edge. JAX "
                "0.11.0 and older can."
            ) from error

    return interpreted


if _numbers(jax.__version__) >= (0, 11, 2):  # 0.11.0 and older keep the two apart
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.pallas import hlo_interpreter

        hlo_interpreter.pallas_call_hlo_interpret = _cut_as_the_output(
            hlo_interpreter.pallas_call_hlo_interpret
        )


def written_refs(jaxpr: Jaxpr) -> frozenset[int]:
    """Positions of those of a kernel's parameters that it writes into."""
    writes = (effect for effect in jaxpr.effects if isinstance(effect, WriteEffect | AccumEffect))
    # JAX 0.7 has the position; newer versions have the variable
    places = ((getattr(effect, "input_index", None), effect) for effect in writes)
    return frozenset(jaxpr.invars.index(effect.input) if n is None else n for n, effect in places)


def abstract_device(**wanted: Any) -> Any:
    """An `AbstractDevice`, or None on a JAX that has no such class and does not need it."""
    try:
        from jax._src.mesh import AbstractDevice
    except ImportError:
        return None
    parameters = inspect.signature(AbstractDevice).parameters  # `platform` came after 0.7
    return AbstractDevice(**{name: wanted[name] for name in wanted if name in parameters})


def answers_about_tpus() -> Iterator[tuple[Any, str]]:
    """(module, name) of the functions that `emit_pipeline` asks which TPU it is traced for."""
    for path in (
        "jax._src.pallas.mosaic.pipeline._get_tpu_generation",  # JAX 0.7
        "jax._src.pallas.mosaic.tpu_info.get_tpu_info",  # from then on
        "jax._src.tpu_info.get_tpu_info",  # JAX 0.12
    ):
        place, _, name = path.rpartition(".")
        try:
            module = importlib.import_module(place)
        except ImportError:  # no JAX has all of them
            continue
        if hasattr(module, name):
            yield module, name


@contextlib.contextmanager
def unused_copies_untold() -> Iterator[None]:
    """Context manager: JAX does not log copies that were described, but not started.

    Here a function is traced several times, and a verdict says so once.
    """
    root = logging.getLogger()
    used = lambda record: not str(record.msg).startswith("AsyncCopyDescriptor was not")  # noqa: E731
    root.addFilter(used)
    try:
        yield
    finally:
        root.removeFilter(used)


def made_by_a_pipeline(info: Any) -> bool:
    """Whether `emit_pipeline` itself made an equation, and no line of the body that it runs."""
    frames = getattr(getattr(info, "traceback", None), "frames", None) or ()
    for frame in frames:  # the innermost first
        if re.search(r"mosaic[\\/]pipeline\.py$", frame.file_name):
            return True
        if source_info_util.is_user_filename(frame.file_name):
            return False
    return False


def user_frame(info: Any) -> Any:
    """The frame at which an equation was traced, outside JAX and not ours; or None."""
    try:
        frame = source_info_util.user_frame(info.traceback)
        return None if re.search(r"[\\/]_launch[\\/]traces\.py$", frame.file_name) else frame
    except AttributeError:  # no traceback, or a JAX that keeps it elsewhere
        return None
