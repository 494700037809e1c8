"""Inputs of `jax.lax.empty` are memory that nothing wrote."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call

from puzzles import examine

f32 = jnp.float32
X, CACHE, NEW = (jax.ShapeDtypeStruct(s, f32) for s in ((32, 128), (8, 8, 128), (3, 8, 128)))
ROW = pl.BlockSpec((8, 128), lambda i: (i, 0))
made_empty = pytest.mark.skipif(not hasattr(jax.lax, "empty"), reason="JAX makes no empty arrays")
pytestmark = pytest.mark.usefixtures("no_libtpu")


def on_empty(kernel, aliased: bool):
    """A function that launches `kernel` on an array and on an empty one."""

    def fn(x):
        more = {"input_output_aliases": {1: 0}} if aliased else {}
        carry = jax.lax.empty(x.shape, x.dtype)
        return call(kernel, X, (4,), [ROW, ROW], ROW, **more)(x, carry)

    return fn


def adds(x_ref, carry_ref, o_ref):
    o_ref[...] = x_ref[...] + carry_ref[...]


def skips(x_ref, carry_ref, o_ref):
    o_ref[...] = x_ref[...]


def adds_later(x_ref, carry_ref, o_ref):
    o_ref[...] = x_ref[...]

    @pl.when(pl.program_id(0) == 2)
    def _():
        o_ref[...] += carry_ref[...]


@made_empty
@pytest.mark.parametrize("aliased", [False, True])
@pytest.mark.parametrize(("kernel", "step"), [(adds, (0,)), (adds_later, (2,)), (skips, None)])
def test_an_empty_array_counts_as_unwritten_if_a_kernel_reads_it(kernel, step, aliased) -> None:
    found = examine(on_empty(kernel, aliased), X).findings
    places = [(one.kind, one.operand, one.step) for one in found if one.severity == "error"]
    assert places == ([("uninitialised", "carry_ref", step)] if step else [])


CHANGED = {
    "reshaped": lambda empty: empty((4, 8, 128), f32).reshape(32, 128),
    "of another dtype": lambda empty: empty((32, 128), jnp.bfloat16).astype(f32),
    "a part": lambda empty: empty((64, 128), f32)[16:48],
    "of a program": lambda empty: jax.jit(lambda: empty((32, 128), f32))(),
    "filled": lambda empty: empty((32, 128), f32).at[:].set(1.0),
    "filled by a launch": lambda empty: call(fills, X, (4,), [HBM], ROW)(empty((32, 128), f32)),
}


def fills(old_hbm, o_ref):
    o_ref[...] = jnp.ones_like(o_ref)


@made_empty
@pytest.mark.parametrize("changed", CHANGED)
def test_an_array_that_is_made_of_an_empty_array_is_unwritten_unless_it_is_filled(changed) -> None:
    def fn(x):
        carry = CHANGED[changed](jax.lax.empty)
        return call(adds, X, (4,), [ROW, ROW], ROW, input_output_aliases={1: 0})(x, carry)

    found = examine(fn, X)
    errors = [one for one in found.findings if one.severity == "error"]
    assert len(errors) == (not changed.startswith("filled"))
    for error in errors:
        assert (error.kind, error.operand) == ("uninitialised", "carry_ref")
        assert "`carry_ref` is an array of `jax.lax.empty`" in error.says
        assert "jnp.zeros" in error.remedy
    if changed in ("reshaped", "of a program"):
        assert "XLA fills" not in str(found)


@made_empty
def test_an_empty_array_of_which_a_kernel_writes_a_part_is_no_fault() -> None:
    def kernel(slots, new, cache_in, cache_out, sem):
        page = slots[pl.program_id(0)]
        pltpu.make_async_copy(new.at[pl.program_id(0)], cache_out.at[page], sem).start()
        pltpu.make_async_copy(new.at[pl.program_id(0)], cache_out.at[page], sem).wait()

    def fn(slots, new):
        scratch, more = [pltpu.SemaphoreType.DMA], {"input_output_aliases": {2: 0}}
        fn = call(kernel, CACHE, (3,), [HBM, HBM], HBM, scratch, scalars=1, **more)
        return fn(slots, new, jax.lax.empty(CACHE.shape, f32))

    found = examine(fn, jnp.array([4, 1, 6]), NEW)
    assert (found.findings, found.unseen) == ((), ())
