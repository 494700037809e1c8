"""A puzzle about several devices: judged like any other, on devices that NumPy plays."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import puzzles
from puzzles import judge, on_devices, show
from puzzles._author import soundness
from puzzles._check import verdict_page
from puzzles._judge import cases, execute
from puzzles._program import over_mesh
from puzzles._puzzle import mutate

PUZZLE = dataclasses.replace(
    puzzles.find("ring_all_reduce"), cases=[dict(M=16, N=128), dict(M=8, N=256, x=3)]
)
ring_all_reduce = PUZZLE.solution
EARLY = PUZZLE.mistake("gives the credit before its slot has left")


def test_a_right_answer_passes_and_its_devices_were_played() -> None:
    verdict = judge(PUZZLE, ring_all_reduce)
    assert verdict.passed, verdict
    assert "devices in NumPy" in str(verdict)
    assert "ICI    device 0 sends 24 KiB: 24 KiB to device 1; 3 copies" in str(verdict)


def test_a_receipt_shows_the_device_with_most_products() -> None:
    """With a causal mask the first device has a product for its own keys only."""
    verdict = str(judge(puzzles.find("ring_attention"), puzzles.find("ring_attention").solution))
    assert "ICI    device 7 sends " in verdict
    assert "products overlap 7 of 7 copies and take " in verdict
    assert "bound by HBM" not in str(verdict)


def test_a_card_draws_the_devices() -> None:
    """A pass: every copy; a race: the copies up to it, which is crossed out."""
    passed = verdict_page(judge(PUZZLE, ring_all_reduce))
    assert 'aria-label="12 copies between 4 devices over time"' in passed
    assert "overwrites" not in passed
    assert "overwrites" in verdict_page(judge(PUZZLE, mutate(PUZZLE, EARLY)))


def test_a_wrong_number_has_its_device() -> None:
    verdict = judge(PUZZLE, mutate(PUZZLE, PUZZLE.mistake("adds what it sends")))
    assert "The first is [0, 0] on device 0" in verdict.says


def test_on_devices_runs_a_function_on_a_mesh_that_nobody_has() -> None:
    x = np.random.default_rng(0).normal(size=(4, 8, 128)).astype(np.float32)
    result = on_devices(ring_all_reduce, jnp.asarray(x), axes={"x": 4})
    assert np.allclose(result, x.sum(0), atol=1e-5)


def test_on_devices_raises_what_devices_must_not_do() -> None:
    wrong = mutate(PUZZLE, EARLY)
    with pytest.raises(RuntimeError, match="while device 2 still sends it"):
        on_devices(wrong, jnp.zeros((4, 8, 128)), axes={"x": 4})


def test_show_draws_the_devices_and_crosses_the_copy_that_overwrites(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = jnp.zeros((4, 16, 128))
    show(over_mesh(ring_all_reduce, {"x": 4}), x)
    right = capsys.readouterr().out
    assert (right.count("device 0 to 1: slots_ref["), right.count("✗")) == (3, 0)
    show(over_mesh(mutate(PUZZLE, EARLY), {"x": 4}), x)
    wrong = capsys.readouterr().out
    assert "while device 2 still sends it" in wrong
    (crossed,) = (line for line in wrong.splitlines() if line.endswith("✗"))
    assert "device 1 to 2: slots_ref[0]" in crossed


def test_an_author_is_asked_for_a_ring_of_three() -> None:
    assert [name for name, _ in soundness._one_block(PUZZLE)] == []
    two = dataclasses.replace(PUZZLE, axes={"x": 2}, cases=[dict(M=16, N=128)])
    assert [name for name, _ in soundness._one_block(two)] == ["devices"]


def test_a_reference_on_a_mesh_runs_without_jax() -> None:
    (result,) = execute(cases(PUZZLE)[0].reference)
    assert np.allclose(result, cases(PUZZLE)[0].expected, atol=1e-4)
