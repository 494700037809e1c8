"""The picture of copies by hand: in flight while the kernel computes, or unknown."""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from launched import HBM, call, from_hbm, mistaken

import puzzles
from puzzles import _draw, _show
from puzzles._draw.copies import edges, marked, rows, sentence
from puzzles._launch import timeline, trace_call
from puzzles._launch.timelines import MOMENTS
from puzzles._simulator import timelines_of_run

f32 = jnp.float32
S = jax.ShapeDtypeStruct


def data(fn, *args):
    (launch,) = puzzles.trace(fn, *args)
    return _draw.walk_data(launch)


def drawn(name, mistake=None):
    """The data of a walk through a puzzle's launch, and its text."""
    puzzle = puzzles.find(name)
    fn = puzzle.solution if mistake is None else mistaken(name, mistake)
    whole = data(fn, *puzzle.arguments(0))
    return whole["copies"], _draw.walk_text(whole)


LETTERS = {"waits": "w", "inward": ">", "outward": "<", "landed": ".", "work": "#", "fault": "!"}


def table(found):
    """The marks of each row as letters, a column a moment."""
    letters = {name: [" "] * len(found.moments) for name in ("kernel", *rows(found))}
    for name, spans in marked(found).items():
        for row, start, stop in spans:
            one = letters[["kernel", *rows(found)][row + 1]]
            one[start:stop] = LETTERS[name] * (stop - start)
    return {name: "".join(one).rstrip() for name, one in letters.items()}


def test_one_buffer_and_two_slots_look_plainly_different():
    serial, says = drawn("stream_sum")
    assert table(serial) == {"kernel": "w#" * 5, "rows_ref": ">#" * 5}
    assert "computes in 5 phases, and no copy is in flight in any of them" in says
    ahead, says = drawn("double_buffered_sum")
    assert table(ahead) == {
        "kernel": "w#" * 5,
        "slots_ref[0]": ">#>>>#>>>#",
        "slots_ref[1]": ">>>#>>>#",
    }
    assert "a copy is in flight in 4 of 5 phases" in says
    # A wait is short if its copy was in flight before.
    assert edges(serial, 10) == [10 * n for n in range(11)]
    assert np.diff(edges(ahead, 10))[::2].tolist() == [10, 4, 4, 4, 4]
    assert table(drawn("copy_rows")[0]) == {"kernel": "w#w", "rows_ref": ">#<"}


THREE = "gives all three operands to the pipeline, and b a third slot"


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("pipelined_add", None),
        ("pipelined_matmul", None),
        ("launch_pipeline", THREE),
        ("ragged_row_sums", None),
    ],
)
def test_the_copies_of_a_pipeline_are_read_too(name, mistake):
    found, _ = drawn(name, mistake)
    assert found.unknown == ""
    assert found.faults == ()
    buffers = {row.partition("[")[0] for row in rows(found)}
    assert all(one.startswith("buffer of ") for one in buffers)
    third = [row for row in rows(found) if row.endswith("[2]")]
    assert third == (["buffer of b_ref[2]"] if name == "launch_pipeline" else [])


FAULTS = {  # the slot, the sentence, the moment
    ("double_buffered_sum", "waits for the next copy"): (
        "slots_ref[0]", "The last wait was for a copy into `slots_ref[1]`", 1,
    ),
    ("fix_the_copy", "waits after the use"): (  # the learner's starter
        "in_ref[0]", "`out_ref[slot] = 2 * in_ref[slot]` reads `in_ref[0]`", 0,
    ),
    ("fix_the_copy", "does not wait for the last copies"): (
        "out_ref[0]", "ends before it has waited for a copy", 10,
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", FAULTS, ids=lambda which: which[1])
def test_what_is_touched_too_early_is_crossed_in_its_slot(which):
    slot, says, at = FAULTS[which]
    found, text = drawn(*which)
    assert found.faults[0].moment == at
    assert says in found.faults[0].says
    spans = marked(found)
    assert (rows(found).index(slot), at, at + 1) in spans["fault"]
    assert bool(spans["landed"]) == (which[1] == "waits for the next copy")
    # Only the first error is reported.
    assert f"✗ {found.faults[0].says}" in text
    assert text.count("✗") == 1
    assert ("Later errors are crossed out as well." in text) == (len(found.faults) > 1)


def test_a_wait_in_vain_ends_the_picture():
    found, _ = drawn("double_buffered_sum", "forgets the prologue")
    assert len(found.moments) == 1
    assert marked(found)["fault"] == [(-1, 0, 1)]


def test_a_sentence_says_what_happens_at_a_moment():
    found, _ = drawn("double_buffered_sum")
    assert sentence(found, 0) == (
        "The kernel waits: `fetch(i, slot).wait()`. In flight: `slots_ref[0]` ← `x_ref[0:64]`, "
        "`slots_ref[1]` ← `x_ref[64:128]`."
    )
    last = sentence(found, 9)
    assert last.startswith("The kernel computes on `slots_ref[0]`: `o_ref[...] += jnp.sum(")
    assert last.endswith("In flight: nothing.")


def scaled(count):
    """As many blocks come, one after another, as `count` says, which lies in SMEM."""

    def kernel(count_ref, x_ref, o_ref, buf, sem):
        def body(i, _):
            pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], buf, sem).start()
            pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], buf, sem).wait()
            o_ref[...] = buf[...] * 2

        jax.lax.fori_loop(0, count_ref[0], body, None)

    out, scratch = S((8, 128), f32), [pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA]
    fn = call(kernel, out, specs=[HBM], scratch=scratch, scalars=1)
    return data(fn, count, S((512 * 8, 128), f32))["copies"]


