"""What is judged is what runs, on every case."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from learner import Notebook, edited, solved

import puzzles
from puzzles import Verdict
from puzzles._judge import fresh_case, judge

ROW_SUM = puzzles.find("row_sum")


def wrapped(decorator: str) -> Callable:
    """row_sum, solved, under a decorator."""
    notebook = Notebook()
    notebook.run(solved("row_sum"))
    notebook.run(f"import functools\nimport jax\nrow_sum = {decorator}")
    return notebook["row_sum"]


TIMES_ZERO = "functools.wraps(row_sum)(lambda x, f=row_sum: f(x) * 0)"


@pytest.mark.parametrize(
    "decorator", [TIMES_ZERO, f"jax.jit({TIMES_ZERO})", f"functools.partial({TIMES_ZERO})"]
)
def test_a_decorator_is_judged_with_what_it_decorates(decorator: str) -> None:
    verdict = judge(ROW_SUM, wrapped(decorator))
    assert verdict.stage == "pallas"
    assert "`mul` works on the data outside the kernel" in verdict.says


@pytest.mark.parametrize(
    "decorator", ["functools.wraps(row_sum)(lambda x, f=row_sum: f(x))", "jax.checkpoint(row_sum)"]
)
def test_a_harmless_decorator_passes(decorator: str) -> None:
    assert judge(ROW_SUM, wrapped(decorator)).passed


def test_a_gradient_is_that_of_the_rule() -> None:
    """What the puzzle observes sees the learner's `custom_vjp`, not the function under it."""

    @jax.custom_vjp
    def add_ten(x):
        return x + 10.0

    add_ten.defvjp(lambda x: (x + 10.0, None), lambda _, g: (g * 3.0,))
    puzzle = dataclasses.replace(
        puzzles.find("add_ten"),
        kernel=False,
        jit=True,
        audit=None,
        spec=lambda x: x + 10.0,
        observe=lambda fn: lambda x: jax.grad(lambda y: jnp.sum(fn(y)))(x),
    )
    assert judge(puzzle, lambda x: x + 10.0).passed
    assert judge(puzzle, add_ten).stage == "values"
    assert judge(puzzle, jax.jit(add_ten)).stage == "values"
    assert judge(puzzle, functools.partial(add_ten)).stage == "values"


def test_a_jitted_partial_of_a_jitted_function_is_traced_anew() -> None:
    notebook = Notebook()
    notebook.run(solved("row_sum"))
    notebook.run("import functools\nimport jax")
    notebook.run("row_sum = jax.jit(functools.partial(jax.jit(row_sum)))")
    assert judge(ROW_SUM, notebook["row_sum"]).passed
    notebook.run("def row_sum_kernel(x_ref, o_ref):\n    o_ref[...] = jnp.zeros_like(o_ref)")
    assert judge(ROW_SUM, notebook["row_sum"]).stage == "values"


def test_work_outside_the_kernel_is_found_on_every_case() -> None:
    text = solved("row_sum").replace(
        "    M, N = x.shape\n", "    M, N = x.shape\n    if M == 192: return x.sum(1)[:, None]\n"
    )
    notebook = Notebook()
    notebook.run(text)
    verdict = judge(ROW_SUM, notebook["row_sum"])
    assert (verdict.stage, verdict.case) == ("pallas", "M=192, N=128")
    text = solved("row_sum").replace("    )(x)", "    )(x if M == 128 else x * 1.0)")
    notebook.run(text)
    verdict = judge(ROW_SUM, notebook["row_sum"])
    assert (verdict.stage, verdict.case) == ("pallas", "M=192, N=128")
    assert "`mul` works on the data outside" in verdict.says


@pytest.mark.skipif(not hasattr(pl, "kernel"), reason="0.7 has no pl.kernel")
def test_the_other_front_door_is_named() -> None:
    def add_ten(x):
        def body(x_ref, o_ref):
            pltpu.sync_copy(x_ref, o_ref)

        mesh = pltpu.create_tensorcore_mesh("core")
        return pl.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=mesh)(x)

    verdict = judge(puzzles.find("add_ten"), add_ten)
    assert verdict.stage == "pallas"
    assert "by `pl.kernel`, which cannot be judged here: launch the same body" in verdict.says


def judged(puzzle: str, *edits: tuple[str, str], seed: int | None = None) -> Verdict:
    plain = dataclasses.replace(puzzles.find(puzzle), scale=None)  # it would refuse some first
    return judge(plain, edited(puzzle, *edits), seed=seed)


def test_the_fresh_case_is_lowered_for_a_tpu_as_the_listed_ones_are() -> None:
    drawn = {seed: case for seed in range(20) if (case := fresh_case(ROW_SUM, seed)) is not None}
    seed = next(seed for seed, case in drawn.items() if case.dims["M"] == 256)
    verdict = judged(
        "row_sum", ("bm, bn = 64, 128", "bm, bn = 4 if M == 256 else 64, 128"), seed=seed
    )
    assert (verdict.stage, verdict.case) == ("tpu", drawn[seed].label)
    assert f"`check(row_sum, seed={seed})` draws it again" in str(verdict)


def test_a_python_loop_under_jit_is_told_with_its_size() -> None:
    loop = """
def group_offsets(group_sizes):
    offsets = [jnp.int32(0)]
    for n in range(group_sizes.shape[0]):
        offsets.append(offsets[-1] + group_sizes[n])
    return jnp.stack(offsets)
"""
    notebook = Notebook()
    notebook.run(solved("group_offsets") + loop)
    verdict = judge(puzzles.find("group_offsets"), notebook["group_offsets"])
    assert verdict.headline.startswith("✗ group_offsets: a Python loop is unrolled (case E=144")
    scan = loop.replace(loop[loop.index("    offsets") :], (
        "    import jax\n"
        "    sums = jax.lax.associative_scan(jnp.add, group_sizes)\n"
        "    return jnp.concatenate([jnp.zeros(1, sums.dtype), sums])\n"
    ))  # fmt: skip
    notebook.run(scan)
    assert judge(puzzles.find("group_offsets"), notebook["group_offsets"]).passed
