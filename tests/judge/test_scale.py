"""At production scale an answer costs what the reference does, or the verdict shows both."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from learner import Notebook, solved

import puzzles
from puzzles._judge.cost import Cost
from puzzles._judge.costs import Scale, excesses
from puzzles._judge.verdict import beside as table
from puzzles._launch import trace_call
from puzzles._receipt import amounts
from puzzles._rules import Finding

f32 = jnp.float32
M, K, N = 2048, 4096, 8192
A, B = jax.ShapeDtypeStruct((M, K), f32), jax.ShapeDtypeStruct((K, N), f32)


def matmul(a, b, *, bm=256, bk=512, bn=512, dots=1, work=True, exps=0, columns=False, nothing=1):
    """A product by blocks. columns: column by column; nothing: an axis of so many idle rounds."""
    (M, K), N = a.shape, b.shape[1]

    def kernel(a_ref, b_ref, o_ref, acc_ref):
        k, part = pl.program_id(2) // nothing, pl.program_id(2) % nothing

        @pl.when(k == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(part == 0)
        def _():
            for _ in range(dots):
                acc_ref[...] += jnp.dot(a_ref[...], b_ref[...])
            for _ in range(exps):
                o_ref[...] = jnp.exp(acc_ref[...])

        o_ref[...] = acc_ref[...]

    def spec(block, index):
        order = (
            (lambda j, i, k: index(i, j, k // nothing))
            if columns
            else (lambda i, j, k: index(i, j, k // nothing))
        )
        return pl.BlockSpec(block, order)

    rows, cols = M // bm, N // bn
    return pl.pallas_call(
        kernel,
        grid=(*((cols, rows) if columns else (rows, cols)), K // bk * nothing),
        in_specs=[
            spec((bm, bk), lambda i, j, k: (i, k)),
            spec((bk, bn), lambda i, j, k: (k, j)),
        ],
        out_specs=spec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((M, N), a.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), f32)],
        interpret=True,
    )(a, b)


def beside(mine: Callable, par: Callable = matmul, *, slack: dict | None = None) -> list[Finding]:
    costs = (Cost.of(trace_call(fn, A, B)) for fn in (mine, par))
    return list(excesses(Scale("here", *costs), slack or {}))


def what(found: Finding) -> str:
    """The name of the cost that is too high."""
    return found.rule.removeprefix("cost-")


def both(found: Finding) -> tuple[float, float]:
    """That cost of the answer and of the reference."""
    return tuple(getattr(found.facts[whose], what(found)) for whose in ("mine", "par"))


@pytest.mark.parametrize(
    "mine",
    [
        matmul,
        functools.partial(matmul, columns=True),
        functools.partial(matmul, bm=512, bn=256),
        functools.partial(matmul, bk=128),
        jax.jit(matmul),
    ],
)
def test_as_good_an_answer_costs_nothing_more(mine: Callable) -> None:
    assert beside(mine) == []


@pytest.mark.parametrize(
    ("options", "cost", "ratio"),
    [
        (dict(dots=2), "dot_flops", 2.0),
        (dict(bm=512, dots=2), "dot_flops", 2.0),  # with other blocks, too
        (dict(nothing=2), "idle", float("inf")),
        (dict(bk=256, nothing=2), "idle", float("inf")),
        (dict(bm=2048, bk=2048), "vmem", 52 / 4.5),
        (dict(bm=128, bn=128), "bytes", (2 + 2 + 1 / 16) / (0.5 + 1 + 1 / 16)),
    ],
)
def test_a_lazy_answer_is_told_the_first_cost_above_its_limit(
    options: dict, cost: str, ratio: float
) -> None:
    first = beside(functools.partial(matmul, **options))[0]
    assert what(first) == cost
    mine, par = both(first)
    assert mine / par == pytest.approx(ratio, rel=0.02) if par else ratio == float("inf")


def test_exps_are_computed_once() -> None:
    """Who computes those of skipped blocks, too, computes twice as many as a causal mask needs."""
    once = functools.partial(matmul, exps=1)
    assert beside(once, once) == []
    (found,) = beside(functools.partial(matmul, exps=2), once)
    mine, par = both(found)
    assert (what(found), mine) == ("transcendentals", 2 * par)


def test_slack_allows_what_an_alternative_needs() -> None:
    small = functools.partial(matmul, bm=128, bn=128)
    assert [what(one) for one in beside(small)] == ["bytes"]
    assert beside(small, slack={"bytes": 4}) == []


def test_a_copy_made_outside_is_told_with_its_bytes_and_its_line() -> None:
    def padded(a, b):
        return matmul(jnp.pad(a, ((0, 0), (0, 512))), jnp.pad(b, ((0, 512), (0, 0))))

    def reshaped(a, b):
        return matmul(a.reshape(1, M, K)[0], b)

    first = beside(padded)[0]
    mine, par = both(first)
    assert (what(first), par) == ("outside", 0)
    assert mine == pytest.approx(4 * (M + N) * (K + 512))
    assert "arrays of 180 MiB are made outside of the kernel, where 0 B are enough" in first.says
    assert "in `return matmul(jnp.pad(a" in first.says
    assert beside(reshaped) == []


def test_a_mask_made_outside_counts_whether_jax_or_numpy_makes_it() -> None:
    def by_jax(a, b):
        return matmul(a, b) * (jnp.arange(M)[:, None] < jnp.arange(N))

    assert what(beside(by_jax)[0]) == "outside"


def test_more_launches_than_the_reference_makes_are_too_many() -> None:
    def twice(a, b):
        return matmul(a, b) + matmul(a, b)

    first = beside(twice)[0]
    assert what(first) == "count"
    assert "2 kernels are launched, where 1 is enough." in first.says
    assert beside(matmul, twice) == []


def judged(name: str, *edits: tuple[str, str]) -> puzzles.Verdict:
    text = solved(name)
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    notebook = Notebook()
    notebook.run(text)
    return puzzles.judge(puzzles.find(name), notebook[name])


def test_a_pass_shows_both_costs_and_the_production_shape() -> None:
    same = judged("row_sum")
    assert same.receipt == (
        "At M=1,024, N=262,144: 16 blocks of sums in 32,768 steps; about 13.1 ms on one v5e, bound "
        "by its steps."
    )
    assert "yours, and the reference's\n" in str(same.details)
    assert "takes 400 ns by itself" in str(same.details)
    other = judged("row_sum", ("bm, bn = 64, 128", "bm, bn = 32, 128"))
    assert "reference\n" in str(other.details)
    assert "steps (the reference: 16 blocks of sums in 32,768 steps); about" in str(other.receipt)


def test_what_is_made_outside_is_said_where_it_differs() -> None:
    plain, padded = (
        Cost.of(trace_call(fn, A, B))
        for fn in (matmul, lambda a, b: matmul(jnp.pad(a, ((0, 256), (0, 0))), b))
    )
    for mine, par in ((padded, plain), (plain, padded)):
        assert "made outside" in table(Scale("", mine, par), ())
        assert "made outside" not in table(Scale("", mine, mine), ())


def test_both_sides_have_one_unit() -> None:
    assert amounts(3003 * 2**20, 990 * 2**20) == ("3,003 MiB", "990 MiB")
    assert amounts(2**30, 3 * 2**20) == ("1,024 MiB", "3 MiB")
    assert amounts(10 * 2**30, 3 * 2**20) == ("10 GiB", "0.00293 GiB")
    assert amounts(0, 5 * 2**20) == ("0 B", "5 MiB")
    assert amounts(2**20, 2**20) == ("1 MiB", "1 MiB")
    assert amounts(2**20, 2**20 + 1) == ("1,048,576 B", "1,048,577 B")


def test_a_column_may_fill_all_lanes_of_its_vectors() -> None:
    """As JAX's own kernel keeps its statistics: on a TPU the exponentials cost the same."""
    text, notebook = solved("attention_one_block"), Notebook()
    for old, new in (
        ("pltpu.VMEM((bq, 1), jnp.float32)", "pltpu.VMEM((bq, 128), jnp.float32)"),
        ("p = jnp.exp(s - m_new)", "p = jnp.exp(s - m_new[:, :1])"),
        ("acc_ref[...] = alpha * acc_ref[...]", "acc_ref[...] = alpha[:, :1] * acc_ref[...]"),
        ("acc_ref[...] / l_ref[...]", "acc_ref[...] / l_ref[:, :1]"),
    ):
        assert old in text
        text = text.replace(old, new)
    notebook.run(text)
    verdict = puzzles.judge(puzzles.find("attention_one_block"), notebook["attention_one_block"])
    assert verdict.passed, verdict