def test_where_data_decide_the_page_says_so_and_draws_nothing():
    found = scaled(S((1,), jnp.int32))
    assert found.moments == ()
    assert "Data decide the next copies" in found.unknown
    known = scaled(jnp.array([3], jnp.int32))
    assert len(known.moments) == 6
    assert known.unknown == ""


ALONG = (
    "copy_rows", "double_buffered_matmul", "launch_pipeline", "ragged_row_sums", "kernel_add",
    "paged_grouped_attention", "halves", "matmul_on_cores",
)  # fmt: skip


@pytest.mark.parametrize("name", ALONG)
def test_a_run_shows_what_is_read_without_one(name):
    puzzle = puzzles.find(name)
    traced = trace_call(puzzle.solution, *puzzle.arguments(0))
    (launch,) = traced.launches
    read, ran = timeline(launch), timelines_of_run(traced)[launch]
    assert table(ran) == table(read)
    assert ran.trips == read.trips
    assert ran.moments == read.moments
    assert (ran.faults, ran.unknown) == ((), "")


@pytest.mark.parametrize("mistake", ["waits after the use", "does not wait for the last copies"])
def test_a_fault_is_the_same_in_a_run_which_ends_there(mistake):
    fn = mistaken("fix_the_copy", mistake)
    traced = trace_call(fn, *puzzles.find("fix_the_copy").arguments(0))
    (launch,) = traced.launches
    read, ran = timeline(launch), timelines_of_run(traced)[launch]
    assert ran.faults[0].says == read.faults[0].says
    assert len(ran.moments) == ran.faults[0].moment + 1


def test_where_data_decide_show_runs_the_kernel(shown):
    puzzles.show(puzzles.find("gapless_attention").solution)
    ((text, page),) = shown
    assert "this is a run with lengths_ref = [37, 160, 16]." in text
    assert "in flight in 4 of 5 phases" in text
    assert page.count("this is a run with") == 1
    # Its first step reads three pages of sequence 0 and four of sequence 1.
    marked = re.findall(r'<i class="pz-used"[^>]*>(\d+)</i>', page.partition("table_ref")[2])
    assert marked == ["4", "5", "7", "6", "2", "3", "15"]
    (walk,) = _show._walks(
        *_show._looked_at(puzzles.find("gapless_attention").solution, (), "show"), False
    )
    ran = walk["copies"]
    assert table(ran)["kernel"] == "w#" * 5
    # One round waits idly, as the puzzle says: the first.
    assert np.diff(edges(ran, 10))[::2].tolist() == [10, 4, 4, 4, 4]
    # In flight are more copies than a sentence can name.
    assert sentence(ran, 0).endswith(" and 10 more.")


def test_where_nothing_can_run_the_page_says_why(shown):
    args = puzzles.find("gapless_attention").arguments(0)
    forms = jax.tree.map(lambda x: S(x.shape, x.dtype), args)
    puzzles.show(puzzles.find("gapless_attention").solution, *forms)
    ((text, _),) = shown
    assert "this is a run" not in text
    assert "known only when the kernel runs" in text


def test_a_long_kernel_is_shown_from_its_beginning():
    found = scaled(jnp.array([500], jnp.int32))
    assert len(found.moments) == MOMENTS
    assert f"Only the first {MOMENTS} phases are shown." in found.unknown


def test_a_slot_that_data_choose_is_not_guessed():
    def kernel(at_ref, x_ref, o_ref, buf, sem):
        copy = pltpu.make_async_copy(x_ref, buf.at[at_ref[0, 0].astype(jnp.int32)], sem)
        copy.start()
        copy.wait()
        o_ref[...] = buf[0] + buf[1]

    slots = pltpu.VMEM((2, 8, 128), f32), pltpu.SemaphoreType.DMA
    run = from_hbm(kernel, *slots, specs=[pl.BlockSpec(), HBM])
    found = data(run, S((8, 128), f32), S((8, 128), f32))["copies"]
    assert rows(found) == ["buf[?]"]
    assert found.faults == ()


@pytest.mark.parametrize("name", ["double_buffered_matmul", "launch_pipeline"])
def test_the_page_carries_a_sentence_for_each_moment_and_no_small_text(name):
    puzzle = puzzles.find(name)
    whole = data(puzzle.solution, *puzzle.arguments(0))
    page = _draw.walk_page([whole])
    book = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    assert (book["name"], book["pages"]) == ("moment", len(whole["copies"].moments))
    said = next(texts for texts, *_ in book["kept"] if texts and "In flight" in texts[0])
    assert all(one.startswith("The kernel ") for one in said)
    assert len(said) > 5
    film = page.split('class="pz-film"')[1].split('class="pz-legend"')[0]
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', film)) >= 11
