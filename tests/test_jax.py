"""Behaviour on every JAX, and the messages about features that a version lacks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tried
from jax.experimental import pallas as pl
from launched import call

import puzzles
from puzzles import _jax
from puzzles._launch import trace_call
from puzzles._program import by_jax
from puzzles._simulator import simulate

ENGINE = sorted(
    path
    for path in Path(puzzles.__file__).parent.rglob("*.py")
    if path.relative_to(Path(puzzles.__file__).parent).parts[0].startswith("_")
)
TILE = (8, 128)


def count_kernel(o_ref):
    o_ref[...] = jnp.full_like(o_ref, pl.num_programs(0))


def helped_kernel(o_ref):
    o_ref[...] = jnp.full_like(o_ref, helper())


def helper():
    return 1


def last_block(i):
    return pl.num_programs(0) - 1, 0


def first_block(i):
    return 0, 0


def counts(n, kernel=count_kernel, index_map=first_block):
    """One launch on a grid (n,); kernel and index map are the same functions every time."""
    out = jax.ShapeDtypeStruct((8 * n, 128), jnp.int32)
    return call(kernel, out, (n,), [], pl.BlockSpec(TILE, index_map))()


def first_number(fn, *args):
    traced = trace_call(fn, *args)
    return int(by_jax(traced.jaxpr, traced.leaves)[0][0, 0])


def test_one_kernel_sees_the_grid_of_each_trace():
    assert [first_number(counts, n) for n in (2, 5, 3)] == [2, 5, 3]


def test_one_kernel_sees_both_grids_of_one_trace():
    traced = trace_call(lambda: (counts(2), counts(5), counts(3)))
    for got in (by_jax(traced.jaxpr, ()), simulate(traced)):
        assert [int(x[0, 0]) for x in got] == [2, 5, 3]


def test_one_index_map_sees_the_grid_of_each_launch():
    launches = puzzles.trace(lambda: (counts(2, index_map=last_block), counts(5), counts(3)))
    launches += puzzles.trace(counts, 4, count_kernel, last_block)
    launches += puzzles.trace(counts, 7, count_kernel, last_block)
    blocks = [np.unique(one.outputs[0].blocks[:, 0]).tolist() for one in launches]
    assert blocks == [[1], [0], [0], [3], [6]]


def test_a_helper_that_was_redefined_is_used(monkeypatch):
    assert first_number(counts, 2, helped_kernel) == 1
    monkeypatch.setitem(globals(), "helper", lambda: 2)
    assert first_number(counts, 2, helped_kernel) == 2


def test_after_a_trace_jax_is_as_it_was():
    from jax._src.interpreters import partial_eval

    before = getattr(partial_eval, "trace_to_jaxpr", None)
    with pytest.raises(ZeroDivisionError):
        trace_call(lambda: trace_call(counts, 2) and 1 / 0)
    assert getattr(partial_eval, "trace_to_jaxpr", None) is before


def imported(setup: str, then: str = "") -> subprocess.CompletedProcess[str]:
    code = f"import jax\n{setup}\nimport puzzles\n{then}"
    env = os.environ | {"XLA_FLAGS": ""}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_an_old_jax_is_refused_in_one_sentence():
    says = last_words(imported("jax.__version__ = '0.6.2'"))
    assert says == (
        "puzzles._jax.UnsupportedJaxError: Pallas Puzzles needs JAX 0.7.2 or newer "
        f"(tried up to {_jax.NEWEST_TRIED}), and this is JAX 0.6.2: run "
        '`pip install -U "jax>=0.7.2"` and restart Python, or the notebook\'s kernel.'
    )


@pytest.mark.parametrize(
    ("setup", "name"),
    [
        (
            "from jax._src.state import types; del types.WriteEffect",
            "jax._src.state.types.WriteEffect",
        ),
        (
            "import sys; sys.modules['jax._src.interpreters.partial_eval'] = None\n"
            "import jax._src.interpreters as i; del i.partial_eval",
            "jax._src.interpreters.partial_eval",
        ),
    ],
    ids=["name", "module"],
)
def test_a_jax_without_a_name_that_is_needed_says_which(setup: str, name: str):
    says = last_words(imported(f"from jax.experimental import pallas\n{setup}"))
    assert says == (
        f"puzzles._jax.UnsupportedJaxError: JAX {jax.__version__} has no `{name}`, which Pallas "
        f"Puzzles needs (it works with JAX 0.7.2 to {_jax.NEWEST_TRIED}): update Pallas Puzzles, "
        f'or run `pip install "jax>=0.7.2,<={_jax.NEWEST_TRIED}"`, and restart Python, or the '
        "notebook's kernel."
    )


def test_the_package_that_jax_0_9_forgets_to_bring_is_named():
    error = ModuleNotFoundError("No module named 'absl'", name="absl")
    assert _jax.lacking("0.9.2", error) == (
        "JAX 0.9.2 needs the module `absl` for its TPU simulator: run `pip install absl-py`, and "
        "restart Python, or the notebook's kernel."
    )


def test_a_newer_jax_is_not_refused_and_an_xla_that_was_tried_is_told_to_compile_quickly():
    then = (
        "import os; puzzles.compile_quickly(); print(os.environ.get('XLA_FLAGS'), jax.jit(abs)(-1))"
    )
    solved = "\none = puzzles.find('add_ten'); print(puzzles.judge(one, one.solution).passed)"
    tried, newer = imported("", then), imported("jax.__version__ = '99.1.0rc1'", then + solved)
    assert (tried.returncode, newer.returncode) == (0, 0), tried.stderr + newer.stderr
    assert "optimization_level=0" in tried.stdout
    assert "optimization_level" not in newer.stdout
    assert newer.stdout.split()[-1] == "True"
    assert "This is JAX 99.1.0rc1, and Pallas Puzzles was tested up to" in newer.stderr
    assert "was tested up to" not in tried.stderr


@pytest.mark.newest
@pytest.mark.skipif(sys.version_info < (3, 12), reason="the newest JAX needs Python 3.12")
def test_no_jax_counts_as_tested_before_the_tests_ran_on_it():
    assert tried.numbers(_jax.NEWEST_TRIED) <= tried.numbers(jax.__version__)


def test_the_tests_name_the_newest_jax_that_passed(tmp_path: Path):
    path = tmp_path / "_jax.py"
    path.write_text('OLDEST = "0.7.2"\nNEWEST_TRIED = "0.12.0.1"  # a reason\n')
    assert not any(tried.record(path, one) for one in ("0.7.2", "0.10.2", "0.12.0", "0.12.0.1"))
    assert tried.record(path, "0.12.1")
    assert path.read_text() == 'OLDEST = "0.7.2"\nNEWEST_TRIED = "0.12.1"  # a reason\n'
    assert len(tried.CONSTANT.findall(tried.FILE.read_text("utf-8"))) == 1


@pytest.mark.parametrize(
    ("installed", "required", "cuts"),
    [
        ("0.0.50.1", "0.0.42", True),  # on JAX 0.10 with a libtpu of 0.12
        ("0.0.42.1", "0.0.50.*", False),
        (None, "0.0.50.*", True),
        (None, "0.0.48.*", False),
    ],
)
def test_libtpu_decides_about_tiles_of_bytes_and_not_jax(installed, required, cuts):
    answer = f"return {installed!r}" if installed else "raise metadata.PackageNotFoundError"
    setup = (
        "from importlib import metadata\nversion = metadata.version\n"
        f"def asked(name):\n  if name != 'libtpu': return version(name)\n  {answer}\n"
        "metadata.version = asked\n"
        f"""metadata.requires = lambda name: ['numpy', 'libtpu=={required}; extra == "tpu"']"""
    )
    done = imported(setup, "print(puzzles._jax.CUTS_TILES_OF_BYTES)")
    assert done.stdout.strip() == str(cuts), done.stderr


def test_a_version_below_the_range_is_too_old():
    for version in ("0.7.2", "0.7.2.dev20250801", "0.10.0", "0.12.0.1", "1.0"):
        assert _jax.too_old(version) is None
    for version in ("0.4.38", "0.7", "0.7.1"):
        assert f"this is JAX {version}:" in (_jax.too_old(version) or "")


def test_private_names_of_jax_come_from_one_module():
    for path in ENGINE:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        assert path.name == "_jax.py" or not any(n.startswith("jax._src") for n in names), path
