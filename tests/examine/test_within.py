"""`with examining():` and the pytest plugin: an existing suite of tests is examined by one line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from launched import call
from launches import by_rows

import pytest_pallas_puzzles
from puzzles import examine, examining
from puzzles._examine import context

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
X = jnp.ones((32, 128), jnp.float32)


@pytest.fixture(autouse=True)
def nothing_known(no_libtpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_known", {})


def doubled(x: jax.Array, beyond: int = 0) -> jax.Array:
    """Twice x; with `beyond` its index map leaves the array."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    read = pl.BlockSpec((8, 128), lambda i: (i + beyond, 0))
    return by_rows(kernel, in_specs=[read], interpret=True)(x)


def test_every_launch_within_is_examined_once() -> None:
    with examining() as seen:
        assert (doubled(X) == 2 * X).all()
        doubled(X + 1)
        jax.jit(doubled)(X)
    (one,) = seen.examinations
    assert one.findings == ()
    assert one.launches[0].grid == (4,)


def test_what_is_found_is_raised_at_the_end() -> None:
    calls = pl.pallas_call
    with pytest.raises(AssertionError, match="out-of-bounds · kernel · x_ref"), examining():
        doubled(X, 1)
    assert pl.pallas_call is calls
    with examining(fail_on=None) as seen:
        doubled(X, 1)
    assert seen.examinations[0].findings[0].kind == "out-of-bounds"


def test_what_the_block_raises_comes_first() -> None:
    def broken() -> None:
        with examining():
            doubled(X, 1)
            raise KeyError("the test's own")

    with pytest.raises(KeyError):
        broken()


def test_integers_that_steer_a_launch_are_used_as_they_are() -> None:
    def kernel(index_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def picked(index: jax.Array) -> jax.Array:
        read = pl.BlockSpec((8, 128), lambda i, index_ref: (index_ref[i], 0))
        written = pl.BlockSpec((8, 128), lambda i, index_ref: (i, 0))
        return call(kernel, X[:16], (2,), [read], written, scalars=1)(index, X)

    with examining() as seen:
        picked(jnp.array([3, 0]))
    assert [one.unread for one in seen.examinations] == [""]
    with pytest.raises(AssertionError, match="out-of-bounds"), examining():
        picked(jnp.array([3, 4]))


def test_what_is_examined_by_name_is_told_there_alone() -> None:
    with examining() as seen:
        assert examine(lambda x: doubled(x, 1), X).code == 1
    assert seen.examinations == []


def test_a_severity_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="error, warning, note"), examining(fail_on="all"):
        pass


def test_the_fixture_fails_a_test_with_the_findings(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    texts = tomllib.loads(Path(__file__).with_name("modules.toml").read_text("utf-8"))
    pytester.makepyfile(**texts["within"])
    done = pytester.runpytest_inprocess(
        "-p", "no:pallas-puzzles", "-p", "pytest_pallas_puzzles", "-p", "no:cacheprovider"
    )
    done.assert_outcomes(passed=1, failed=3)
    done.stdout.fnmatch_lines(
        [
            "*out-of-bounds · kernel · x_ref*",
            "*in test_kernels*in_specs=?pl.BlockSpec*i + beyond*",
            "*hazard · stream_kernel · buffers*",
            "*in kernels.py:*o_ref* = buffers*",
            "*it contains no `pallas_call`*",
        ]
    )


def test_the_plugin_is_an_entry_point_that_imports_pytest_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((_, module),) = project["entry-points"]["pytest11"].items()
    text = (ROOT / f"{module}.py").read_text(encoding="utf-8")
    at_once = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    names = {line.split()[1].partition(".")[0] for line in at_once}
    assert names == {"__future__", "collections", "typing", "pytest"}


def test_the_plugin_leaves_the_words_of_audits_alone(pytester: pytest.Pytester) -> None:
    """As a wheel it stands beside `puzzles`, whose `assert`s pytest would rewrite for that."""
    config = pytester.parseconfig()
    marked = config.pluginmanager.rewrite_hook._must_rewrite
    marked |= {"puzzles", "another"}
    pytest_pallas_puzzles.pytest_load_initial_conftests(config)
    assert "puzzles" not in marked
    assert "another" in marked
