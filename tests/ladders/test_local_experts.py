"""Experts on several devices: the notebook's first cell makes four of a CPU, and no more harm."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import sample

from puzzles.grouped_matmul import SETUP_FIRST

STARTS = "from puzzles import INTERPRET"
COUNTS = "print(len(jax.devices()))"


SETUP = "import jax.numpy as jnp, numpy as np\nfrom puzzles import INTERPRET, check, find, trace"


def cell_of(name: str, word: str) -> str:
    """The code of the notebook's cell of a puzzle that holds a word."""
    from puzzles import _regions, find

    cells = _regions.split_cells(find(name).text)
    (cell,) = [body for marker, body in cells if 'active="ipynb"' in marker and word in body]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in cell.splitlines())


def said(*lines: str, **environment: str) -> str:
    """The output of a fresh Python."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(["import jax", *lines])],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@sample.in_turn
def test_the_setup_cell_makes_four_devices_and_may_run_again() -> None:
    assert said(SETUP_FIRST, STARTS, COUNTS, SETUP_FIRST, STARTS, COUNTS) == "4\n4"


@sample.in_turn
def test_where_jax_runs_already_the_setup_cell_does_no_harm() -> None:
    assert said(COUNTS, SETUP_FIRST, STARTS, COUNTS) == "1\n1"


@sample.drill
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_the_cell_about_several_devices_runs_on_any_number_of_them(devices: int) -> None:
    """One device: a session that ran JAX before the first cell, or a small TPU."""
    code = cell_of("local_experts", "jax.shard_map")
    first = SETUP_FIRST.replace('devices", 4', f'devices", {devices}')
    says = f"the sum over {devices} devices equals the whole"
    assert f"the reference: {says}" in said(first, SETUP, code)
    mine = "check(find('local_experts').solution)"
    assert f"yours: {says}" in said(first, SETUP, mine, code)


@sample.in_turn
@pytest.mark.parametrize("devices", sample.some([1, 2, 4]))
def test_the_layer_in_which_all_meet_equals_a_dense_mixture(devices: int) -> None:
    """The cell asserts it. It runs the learner's answer if that has passed its check."""
    code = cell_of("block_scaled_grouped_matmul", "jax.shard_map")
    first = SETUP_FIRST.replace('devices", 4', f'devices", {devices}')
    mine = "check(find('local_experts').solution)"
    wrong = "def fused_gate_up(lhs, w_gate, w_up, sizes):\n    return 0 * lhs @ w_gate[0]\n"
    wrong += "check(fused_gate_up)"
    printed = said(first, SETUP, mine, wrong, code)
    assert f"{devices} devices, f32" in printed
    assert f"{devices} devices, int8" in printed
    assert "fused_gate_up: the reference, local_experts: yours" in printed
