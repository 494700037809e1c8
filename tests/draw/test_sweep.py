"""Choices of keywords, one row for each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import puzzles

CHOICES = [dict(bm=128, bk=128, bn=128), dict(bm=512, bk=256, bn=512)]


def test_a_sweep_on_a_cpu_ranks_by_the_receipt_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    square = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    puzzles.sweep(puzzles.find("matmul_bf16").solution, CHOICES, square, square)
    names, small, large, said = capsys.readouterr().out.splitlines()
    assert " ".join(names.split()) == "bm bk bn VMEM HBM steps FLOP/B time"
    # a is read N / bn times, b M / bm times, and the product is written once: 2 MiB each
    # 514 steps of 0.4 µs, and 512 small dots; the others are 18 steps
    assert small.split()[3:] == ["256", "KiB", "34", "MiB", "512", "60", "254", "µs"]
    assert large.split()[3:] == ["3", "MiB", "10", "MiB", "16", "205", "20.1", "µs"]
    assert said == "time on a v5e, by the receipt (nothing was measured)"


def test_on_a_tpu_each_choice_is_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    called = []

    def scaled(x: jax.Array, by: int) -> jax.Array:
        called.append(by)
        return x * by

    puzzles.sweep(scaled, [dict(by=2), dict(by=3)], jax.ShapeDtypeStruct((8, 128), jnp.float32))
    assert set(called) == {2, 3}
    assert "time measured on this TPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("choices", "more", "says"),
    [
        (CHOICES, dict(chip="v9"), "no chip is called 'v9'"),
        ([], {}, "there is nothing to compare"),
        ([{}], {}, "there is nothing to compare"),
        ([dict(bq=128)], {}, "unexpected keyword argument 'bq'"),
        ([dict(bm=100, bk=128, bn=128)], {}, "✗ never-written"),
    ],
)
def test_a_sweep_that_cannot_be_right_says_so(choices, more, says, capsys) -> None:
    square = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    puzzles.sweep(puzzles.find("matmul_bf16").solution, choices, square, square, **more)
    assert says in capsys.readouterr().out


def test_half_the_steps_cost_half_the_time(capsys) -> None:
    square = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    choices = [dict(bm=128, bk=128, bn=n) for n in (128, 256)]
    puzzles.sweep(puzzles.find("matmul_bf16").solution, choices, square, square)
    _, *found, _ = capsys.readouterr().out.splitlines()
    many, few = (float(line.split()[-2]) for line in found)
    assert 1.5 < many / few < 2
