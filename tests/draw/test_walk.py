"""The grid walk: true to the receipt, whole on every page, never raising."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import launched
import launches
import numpy as np
import pytest
import sample
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import puzzles
from puzzles import _draw, _show
from puzzles._draw.data import STEPS
from puzzles._draw.panel import views
from puzzles._puzzle import starter_function
from puzzles._receipt import amount
from puzzles._rules import sentence

f32 = jnp.float32
S = jax.ShapeDtypeStruct
X = S((32, 128), f32)
PUZZLES = [p.name for ladder in puzzles.ladders() for p in puzzles.ladder(ladder)]


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1


def call(grid, spec, out_spec, x=X, out=None, kernel=copy, **kw):
    """A launch over blocks of a single input."""

    launch = pl.pallas_call(
        kernel, grid=grid, in_specs=[spec], out_specs=out_spec, out_shape=out or x, **kw
    )
    return launch, (x,)


def rows(index: Callable) -> pl.BlockSpec:
    return pl.BlockSpec((8, 128), index)


def experts(count=5):
    """Scalar prefetch that picks an expert, some of them never; E of the weights' blocks."""
    ids = jnp.asarray([0, 2, 2, 3, 3, 4], jnp.int32)

    def kernel(ids_ref, x_ref, w_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=f32)

    specs = [
        pl.BlockSpec((128, 128), lambda i, ids: (i, 0)),
        pl.BlockSpec((None, 128, 256), lambda i, ids: (ids[i], 0, 0)),
    ]
    written = pl.BlockSpec((128, 256), lambda i, ids: (i, 0))
    launch = launched.call(kernel, S((768, 256), f32), (6,), specs, written, scalars=1)
    return launch, (ids, S((768, 128), f32), S((count, 128, 256), f32))


def ragged():
    spec = pl.BlockSpec((64, 128), lambda i, j: (i, j))
    return call((2, 3), spec, spec, S((100, 300), f32))


LAUNCHES = {
    "matmul": lambda: (launches.multiply, (S((256, 384), f32), S((384, 256), f32))),
    "experts": experts,
    "causal": lambda: (lambda fn, *args: (fn, args))(*launches.masked_blocks()),
    "ragged": ragged,
}


def data_of(fn, args) -> list[dict[str, Any]]:
    """What `show` draws of a function's launches."""
    return [_draw.walk_data(launch) for launch in _show._looked_at(fn, args, "show")[0]]


def draw(fn, args) -> tuple[str, dict[str, Any]]:
    """The page of one launch, and its data."""
    (data,) = data_of(fn, args)
    return _draw.walk_page([data]), data


def turned(page: str) -> Iterator[list[str]]:
    """Each kept change of a page's books at every step, put together as the script does it."""
    for one in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL):
        for texts, which, *ends in json.loads(one)["kept"]:
            found = [texts[n] if texts else f"{n:,}" for n in unpacked(which)]
            yield [t[:n] for t, n in zip(found, unpacked(ends[0]), strict=True)] if ends else found


def unpacked(text: str) -> list[int]:
    """Run lengths of differences, read without the package: "0 1*2" -> [0, 1, 2]."""
    found, value = [], 0
    for token in text.split():
        step, _, times = token.partition("*")
        for _ in range(int(times or 1)):
            value += int(step)
            found.append(value)
    return found


def test_a_body_does_dots_only_if_it_has_some(shown):
    puzzles.show(puzzles.find("add_ten").solution)
    puzzles.show(puzzles.find("tiled_matmul").solution)
    (_, adds), (_, multiplies) = shown
    assert (">computes<" in adds, ">1 dot<" in adds) == (True, False)
    assert (">computes<" in multiplies, ">1 dot<" in multiplies) == (False, True)


