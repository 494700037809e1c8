"""The statements of collectives, shown by running code; collectives.toml lists them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cpu_devices import in_jax
from launched import mistaken, wire_of

import puzzles
from puzzles import on_devices
from puzzles._compile import CHIPS
from puzzles.collectives._costs import WAYS, compare_gathers, way


def found(name: str, mistake: str) -> str:
    """The hazard that the devices of a wrong kernel run into, on case 0."""
    puzzle = puzzles.find(name)
    with pytest.raises(RuntimeError) as error:
        on_devices(mistaken(name, mistake), *puzzle.arguments(0), axes=puzzle.axes)
    return str(error.value)


def test_a_wait_for_what_nobody_sends_is_told_as_a_deadlock() -> None:
    assert "The kernel hangs" in found("broadcast_ring", "waits for an arrival on device 0, too")


def test_steps_that_share_a_semaphore_are_told() -> None:
    says = found("ring_all_gather", "shares one receive semaphore among all steps")
    assert "2 copies arrive there, and any of them may have ended that wait" in says


def test_without_credits_a_device_is_n_minus_2_steps_ahead() -> None:
    assert "while device 2 still sends it" in found("ring_all_reduce", "has no credits")
    # A device waits for data from its left alone. If its right neighbour has not begun, the data
    # of n - 2 other devices, and its own, can still go on until they reach that device.
    for n in (3, 4, 8):
        arrives = {0: 0}  # device 1 never sends; the step in which device d lacks data first
        for device in range(2, n + 1):
            arrives[device % n] = device - 1 - 1
        assert arrives[0] == n - 2


def test_the_bug_of_fix_the_ring_gives_right_numbers_in_most_runs() -> None:
    starter = f"fix_the_ring:{puzzles.find('fix_the_ring').starter}"
    (differences,) = in_jax(starter).values()
    # The order of threads decides: once in a while a run on eight devices is wrong.
    assert sorted(differences)[len(differences) // 2] == 0


def test_overlap_pays_where_the_prose_says_so() -> None:
    sizes = dict(devices=4, M=1024, K=256, N=4096)
    v5e, v6e = (
        {name: way(name, chip, **sizes).seconds for name in WAYS} for chip in ("v5e", "v6e")
    )
    gather = way("ring_all_gather", "v5e", **sizes)
    assert 0.8 < (gather.product / 4) / (gather.wire / 3) < 1.0
    assert v5e["bidirectional_all_gather"] < v5e["collective_matmul"] < v5e["ring_all_gather"]
    assert max(v5e, key=v5e.__getitem__) == "all_gather_matmul"
    assert min(v6e, key=v6e.__getitem__) == "collective_matmul"
    # The reads and writes of its products, its own block, and the halves that go and come.
    moved = (18 + 32 + 1 + 3) * 2**20 / CHIPS["v6e"].hbm_bytes_per_second
    assert 0.95 < moved / v6e["collective_matmul"] < 1


@pytest.mark.parametrize(("K", "decides"), [(128, "bytes"), (1024, "operations")])
def test_a_product_after_a_gather_takes_the_longer_of_two_times(K: int, decides: str) -> None:
    devices, M, N, chip = 3, 512, 2048, CHIPS["v5e"]
    rows = devices * M
    times = {
        "bytes": 2 * (rows * K + K * N + rows * N) / chip.hbm_bytes_per_second,
        "operations": 2 * rows * K * N / chip.flops_per_second,
    }
    assert max(times, key=times.__getitem__) == decides
    assert way("ring_all_gather", "v5e", devices, M, K, N).product == times[decides]


def test_a_comparison_is_a_table_and_a_plot_of_the_same_figures() -> None:
    compared = compare_gathers("v5e", "v6e", M=64, K=128, N=512)
    tables = repr(compared).split("\n\n")
    for table, ways in zip(tables, compared.ways.values(), strict=True):
        assert [line.split()[0] for line in table.splitlines()[1:-1]] == [*WAYS] == [*ways]
    svg, _ = compared._repr_html_().split("<pre")
    bars = [float(wide) for wide in re.findall(r"M[\d.]+ [\d.]+h([\d.]+)v12h", svg)]
    parts = [
        s
        for ways in compared.ways.values()
        for its in ways.values()
        for s in (its.wire, its.product)
        if s
    ]
    np.testing.assert_allclose(np.divide(bars[: len(parts)], parts), bars[0] / parts[0], rtol=0.05)


def test_arrays_in_vmem_come_before_the_first_product_and_leave_after_the_last() -> None:
    devices, M, K, N, chip = 3, 512, 128, 8192, CHIPS["v5e"]
    moved = 2 * (M * K + K * N + devices * M * N) / chip.hbm_bytes_per_second
    products = 2 * devices * M * K * N / chip.flops_per_second
    seconds = way("all_gather_matmul", "v5e", devices, M, K, N).seconds
    assert 1 < seconds / (moved + products) < 1.2


def test_both_directions_take_half_the_time() -> None:
    one, two = (
        wire_of(name, 4, M=1024, N=1024).transfers
        for name in ("ring_all_gather", "bidirectional_all_gather")
    )
    assert sum(copy.bytes for copy in one) == sum(copy.bytes for copy in two)
    steps = [max(x.end for x in copies) - min(x.begin for x in copies) for copies in (one, two)]
    assert np.isclose(steps[1] / steps[0], 0.5, atol=0.02)
