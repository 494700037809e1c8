"""`examine` on kernels of others: no finding in a right kernel, the fault of a wrong kernel."""

from __future__ import annotations

import hashlib

import corpus
import launches
import production
import pytest
import sabotage
import sample

from puzzles import examine
from puzzles._compile import has_libtpu

RIGHT = {**launches.LAUNCHES, **{f"jax {k}": v for k, v in production.LAUNCHES.items()}}
COMPILED = ("softmax_rows", "jax splash", "jax gmm", "jax paged")


def _weight(fault: sabotage.Planted) -> tuple[bool, str]:
    """Ours are small, JAX's own are long; then by its text."""
    return fault.place != "launches", hashlib.sha256(repr(fault).encode()).hexdigest()


# One of each kind here, all of them under `make graduate`.
FAULTS = sample.covering(sabotage.PLANTED, lambda fault: {fault.kind: 1}, _weight)


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.usefixtures("no_libtpu")
@pytest.mark.parametrize("name", sample.share(list(RIGHT), 6))
def test_nothing_is_wrong_with_a_right_kernel(name: str) -> None:
    found = examine(*RIGHT[name]())
    assert production.unexpected(name.removeprefix("jax "), found) == []
    assert (found.unread, found.code) == ("", 0)


@pytest.mark.graduate
@pytest.mark.newest
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # theirs
@pytest.mark.usefixtures("no_libtpu")
@pytest.mark.parametrize("kernel", sample.share(corpus.KERNELS, 6), ids=lambda row: f"{row[1:3]}")
def test_a_kernel_of_a_wheel_is_read_and_right_or_refused_with_the_reason(kernel) -> None:
    wheel, name, shape, make = kernel
    try:
        found = examine(*make(), chips=corpus.CHIPS[wheel])
    except ModuleNotFoundError as error:
        pytest.skip(f"it needs `{error.name}`, which is not installed")
    assert corpus.unexpected(f"{name}: {shape}", found) == []
    refused = name in ("ring_attention", "kda") and "inside a `shard_map`" in found.unread
    assert bool(found.unread) == refused


@sample.in_turn
@pytest.mark.skipif(not has_libtpu(), reason="needs libtpu")
@pytest.mark.parametrize("name", sample.some(COMPILED))
def test_the_compiler_agrees(name: str) -> None:
    found = examine(*RIGHT[name](), chips=("v5e", "v6e"))
    assert [one for one in found.findings if one.severity != "note"] == []
    assert "compile: libtpu, for v5e, v6e" in found.looked


@pytest.mark.slow
@pytest.mark.graduate
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name[:60])
def test_a_planted_fault_is_found_and_named(
    fault: sabotage.Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault.kind != "compile":
        monkeypatch.setattr("puzzles._compile.compiler.has_libtpu", lambda: False)
    elif not has_libtpu():
        pytest.skip("needs libtpu")
    # Two cores share a grid on v5p; on v5e, which has one, the same conflict is a warning.
    found = examine(*fault.launch(), chips=("v5p",) if fault.kind == "parallel" else ("v5e",))
    told = [one for one in found.findings if fault.found_by(one)]
    assert told, found
    assert told[0].severity == "error"
    assert told[0].launch
    assert found.code == 1
