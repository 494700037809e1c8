"""Programs compiled ahead by other threads: once each, told to whoever asks, dropped in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from puzzles._jax import ClosedJaxpr
from puzzles._launch import ahead, compiling, fingerprint, on_cpu


def _program(factor: float) -> tuple[ClosedJaxpr, Any]:
    program = jax.make_jaxpr(lambda x: jnp.sin(x) * factor)(jnp.ones(3))
    return program, ("test", fingerprint(program))


@pytest.fixture(autouse=True)
def with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a learner: the other tests do without, see conftest.py."""
    monkeypatch.delenv("PUZZLES_AHEAD")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that compiled something, in the order in which they began."""
    names: list[str] = []
    compile_ = compiling._compile

    def noted(*given: Any) -> Callable:
        names.append(threading.current_thread().name)
        return compile_(*given)

    monkeypatch.setattr(compiling, "_compile", noted)
    return names


def test_what_is_compiled_ahead_is_not_compiled_again(compilations: list[str]) -> None:
    programs = [_program(factor) for factor in (1.5, 2.5, 3.5)]
    with ahead(programs):
        for program, key in reversed(programs):
            (out,) = on_cpu(program, [jnp.zeros(3)], key)
            assert out.shape == (3,)
    assert len(compilations) == 3
    assert any(name.startswith("compiling") for name in compilations)


def test_who_asks_for_a_program_hears_why_it_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Event()

    def failing(*_: Any) -> Callable:
        asked.wait(30)
        raise ValueError("no such program")

    monkeypatch.setattr(compiling, "_compile", failing)
    program, key = _program(4.5)
    with ahead([(program, key)]):
        asked.set()
        with pytest.raises(ValueError, match="no such program"):
            on_cpu(program, [jnp.zeros(3)], key)
    monkeypatch.undo()
    assert on_cpu(program, [jnp.zeros(3)], key)[0].shape == (3,)  # it is not kept as a failure


def test_nothing_is_begun_when_nobody_waits_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def slow(*_: Any) -> Callable:
        begun.append(1)
        go_on.wait(30)
        return lambda *args: list(args)

    monkeypatch.setattr(compiling, "_compile", slow)
    with ahead([_program(factor) for factor in (5.5, 6.5, 7.5, 8.5, 9.5)]):
        pass
    go_on.set()
    compiling._threads().submit(lambda: None).result(30)
    assert len(begun) <= 2


def test_where_all_cores_are_busy_nothing_is_compiled_in_vain(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUZZLES_AHEAD", "0")
    programs = [_program(factor) for factor in (10.5, 11.5)]
    with ahead(programs):
        program, key = programs[1]
        on_cpu(program, [jnp.zeros(3)], key)
    compiling._threads().submit(lambda: None).result(30)
    assert compilations == ["MainThread"]


def _through_on_cpu(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    program = jax.make_jaxpr(jnp.dot)(a, b)
    return np.asarray(on_cpu(program, [a, b])[0])


@pytest.mark.parametrize("dot", [_through_on_cpu, jax.jit(jnp.dot)])
def test_a_dot_reads_the_factor_that_it_is_given_now(dot: Callable) -> None:
    r = np.random.default_rng(0)
    a = r.normal(size=(128, 384)).astype(np.float32)
    b = r.normal(size=(384, 512)).astype(np.float32)
    want = a @ b
    stale = 0
    for n in range(300):  # arrays come and go, and a new one lies where another lay
        sign = np.float32(-1 if n % 2 else 1)
        got = np.asarray(dot(a, b * sign))
        stale += not np.allclose(got, want * sign, atol=1e-3)
    assert stale == 0
