"""The report of `examine`, on programs that it can read and on others."""

from __future__ import annotations

import functools
import json
import runpy
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import launches
import pytest
import sabotage
import sample
from IPython.core.formatters import PlainTextFormatter
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import call, copy_kernel, cores, from_hbm

import puzzles
from puzzles import examine
from puzzles._examine import targets
from puzzles._launch.finding import KINDS
from puzzles._program import run
from puzzles._simulator import simulator
from puzzles._simulator.semantics import drawn

f32, i32 = jnp.float32, jnp.int32
S = jax.ShapeDtypeStruct
ROOT = Path(__file__).parents[2]
X = S((32, 128), f32)
pytestmark = pytest.mark.usefixtures("no_libtpu")


def test_nothing_found_says_what_was_looked_for_and_what_not(monkeypatch) -> None:
    monkeypatch.setattr(run, "_compiled", None)  # nothing is
    found = examine(*launches.scale_rows())
    assert "uninitialised, hazard: in NumPy, all steps" in found.looked
    assert str(found).startswith("✓ scale: nothing found\n")
    assert (found.code, found.worst) == (0, "")
    told = " ".join(found.looked)
    assert all(kind in told for kind in KINDS if kind != "compile")
    assert found.looked[0].endswith("the blocks of all 4 steps")
    assert any(line.startswith("compile: libtpu is not installed") for line in found.not_looked)
    assert found.not_looked[-1] == "wrong numbers: there is no reference"


def test_a_finding_has_operand_step_line_and_remedy() -> None:
    (fault,) = (one for one in sabotage.PLANTED if one.name == "picked_blocks: [5, 0, 0, 8]")
    found = examine(*fault.launch())
    one = found.findings[0]
    assert (one.kind, one.severity, one.operand) == ("out-of-bounds", "error", "x_ref")
    assert (one.launch, one.step, one.block) == ("kernel", (3,), (8, 0))
    assert "lambda i, index_ref: (index_ref[i], 0)" in one.line
    assert one.remedy.startswith("Check the result of its index map for this step")
    assert found.code == 1
    assert "✗ out-of-bounds · kernel · x_ref · step (3,)\n" in str(found)
    assert f"→ {one.remedy}" in str(found)
    # The blocks show it, and a run would stop at it: it is reported once.
    assert len(found.findings) == 1
    assert "uninitialised, hazard: what comes after the first error" in found.not_looked
    data = json.loads(found.to_json())
    assert (data["findings"][0]["kind"], data["findings"][0]["step"]) == ("out-of-bounds", [3])
    assert (data["code"], data["chips"], data["launches"][0]["grid"]) == (1, ["v5e"], [4])
    assert data["looked"]


def test_a_notebook_shows_what_print_gives() -> None:
    found = examine(lambda x: x + 1, X)
    assert PlainTextFormatter()(found) == str(found)


@pytest.mark.parametrize(
    ("fn", "args", "says"),
    [
        ("a name", (), "'str' object is not callable"),
        (lambda x: x + 1, (X,), "it contains no `pallas_call`"),
        (lambda x: x.nothing, (X,), "raises\nAttributeError"),
        (lambda x: launches.scale_rows()[0](x), (X,), "missing 1 required positional argument"),
    ],
)
def test_what_cannot_be_read_says_so(fn, args, says) -> None:
    found = examine(fn, *args)
    assert says in found.unread
    assert found.code == 2
    assert str(found).splitlines()[0].endswith("it could not be read")


def test_code_that_no_file_keeps_is_named_without_a_line() -> None:
    scope: dict = {}
    exec(compile("def typed(x):\n    return x.nothing", "<stdin>", "exec"), scope)
    assert examine(scope["typed"], X).unread.startswith("`typed` raises\nAttributeError")


@pytest.mark.skipif(jax.__version_info__ < (0, 10, 1), reason="there `pl.kernel` makes no launch")
def test_an_array_that_both_cores_write_is_a_race() -> None:
    mesh = cores(2)

    def body(x_ref, o_ref):
        pltpu.sync_copy(x_ref, o_ref)

    found = examine(lambda x: pl.kernel(body, X, mesh=mesh)(x), X)
    assert [one.kind for one in found.findings] == ["race"]
    assert "on core 0 and on core 1" in found.findings[0].says