@pytest.mark.graduate
@pytest.mark.parametrize("name", sample.share(PUZZLES, 6))
def test_a_walk_agrees_with_the_receipt(name, shown):
    puzzle = puzzles.find(name)
    args = puzzle.arguments(0)
    if puzzle.launches is not None:
        launches = puzzle.launches(puzzle.solution(*args), *args)
    elif puzzle.kernel:
        launches = _show._looked_at(puzzle.solution, (), "show")[0]
    else:
        pytest.skip("no launch")
    puzzles.show(puzzle.solution)
    ((text, page),) = shown
    drawn = list(map(_draw.walk_data, launches))
    walk = _draw.walk_page(drawn)
    if not any(one["copies"] and one["copies"].unknown for one in drawn):  # else from a run
        assert page.endswith(walk) if puzzle.axes else page == walk  # lanes come first
    assert len(page.encode()) < 200_000
    for data, launch in zip(drawn, launches, strict=True):
        assert data["faults"] == []
        assert (data["kernel"], data["steps"]) == (launch.name, launch.steps)
        read = written = 0
        named = {o["name"]: o for o in data["operands"]}
        for operand in launch.scalars + launch.inputs + launch.outputs:
            mine = named[operand.name]
            assert (mine["transfers"], mine["bytes"]) == (operand.transfers, operand.hbm_bytes)
            if "count" in mine and data["kept"] == data["steps"]:
                assert mine["count"][-1] == mine["transfers"]
                assert np.array_equal(mine["blocks"], operand.blocks)
            read += 0 if operand.output else mine["bytes"]
            written += mine["bytes"] if operand.output else 0
        moved = launch.hbm_bytes_read, launch.hbm_bytes_written
        assert read + written == sum(moved)
        # a ring, and a kernel with an aliased output, also read their output
        assert (read, written) == moved or puzzle.axes or launch.aliases
        sure = data["moved"].replace("at most ", "")
        assert sure == f"read {amount(moved[0])}, written {amount(moved[1])}"
        dots = sum(dot.executed for dot in launch.dots)
        busy = int((dots > 0).sum() if launch.dots else launch.busy.sum())
        assert data["busy"] == (busy or None)
        assert f"{launch.name}: " in text


