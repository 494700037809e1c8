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
    assert " ".join(names.split()) == "bm bk bn VMEM MiB HBM MiB steps FLOP/B µs"
    # a is read N / bn times, b M / bm times, and the product is written once: 2 MiB each
    # 512 steps of 0.4 µs; 16 steps are too few to count, and HBM needs 10 MiB / 820 GB/s
    assert small.split()[3:] == ["0.25", "34", "512", "60", "205"]
    assert large.split()[3:] == ["3.00", "10", "16", "205", "13"]
    assert said == "µs on a v5e, by the receipt (nothing was measured)"


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
    assert "µs measured on this TPU" in capsys.readouterr().out