def by_core(starts: int, rows: int, only: int | None = None):
    """Each of two cores doubles eight rows from `starts` times its number; or one core alone."""

    def double_rows(x_hbm, o_hbm, buffer):
        core = jax.lax.axis_index("core")

        @pl.when(core == (core if only is None else only))
        def _():
            own = pl.ds(starts * core, 8)
            pltpu.sync_copy(x_hbm.at[own], buffer)
            buffer[...] = 2 * buffer[...]
            pltpu.sync_copy(buffer, o_hbm.at[own])

    scratch = [pltpu.VMEM((8, 1, 128), f32)]
    array = S((rows, 1, 128), f32)
    kernel = pl.kernel(double_rows, array, mesh=cores(2), scratch_types=scratch)
    return (lambda x: kernel(x)), array


def by_pipeline(count: int):
    """A pipeline whose steps are shared by so many cores."""

    def double_blocks(x_hbm, o_hbm):
        def body(x_ref, o_ref):
            o_ref[...] = 2 * x_ref[...]

        (spec,) = launches.rows(1)
        pltpu.emit_pipeline(
            body, grid=(4,), in_specs=[spec], out_specs=[spec], core_axis_name="core",
            dimension_semantics=(pltpu.PARALLEL,),
        )(x_hbm, o_hbm)  # fmt: skip

    kernel = pl.kernel(double_blocks, X, mesh=cores(count))
    return (lambda x: kernel(x)), X


@pytest.mark.skipif(jax.__version_info__ < (0, 10, 1), reason="there `pl.kernel` makes no launch")
@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda: by_core(8, 16), []),
        (lambda: by_core(4, 12), ["race"]),
        (lambda: by_core(8, 16, only=0), ["uninitialised", "idle"]),
        (lambda: by_pipeline(1), []),
        (lambda: by_pipeline(2), []),
    ],
)
def test_cores_that_share_the_rows_are_followed(make, kinds) -> None:
    found = examine(*make(), chips=("v5p",))
    assert [one.kind for one in found.findings] == kinds
    assert (found.unread, found.unseen) == ("", ())


def test_an_unknown_chip_is_refused_and_so_is_none() -> None:
    for chips in (("v9",), ()):
        with pytest.raises(ValueError, match="chips are some of v4, v5e, v5p, v6e, 7x"):
            examine(lambda x: x, X, chips=chips)


def test_vmem_is_told_for_the_chips_where_it_is_too_little() -> None:
    wide = S((2048, 1536), f32)  # 4 blocks of 1024 x 1536 f32: 24 MiB

    (spec,) = launches.rows(1, 1024, 1536)
    copied = call(copy_kernel, wide, (2,), [spec], spec)
    (one,) = examine(copied, wide, chips=("v4", "v5e", "v6e", "7x")).findings
    assert (one.kind, one.chips) == ("vmem", ("v4", "v5e"))
    assert examine(copied, wide, chips=("v6e", "7x")).findings == ()


def over(grid):
    """Adds the blocks of a small array, again and again, over a grid of two axes."""

    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    read = pl.BlockSpec((8, 128), lambda i, j: (j % 4, 0))
    written = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
    return call(kernel, S((8 * grid[0], 128), f32), grid, [read], written)


@sample.in_turn
def test_what_is_too_large_is_simulated_in_part_or_not_and_it_says_so() -> None:
    examine(over((2, 2)), X)  # what JAX imports and compiles once
    start = time.process_time()  # of this process alone: the seconds of others do not count
    found = examine(over((1000, 1000)), X)
    assert time.process_time() - start < 5
    assert "uninitialised, hazard: in NumPy, the first 250 of 1,000,000 steps" in found.looked
    assert any("1,000,000 steps were too many" in line for line in found.not_looked)
    found = examine(launches.softmax_rows()[0], S((2**20, 128), f32))
    assert any("hazard: the arrays take 1,024 MiB" in line for line in found.not_looked)


