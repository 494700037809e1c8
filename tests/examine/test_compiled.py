"""What `examine` makes of libtpu's answers, and of a libtpu that does not answer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel
from launches import mesh

from puzzles import examine
from puzzles._compile import Compiler
from puzzles._compile.compiler import NoAnswer
from puzzles._examine.subprocesses import Reply

S = jax.ShapeDtypeStruct
TILE = S((8, 128), jnp.float32)
pytestmark = pytest.mark.usefixtures("compiler")


def rings():
    """Each of four devices sends its rows to its right neighbour."""

    def kernel(x_hbm, o_hbm, send, recv):
        me = jax.lax.axis_index("x")
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id=(me + 3) % 4)
        pl.semaphore_wait(barrier, 1)
        copy = pltpu.make_async_remote_copy(x_hbm, o_hbm, send, recv, device_id=(me + 1) % 4)
        copy.start()
        copy.wait()

    hbm, axis = pl.BlockSpec(memory_space=pl.ANY), jax.sharding.PartitionSpec("x")
    params = pltpu.CompilerParams(collective_id=0)
    scratch = [pltpu.SemaphoreType.DMA] * 2
    like = dict(specs=[hbm], out_specs=hbm, scratch=scratch, compiler_params=params)
    fn = call(kernel, TILE, interpret=False, **like)
    return jax.shard_map(fn, mesh=mesh(), in_specs=axis, out_specs=axis, check_vma=False)


def gaps(found) -> list[str]:
    """The parts that were not looked at."""
    assert (found.findings, found.code) == ((), 0)
    assert not any(line.startswith("compile") for line in found.looked)
    return [line for line in Reply.of("a target", found).gaps if line.startswith("compile")]


def test_a_slow_compiler_refuses_nothing() -> None:
    found = examine(call(copy_kernel, TILE), TILE, compile_timeout=1e-4)
    says = "compile: `copy_kernel` for v5e: the TPU compiler gave no answer within 0.0001 s"
    assert gaps(found) == [says]


@pytest.mark.parametrize("ring", [False, True])
def test_a_slow_compiler_leaves_the_other_chips_and_programs(monkeypatch, ring: bool) -> None:
    """Here v5e is slow; with a ring, the whole program of four devices is compiled at once."""
    asks = Compiler._ask
    slow = lambda self, **given: (  # noqa: E731
        NoAnswer("too slow") if "v5e" in given["topology"] else asks(self, **given)
    )
    monkeypatch.setattr(Compiler, "_ask", slow)
    fn, x = (rings(), S((32, 128), jnp.float32)) if ring else (call(copy_kernel, TILE), TILE)
    found = examine(fn, x, chips=("v5e", "v6e"))
    name = "kernel" if ring else "copy_kernel"
    assert (found.findings, found.code) == ((), 0)
    assert f"compile: `{name}` for v5e: too slow" in found.not_looked
    assert "compile: libtpu, for v6e" in found.looked


def test_a_compiler_that_dies_refuses_nothing(monkeypatch) -> None:
    asks = Compiler._ask
    monkeypatch.setattr(Compiler, "_ask", lambda self, **_: asks(self, abort=True))
    found = examine(call(copy_kernel, TILE), TILE, chips=("v5e", "v6e"))
    (says,) = gaps(found)
    assert says.startswith("compile: `copy_kernel` for v5e, v6e: the TPU compiler crashed")


def test_a_kernel_without_an_answer_hides_no_refusal_of_the_next(monkeypatch) -> None:
    refusals = iter([NoAnswer("too slow"), NoAnswer("too slow"), "it is refused"])
    monkeypatch.setattr(Compiler, "_refusal", lambda *_: next(refusals))

    def both(x):
        for name in ("first", "second"):
            x = pl.pallas_call(copy_kernel, out_shape=TILE, name=name)(x)
        return x

    (one,) = examine(both, TILE).findings
    assert (one.kind, one.severity, one.launch) == ("compile", "error", "second")


def test_an_operand_without_elements_is_named() -> None:
    def kernel(none, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    specs = [pl.BlockSpec(memory_space=one) for one in (pltpu.SMEM, pltpu.VMEM)]
    found = examine(call(kernel, TILE, specs=specs), jnp.zeros((0,), jnp.int32), TILE)
    (one,) = found.findings
    assert (one.kind, one.operand) == ("compile", "none")
    assert "has no elements" in one.says
    assert "leave it out of the call" in one.says
    assert "MLIR module" not in one.says