def opened(page: str) -> str:
    """A page without its scripts and without the elements that they look up."""
    return re.sub(r" data-s=\"[^\"]*\"|<script.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("name", LAUNCHES)
def test_turned_to_a_step_a_walk_is_what_it_is_when_it_opens_there(name):
    """The effect of the script on a page: each change replaces its number."""
    (data,) = data_of(*LAUNCHES[name]())
    page = _draw.walk_page([data])
    kept = list(turned(page))
    assert len(kept) > 5
    assert {len(one) for one in kept} == {data["kept"]}
    for k in range(data["kept"]):

        def attributes(found: re.Match, k: int = k) -> str:
            tag = found[0]
            for what, number in re.findall(r"([a-z]+)(\d+)", found[1]):
                if what != "html":
                    tag = re.sub(rf' {what}="[^"]*"', f' {what}="{kept[int(number)][k]}"', tag)
            return tag

        def inside(found: re.Match, k: int = k) -> str:
            return f"{found[1]}{kept[int(found[3])][k]}</{found[2]}>"

        mine = re.sub(r'<[^>]* data-s="([^"]*)"[^>]*>', attributes, page)
        mine = re.sub(r'(<(\w+)[^>]* data-s="html(\d+)">).*?</\2>', inside, mine)
        mine = opened(mine).replace("--k:0", f"--k:{k}")
        assert mine == opened(_draw.walk_page([data | {"open": k}]))


def test_a_sum_fills_as_it_is_added_to():
    (data,) = data_of(launches.multiply, (S((256, 384), f32), S((384, 256), f32)))
    filled = {o["name"]: o["filled"] for o in data["operands"] if "filled" in o}
    assert filled == {"acc_ref": [33, 67, 100] * 4}
    page = _draw.walk_page([data])
    (path,) = Page(page).having("pz-m-summed")
    number = int(re.fullmatch(r"d(\d+)", path["data-s"])[1])
    heights = [float(re.search(r"v([\d.]+)", d)[1]) for d in list(turned(page))[number][:3]]
    assert heights == pytest.approx([heights[2] / 3, heights[2] * 2 / 3, heights[2]], abs=0.5)
    stored, _ = draw(*ragged())  # each of its blocks is written once
    assert not Page(stored).having("pz-m-summed")


def test_what_moves_together_is_one_row():
    def kernel(x_ref, y_ref, w_ref, o_ref, slot_ref, sem):
        o_ref[...] = x_ref[...] + y_ref[...] + w_ref[...]

    by_row, whole = rows(lambda i: (i, 0)), pl.BlockSpec((8, 128), lambda i: (0, 0))

    launch = pl.pallas_call(
        kernel, grid=(4,), in_specs=[by_row, by_row, whole], out_specs=by_row, out_shape=X,
        scratch_shapes=[pltpu.VMEM((8, 128), f32), pltpu.SemaphoreType.DMA],
    )  # fmt: skip
    page, _ = draw(launch, (X, X, S((8, 128), f32)))
    text = Page(page).text
    assert text.count("x_ref, y_ref") == 1  # in the strip
    assert len(Page(page).having("pz-now")) == 4


class Page(html.parser.HTMLParser):
    """Elements of a page; complains about tags that do not match."""

    VOID = ("input", "br", "path", "rect")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def having(self, name: str) -> list[dict[str, str | None]]:
        return [a for _, a in self.found if name in (a.get("class") or "").split()]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def test_names_are_escaped():
    fn, args = call((4,), rows(lambda i: (i, 0)), rows(lambda i: (i, 0)))
    (launch,) = _show._looked_at(fn, args, "show")[0]
    launch = dataclasses.replace(launch, name="a</script><b>&")  # some versions mend names
    page = _draw.walk_page([_draw.walk_data(launch)])
    Page(page)
    assert page.count("</script>") == 2
    assert "<b>&" not in page
    assert "a&lt;/script&gt;&lt;b&gt;&amp;" in page


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_page_is_whole_can_be_read_loads_nothing_and_begins_without_a_script(name):
    page, data = draw(*LAUNCHES[name]())
    whole = Page(page)
    for attribute in ("src", "href", "id"):
        assert [a for _, a in whole.found if attribute in a] == [], attribute
    for word in ("http", "@import", "url(", "import(", "fetch(", "XMLHttp", "eval("):
        assert word not in page, word
    sizes = [float(a["font-size"]) for tag, a in whole.found if tag == "text"]
    rules = [float(size) for size in re.findall(r"font(?:-size)?:([\d.]+)px", page)]
    assert min(*sizes, *rules) >= 11
    first = Page(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    current = first.having("pz-now")
    assert len(current) == sum("count" in o for o in data["operands"])
    assert all(re.match(r"M[\d.]+ [\d.]+h", path["d"] or "") for path in current)
    assert not {"button", "input"} & {tag for tag, _ in first.found}
    for words in ("step 1 of", "In all: read ", *(o["name"] for o in data["operands"])):
        assert words in first.text


def revisit():
    def kernel(x_ref, o_ref):
        o_ref[...] += x_ref[...].sum(1, keepdims=True)

    spec = pl.BlockSpec((32, 128), lambda k, i: (i, k))
    out = pl.BlockSpec((32, 1), lambda k, i: (i, 0))
    return call((3, 4), spec, out, S((128, 384), f32), S((128, 1), f32), kernel)


FAULTS = {
    "out of bounds": (
        lambda: call((4,), rows(lambda i: (i + 1, 0)), rows(lambda i: (i, 0))),
        ("x_ref", 3, "block (4, 0) is out of bounds"),
    ),
    "revisited": (revisit, ("o_ref", 4, "visited again at grid step (1, 0)")),
    "unwritten": (
        lambda: call((3,), rows(lambda i: (i, 0)), rows(lambda i: (i, 0))),
        ("o_ref", None, "no grid step visits"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_drawn_where_it_happens(name, shown):
    make, (operand, step, says) = FAULTS[name]
    fn, args = make()
    puzzles.show(fn, *args)
    ((text, page),) = shown
    (data,) = data_of(fn, args)
    parsed = Page(page)
    fault = data["faults"][0]
    assert (fault["operand"], fault["at"]) == (operand, step)
    assert says in fault["says"]
    assert f"✗ {fault['says']}" in text
    assert f"✗ {fault['says'].replace('`', '')}" in parsed.text
    assert f"✗ {operand}" in parsed.text
    assert parsed.having("pz-m-fault"), "nothing is drawn as a fault"
    assert data["open"] == (step or 0)
    if name == "out of bounds":  # drawn beside the array
        view, (outside, _) = views(data)[0], parsed.having("pz-now")
        y = float(re.match(r"M[\d.]+ ([\d.]+)h", outside["d"]).group(1))
        assert y > view["y"][0] + view["h"]
        assert "outside the array" in page


def test_a_fault_at_a_step_of_a_long_walk_is_among_the_steps_shown():
    n = 10_000
    spec = rows(lambda i: (jnp.where(i == 7_777, n, i), 0))
    fn, args = call((n,), spec, rows(lambda i: (i // 10, 0)), S((8 * n, 128), f32))
    page, data = draw(fn, args)
    assert data["at"][data["open"]] == 7_777
    assert data["steps"] == n
    assert data["kept"] == STEPS
    assert f"Of {n:,} steps {STEPS} are shown, from step 7,538 on." in Page(page).text
    assert len(page.encode()) < 200_000
    assert [len(mine["moves"]) for mine in data["operands"]] == [STEPS] * 2


def test_prefetched_numbers_are_listed_and_untouched_blocks_are_hatched():
    page, data = draw(*experts())
    assert data["operands"][0]["numbers"] == [0, 2, 2, 3, 3, 4]
    parsed = Page(page)
    assert "022334" in parsed.text.replace(" ", "")
    weights = data["operands"][2]
    assert weights["never"] == [1]
    assert [bool(a["d"]) for a in parsed.having("pz-never")] == [True]
    assert "no step ever touches it" in parsed.text
    assert data["operands"][0]["used"] == [[0, 1, 2, 3, 4, 5]]
    assert len(parsed.having("pz-used")) == 1


def test_all_that_a_step_reads_is_marked_whoever_reads_it():
    """An index map at every step; the kernel at the steps that run."""
    puzzle = puzzles.find("grouped_matmul")
    _, data = draw(puzzle.solution, puzzle.arguments(0))
    lists = {o["name"]: o for o in data["operands"] if o["role"] == "scalar"}
    at = {name: [one[3] for one in o["used"]] for name, o in lists.items()}
    assert at["group_ids_ref"] == [1, 1]
    assert at["tile_ids_ref"] == [1, 1, 0]
    assert at["offsets_ref"] == [2, 3]


def test_few_slices_lie_side_by_side_and_of_many_the_current_one_is_shown():
    _, data = draw(*experts())
    view = views(data)[2]
    assert (view["slices"], view["one"], len(view["x"])) == (5, False, 5)
    many, data = draw(*experts(count=64))
    view = views(data)[2]
    assert (view["slices"], view["one"], len(view["x"])) == (64, True, 1)
    assert "one of 64 slices is drawn" in Page(many).text


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (launches.one_copy, ["x_ref: (64, 128) float32; stays in HBM: the kernel makes 1 copy from "
                             "it, 32 KiB", "1 copy to it, 32 KiB", "read 32 KiB, written 32 KiB"]),
        (launches.two_buffers, ["4 copies from it, 16 KiB", "read 16 KiB, written 16 KiB"]),
        (launches.filled_elsewhere, ["nothing fetches it, and the kernel copies nothing"]),
    ],
)  # fmt: skip
def test_what_a_kernel_copies_by_hand_is_in_the_totals(make, says, shown):
    puzzles.show(*make())
    ((text, page),) = shown
    for words in says:
        assert words in text
        assert words in Page(page).text


def test_a_walk_whose_branches_depend_on_data_says_at_most(shown):
    def kernel(x_ref, o_ref):
        @pl.when(x_ref[0, 0] > 0)
        def _():
            o_ref[...] = x_ref[...] * 2

    by_row = rows(lambda i: (i, 0))
    fn, args = call((4,), by_row, by_row, kernel=kernel)
    puzzles.show(fn, *args)
    ((text, page),) = shown
    assert "The body computes in at most 4 of 4 steps." in text
    assert "The body computes in at most 4 of 4 steps." in page


def test_several_launches_are_stacked_each_with_data_of_its_own(shown):
    one, (x,) = call((4,), rows(lambda i: (i, 0)), rows(lambda i: (i, 0)), name="one")
    two, _ = call((2, 2), rows(lambda i, j: (2 * i + j, 0)), rows(lambda i, j: (2 * i + j, 0)))
    puzzles.show(lambda x: two(one(x)), x)
    ((text, page),) = shown
    assert "one grid (4,) = 4 steps" in Page(page).text
    assert "copy grid (2, 2) = 4 steps" in Page(page).text
    assert len(Page(page).having("pz-walk")) == 2
    assert text.count("HBM: read") == 2


@pytest.mark.parametrize("grid", [(), (1,), (0,)])
def test_the_smallest_grids_are_drawn(grid, shown):
    fn, args = call(grid, rows(lambda *i: (0, 0)), rows(lambda *i: (0, 0)), S((8, 128), f32))
    puzzles.show(fn, *args)
    ((text, page),) = shown
    Page(page)
    assert "copy: " in text
    assert ("no step runs" in page) == (grid == (0,))


SENTENCES: dict[str, tuple[tuple, list[str]]] = {
    "an int": ((3,), ["got an int", "(add_ten)"]),
    "a type": ((dict,), ["got a type"]),
    "a kernel": (
        (puzzles.find("tiled_matmul").solution.__globals__["tiled_matmul_kernel"],),
        ["is a kernel", "tiled_matmul"],
    ),
    "no arguments": ((lambda x: x,), ["a function that is no puzzle, pass its", "(fn, x, ...)"]),
    "a method": ((launches.Layer().forward,), ["pass its arguments"]),
    "no pallas_call": ((lambda x: x + 1, 3), ["no `pallas_call`"]),
    "an exception": ((lambda x: x[1 // 0], X), ["ZeroDivisionError", "1 // 0"]),
    "a starter": (
        (puzzles._puzzle.starter_function(puzzles.find("launch_matmul")),),
        ["`launch_matmul` still holds a `...`"],
    ),
    "arguments missing": (
        (puzzles.find("tiled_matmul").solution, S((8, 8), f32)),
        ["missing 1 required positional argument: 'b'"],
    ),
    "abstract data": (
        (experts()[0], S((6,), jnp.int32), *experts()[1][1:]),
        ["reads ids_ref", "shape"],
    ),
}


@pytest.mark.parametrize("look", [puzzles.show, puzzles.receipt])
@pytest.mark.parametrize("name", SENTENCES)
def test_what_cannot_be_seen_gets_a_sentence(name, look, capsys):
    args, words = SENTENCES[name]
    assert look(*args) is None
    text = capsys.readouterr().out
    assert "Traceback" not in text
    for word in words:
        assert word in text


def test_a_bug_of_the_drawing_is_owned(monkeypatch, capsys):
    monkeypatch.setattr(_draw, "walk_data", lambda *_: 1 / 0)
    puzzles.show(puzzles.find("add_ten").solution)
    assert "our bug, not yours" in capsys.readouterr().out


def test_a_bug_hunt_marks_the_step_and_folds_the_remedy(shown):
    """Of the starter; a wrong answer to another puzzle gets its words at once."""
    puzzles.show(starter_function(puzzles.find("fix_the_grid")))
    puzzles.show(starter_function(puzzles.find("fix_the_copy")))
    puzzles.show(starter_function(puzzles.find("fix_the_ring")))
    puzzles.show(launched.mistaken("double_buffered_sum", "forgets the prologue"))
    *hunts, ordinary = (page for _, page in shown)
    fold = sentence("the_remedy")
    for page, says in zip(hunts, ("visited again", "before a wait", "may overwrite"), strict=True):
        before, _, after = page.partition(fold)
        assert says not in re.sub(r"<script.*?</script>", "", before, flags=re.DOTALL)
        assert says in after.partition("</details>")[0]
    assert fold not in ordinary
    assert '<path class="pz-s-fault" d="M' in hunts[0]
    assert 'pz-s-fault" d' not in ordinary


def test_a_semaphore_has_no_picture_and_a_kernel_without_blocks_no_strip(shown):
    puzzles.show(puzzles.find("right_permute").solution)
    ((text, page),) = shown
    body = page.partition("</style>")[2]
    assert "send_sem: () dma_sem; semaphore" in text
    assert "not drawn: send_sem, recv_sem" in body
    for gone in ("pz-scratch", "pz-strip", "pz-moment", "pz-step", "Copies by hand"):
        assert gone not in re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL), gone
    # The output stands on the right of the body, though it stays in HBM.
    assert body.index("x_ref") < body.index("<b>body</b>") < body.index("<b>o_ref</b>")


def test_a_strip_of_one_step_has_no_slider(shown):
    puzzles.show(puzzles.find("add_ten").solution)
    puzzles.show(puzzles.find("vector_add").solution)
    one, many = (page.partition("</style>")[2].partition("<script>")[0] for _, page in shown)
    for part in ("<div>step</div>", "pz-slot", "pz-cursor"):
        assert part not in one
        assert part in many
    assert "pz-strip" in one


def test_scratch_keeps_its_form_next_to_a_scalar(shown):
    puzzles.show(puzzles.find("copy_rows").solution)
    wide, high = map(
        float, re.search(r'pz-scratch" width="(\S+)" height="(\S+)"', shown[0][1]).groups()
    )
    assert (wide - 2) / (high - 2) == pytest.approx(384 / 64, rel=0.02)


def test_a_starter_whose_launch_is_complete_can_be_seen(shown):
    puzzles.show(puzzles._puzzle.starter_function(puzzles.find("tiled_matmul")))
    ((text, _),) = shown
    assert text.endswith("The body does no floating-point arithmetic.")