def test_a_fault_in_the_last_of_many_steps_is_found_nevertheless() -> None:
    late = pl.BlockSpec((8, 128), lambda i: (i // 249, 0))
    fn = call(copy_kernel, S((8000, 128), f32), (1000,), [late], launches.rows(1)[0])
    one = examine(fn, X).findings[0]
    assert (one.kind, one.operand, one.step) == ("out-of-bounds", "x_ref", (996,))


def test_a_grid_of_a_billion_steps_is_a_sentence(capsys: pytest.CaptureFixture) -> None:
    fn = over((2**15, 2**15))
    assert "1,073,741,824 steps, and up to 4,000,000 can be listed" in examine(fn, X).unread
    for look in (puzzles.show, puzzles.receipt):
        look(fn, X)
        assert "a grid counts blocks, not elements" in capsys.readouterr().out


def test_what_is_steered_by_data_asks_for_it() -> None:
    fn, _, x = launches.picked_blocks()
    assert (
        "pass arrays (such as group_sizes) instead of ShapeDtypeStructs"
        in examine(fn, S((4,), i32), x).unread
    )


def test_an_output_that_the_program_drops_is_scratch() -> None:
    def kernel(x_ref, o_ref, spare_ref):
        spare_ref[...] = x_ref[...]
        o_ref[...] = spare_ref[...] * 2.0

    def both(x):
        row, whole = (pl.BlockSpec((8, 128), lambda i, at=at: (at * i, 0)) for at in (1, 0))
        params = pltpu.CompilerParams(dimension_semantics=("parallel",))
        fn = call(kernel, [x, x[:16]], (4,), [row], [row, whole], compiler_params=params)
        return fn(x)

    assert examine(lambda x: both(x)[0], X).findings == ()
    assert {one.kind for one in examine(both, X).findings} == {"never-written", "parallel"}


def test_seed_draws_the_data_of_shapes() -> None:
    assert (drawn(X, 0) != drawn(X, 1)).any()
    assert not drawn(S((8,), i32), 1).any()


def test_arguments_are_written_as_jax_prints_shapes_or_as_numbers_and_python() -> None:
    for text, shape, dtype in [
        ("f32[1024,512]", (1024, 512), f32), ("bf16[8]", (8,), jnp.bfloat16), ("i32[]", (), i32),
        ("u8[2, 3]", (2, 3), jnp.uint8), ("bool[4]", (4,), jnp.bool_),
        ("float8_e4m3fn[8,128]", (8, 128), jnp.float8_e4m3fn),
    ]:  # fmt: skip
        assert targets.argument(text) == S(shape, dtype)
    assert targets.argument("i32[3]=5,0,7").tolist() == [5, 0, 7]
    assert targets.argument("i32[2,2]=1").tolist() == [[1, 1], [1, 1]]
    assert targets.argument("(128, 256)") == (128, 256)
    assert targets.argument("None") is None
    for text, says in [("f32[8", "is not an argument"), ("f33[8]", "is not a type"),
                       ("i32[3]=1,2", "2 numbers for 3 elements")]:  # fmt: skip
        with pytest.raises(targets.TargetError, match=says):
            targets.argument(text)


@sample.in_turn
def test_the_pictures_of_the_page_are_what_it_says(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["draw.py", "--check"])
    assert runpy.run_path(str(ROOT / "docs" / "draw.py"))["main"]() == 0


def test_callables_of_every_kind_are_shown_and_counted(capsys: pytest.CaptureFixture) -> None:
    layer, x = launches.Layer(), S((256, 128), f32)
    batched = S((2, 256, 128), f32)
    for fn, arg in [
        (layer, x), (layer.forward, x), (jax.jit(layer), x), (jax.jit(layer.forward), x),
        (jax.vmap(layer), batched), (functools.partial(layer), x), (jax.checkpoint(layer), x),
    ]:  # fmt: skip
        for look in (puzzles.show, puzzles.receipt):
            look(fn, arg)
            assert "= 2 steps" in (said := capsys.readouterr().out) or "= 4 steps" in said


def test_where_copies_cannot_be_followed_the_numbers_still_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For example, if data decide which of them come next."""
    monkeypatch.setattr(simulator, "copied", lambda _: None)

    def kernel(x_ref, o_ref, buffer, semaphore):
        copy = pltpu.make_async_copy(x_ref, buffer, semaphore)
        buffer[...] = jnp.zeros_like(buffer)
        copy.start()
        o_ref[...] = buffer[...]
        copy.wait()

    x = S((8, 128), f32)
    early = from_hbm(kernel, pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA)
    (one,) = examine(early, x).findings
    assert (one.kind, one.operand) == ("hazard", "buffer")
    assert (
        "`o_ref[...] = buffer[...]` reads `buffer` before a wait for the copy into it, started in"
        in one.says
    )
