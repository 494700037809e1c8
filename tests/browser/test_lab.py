"""The notebook in a real browser: JupyterLab, driven as a learner would drive it.

`make test-browser` runs this; it needs Chromium. Screenshots stay in tests/browser/screenshots.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

import puzzles
from puzzles import _check, _draw, _show
from puzzles._check import verdict_page
from puzzles._program import over_mesh
from puzzles._puzzle import starter_function
from puzzles._receipt import receipt_html, receipt_text
from puzzles.collectives import compare_gathers

ROOT = Path(__file__).parents[2]
SHOTS = Path(__file__).parent / "screenshots"
SLOW = 120_000  # milliseconds: a busy machine starts a kernel late

# A new profile calls home, and is refused, many times a second unless told not to.
CHROMIUM = {
    "executable_path": os.environ.get("CHROMIUM", shutil.which("chromium") or "chromium"),
    "args": [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    ],
}

SETTINGS = {
    "notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
    "apputils-extension/notification.jupyterlab-settings": (
        '{"fetchNews": "false", "checkForUpdates": false}'
    ),
}

WRONG = """def add_ten_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1


def add_ten(x):
    return pl.pallas_call(
        add_ten_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=INTERPRET,
    )(x)


check(add_ten)"""
RIGHT = WRONG.replace("+ 1\n", "+ 10\n")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A JupyterLab on a copy of the notebook: its address and its folder."""
    folder = tmp_path_factory.mktemp("my")
    shutil.copy(ROOT / "basics.ipynb", folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "JAX_PLATFORMS": "cpu",
        "JUPYTER_CONFIG_DIR": str(folder / ".config"),
        "IPYTHONDIR": str(folder / ".ipython"),
    }
    # Every cell stays in the page, and nobody asks about news.
    for name, text in SETTINGS.items():
        path = folder / ".config" / "lab" / "user-settings" / "@jupyterlab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", "--ServerApp.token=", "--ServerApp.password="]
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=os.environ | settings, stdout=log, stderr=log
        )
        address = f"http://127.0.0.1:{port}"
        try:
            _wait_for(f"{address}/api", server)
            yield address, folder
        finally:
            server.terminate()
            server.wait(30)


def _wait_for(url: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).read()
            return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError("JupyterLab did not start")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        one = browser.new_page(viewport={"width": 1300, "height": 1000})
        one.set_default_timeout(SLOW)
        yield one
        browser.close()


def _open(page: Page, address: str) -> None:
    page.goto(f"{address}/lab/tree/basics.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=SLOW)


def _run_all(page: Page) -> None:
    """All cells, by keys; again if a page that is still busy did not take them."""
    prompt = page.locator(".jp-CodeCell .jp-InputPrompt").first
    for _ in range(5):
        page.locator(".jp-Notebook .jp-MarkdownCell").first.click()
        page.keyboard.press("Escape")
        page.keyboard.press("Control+a")
        page.keyboard.press("Control+Enter")
        try:
            expect(prompt).not_to_have_text("[ ]:", timeout=8_000)
        except AssertionError:
            continue
        return
    raise AssertionError("JupyterLab did not run the cells")


def _cell(page: Page, text: str) -> Locator:
    """The code cell whose source holds `text`, scrolled to."""
    cell = page.locator(".jp-CodeCell", has_text=text).first
    cell.scroll_into_view_if_needed()
    return cell


def _rewrite(page: Page, cell: Locator, source: str) -> None:
    """Replace the source of a cell and run it."""
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)
    page.keyboard.press("Control+Enter")


def _shot(page: Page, name: str) -> None:
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")


def _verdict(cell: Locator) -> Locator:
    return cell.locator(".jp-OutputArea-output").last


def test_a_learner_runs_all_fails_passes_walks_and_reloads(
    lab: tuple[str, Path], page: Page
) -> None:
    address, folder = lab
    _open(page, address)
    _run_all(page)
    last = page.locator(".jp-CodeCell", has_text="progress()").last
    last.scroll_into_view_if_needed()
    expect(last.locator(".jp-OutputArea-output")).to_contain_text("0 of 17 solved", timeout=SLOW)
    assert (
        page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count()
        == 0
    )
    _shot(page, "1-run-all")

    cell = _cell(page, "def add_ten_kernel")
    expect(_verdict(cell)).to_contain_text("not solved yet")
    _rewrite(page, cell, WRONG)
    cell = _cell(page, "def add_ten_kernel")
    expect(_verdict(cell)).to_contain_text("adds one instead of ten", timeout=SLOW)
    _shot(page, "2-wrong")

    _rewrite(page, cell, RIGHT)
    cell = _cell(page, "def add_ten_kernel")
    expect(_verdict(cell)).to_contain_text("solved", timeout=SLOW)
    expect(_verdict(cell)).to_contain_text("1/17")
    _shot(page, "3-right")

    walk = _cell(page, "show(vector_add)").locator(".pz-walk")
    expect(walk.locator(".pz-step")).to_contain_text("step 1 of")
    slider = walk.locator("input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(walk.locator(".pz-step")).to_contain_text("step 3 of")
    _shot(page, "4-walk")

    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    _saved(folder, "adds one instead", "solved")
    _open(page, address)
    cell = _cell(page, "def add_ten_kernel")
    expect(_verdict(cell)).to_contain_text("1/17")
    walk = _cell(page, "show(vector_add)").locator(".pz-walk")
    walk.scroll_into_view_if_needed()
    slider = walk.locator("input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(walk.locator(".pz-step")).to_contain_text("step 2 of")
    _shot(page, "5-reloaded")


def _saved(folder: Path, gone: str, there: str) -> None:
    """Wait until the file on disk holds `there` and not `gone`."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        text = (folder / "basics.ipynb").read_text()
        if there in text and gone not in text:
            return
        time.sleep(0.3)
    raise AssertionError("the notebook was not saved")


# The light and the dark theme of a notebook, and a phone.
VIEWS = [("#ffffff", "#1f2328", 1000), ("#111111", "#e6edf3", 1000), ("#ffffff", "#1f2328", 390)]


@pytest.mark.parametrize(("paper", "ink", "width"), VIEWS)
def test_copies_are_walked_by_keys_in_either_theme_and_on_a_phone(
    paper: str, ink: str, width: int, page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "copies.html"
    body = _walk("double_buffered_matmul")
    file.write_text(f"<meta charset=utf-8><body style='background:{paper};color:{ink}'>{body}")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(file.as_uri())
    copies = page.locator(".pz-copies")
    slider, moment = copies.locator("input[type=range]"), copies.locator(".pz-moment b")
    expect(moment).to_have_text("1")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(moment).to_have_text("4")
    says = copies.locator(".pz-now-says")
    expect(says).to_contain_text("The kernel computes on a_slots[1], b_slots[1]")
    expect(says).to_contain_text("In flight: a_slots[0] ← a_ref[0:128, 256:384]")
    page.keyboard.press("End")
    expect(moment).to_have_text("12")
    assert page.evaluate(_SEEN), "the cursor is out of sight"
    # The walk through the grid has keys of its own.
    expect(page.locator(".pz-step b")).to_have_text("1")
    page.locator(".pz-time input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pz-step b")).to_have_text("2")
    expect(moment).to_have_text("12")
    copies.locator(".pz-frames").click(position={"x": 5, "y": 60})
    expect(moment).not_to_have_text("12")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_SMALLEST) >= 11
    _shot(page, f"6-copies-{ink[1:]}-{width}")


# Whether the cursor lies within the part of the picture that has been scrolled to.
_SEEN = """() => {
  const box = name => document.querySelector('.pz-' + name).getBoundingClientRect();
  const here = box('here'), roll = box('roll');
  return here.left >= roll.left - 1 && here.right <= roll.right + 1;
}"""
# Pixels of the smallest text of a page.
_SMALLEST = """() => Math.min(...[...document.querySelectorAll('.pz-walk *')]
  .filter(e => !['SCRIPT', 'STYLE'].includes(e.tagName)
    && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(e => parseFloat(getComputedStyle(e).fontSize)))"""


def _verdict_on(puzzle: str, answer: str) -> str:
    """The message about a solution of another puzzle."""
    return verdict_page(puzzles.judge(puzzles.find(puzzle), puzzles.find(answer).solution))


def _receipts() -> str:
    """Of one launch, and of several."""
    pair = map(puzzles.find, ("tiled_matmul", "matmul_gradients"))
    launches = (puzzles.trace(puzzle.solution, *puzzle.arguments(0)) for puzzle in pair)
    return "".join(receipt_html(receipt_text(each, limits=True)) for each in launches)


def _walk(name: str, solved: bool = True) -> str:
    """The page of a puzzle's launch, in the reference or as the learner begins with it."""
    puzzle = puzzles.find(name)
    fn = puzzle.solution if solved else starter_function(puzzle)
    (launch,) = puzzles.trace(fn, *puzzle.arguments(0))
    return _draw.walk_page([_draw.walk_data(launch)])


def _tiles() -> tuple[Any, list[int], jax.ShapeDtypeStruct]:
    """A matmul, sides of its blocks, and the form of its factors."""
    square = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    return puzzles.find("matmul_bf16").solution, [128, 256, 512, 1024], square


def _sweep_of_tiles() -> str:
    matmul, sides, square = _tiles()
    choices = [dict(bm=n, bk=n, bn=n) for n in sides]
    return _displayed(lambda: puzzles.sweep(matmul, choices, square, square))


def _roofline() -> str:
    matmul, sides, square = _tiles()
    sizes = dict(bm=sides, bk=sides, bn=sides)
    return _displayed(lambda: puzzles.roofline(matmul, sizes, square, square))


def _said(call: Callable[[], None]) -> str:
    """The page that one of the functions for learners displays."""
    pages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_check, "display", lambda text, page: pages.append(page))
        call()
    return "".join(pages)


def _examined() -> str:
    """What `examine` shows of a kernel with two faults."""
    shape = jax.ShapeDtypeStruct((384, 384), jnp.float32)
    kernels = runpy.run_path(str(ROOT / "docs" / "kernels.py"))
    return puzzles.examine(kernels["matmul"], shape, shape)._repr_html_()


def _displayed(call: Callable[[], None]) -> str:
    """The page that one of the functions that draw displays."""
    pages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_show, "display", lambda text, page: pages.append(page))
        call()
    (page,) = pages
    return page


def _drawn(fn: Any, *args: Any) -> str:
    return _displayed(lambda: puzzles.show(fn, *args))


def _lanes(fn: Any) -> str:
    """Four devices over time, and, of a wrong ring, the copy that overwrites a slot."""
    return _drawn(over_mesh(fn, {"x": 4}), jnp.ones((4, 16, 128), jnp.float32))


SHOWN = {
    "examination": _examined,
    "solution": lambda: _said(lambda: puzzles.solution("tiled_matmul")),
    "hint": lambda: _said(lambda: puzzles.hint("row_sum")),
    "progress": lambda: _said(puzzles.progress),
    "matmul": lambda: _walk("tiled_matmul"),
    "map": lambda: _walk("causal_attention"),
    "vectors": lambda: _walk("vector_add"),
    "pass": lambda: _verdict_on("tiled_matmul", "tiled_matmul"),
    "refusal": lambda: _verdict_on("matmul_bf16", "tiled_matmul"),
    "receipt": _receipts,
    "walk": lambda: _walk("fix_the_grid", solved=False),
    "many_operands": lambda: _walk("attention_dkv"),
    "copied": lambda: _walk("double_buffered_matmul"),
    "run": lambda: _drawn(puzzles.find("gapless_attention").solution),
    "hunt": lambda: _drawn(starter_function(puzzles.find("fix_the_copy"))),
    "hunt in a grid": lambda: _drawn(starter_function(puzzles.find("fix_the_grid"))),
    "hunt between devices": lambda: _drawn(starter_function(puzzles.find("fix_the_ring"))),
    "semaphores": lambda: _drawn(puzzles.find("right_permute").solution),
    "scalar": lambda: _drawn(puzzles.find("copy_rows").solution),
    "sweep": _sweep_of_tiles,
    "roofline": _roofline,
    "lanes": lambda: _lanes(puzzles.find("ring_all_reduce").solution),
    "crossed lanes": lambda: _lanes(starter_function(puzzles.find("fix_the_ring"))),
    "line": lambda: _draw.plot_svg([1234567.0, 1.0], "loss by step"),
    "gathers": lambda: compare_gathers("v5e", "v6e")._repr_html_(),
}


def test_sliders_move_the_point_under_the_roofline(page: Page) -> None:
    page.set_viewport_size({"width": 620, "height": 900})
    page.set_content(_roofline())
    dials, says = page.locator(".pz-dials input"), page.locator(".pz-chosen-says")
    point = page.locator(".pz-point")
    expect(dials).to_have_count(3)
    expect(says).to_contain_text("63 FLOPs per byte, 32,768 steps")
    rows = page.locator(".pz-table tr")
    expect(rows.nth(1)).to_be_hidden()  # the table is folded
    place = [float(point.get_attribute(axis) or "") for axis in ("cx", "cy")]
    dials.nth(1).focus()
    page.keyboard.press("End")  # a larger bk: as many bytes, fewer steps
    expect(says).to_contain_text("63 FLOPs per byte, 4,096 steps")
    up = [float(point.get_attribute(axis) or "") for axis in ("cx", "cy")]
    assert up[0] == place[0]
    assert up[1] < place[1]
    dials.nth(0).focus()
    page.keyboard.press("ArrowRight")
    expect(says).to_contain_text("84 FLOPs per byte")
    assert float(point.get_attribute("cx") or "") > up[0]
    expect(page.locator("tr.pz-chosen")).to_have_count(1)
    expect(page.locator(".pz-dials b")).to_have_text(["256", "1024", "128"])
    page.locator("summary").click()
    expect(page.locator("tr.pz-chosen td").first).to_have_text("256")
    page.set_viewport_size({"width": 1300, "height": 1000})


def test_without_scripts_the_table_of_a_roofline_is_open(page: Page) -> None:
    context = page.context.browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.set_content(_roofline())
    expect(plain.locator(".pz-table tr")).to_have_count(1 + 4**3)
    expect(plain.locator(".pz-table td").first).to_be_visible()
    expect(plain.locator(".pz-dials")).to_be_hidden()
    context.close()


# Each text that is shown, and the boxes of its lines.
_TEXTS = """function* texts() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const box = node.parentElement;
    if (!node.data.trim() || box.closest('script,style,title,desc')) continue;
    if (!box.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    yield [node, [...range.getClientRects()]];
  }
}"""

# Texts that end beyond the page, or beyond a box that clips its contents and does not scroll.
_CUT = (
    f"() => {{ {_TEXTS}"
    + """
  const found = [];
  for (const [node, rects] of texts()) {
    const box = node.parentElement;
    const right = Math.max(...rects.map(r => r.right));
    let edge = innerWidth;
    for (let up = box; up; up = up.parentElement) {
      const how = getComputedStyle(up).overflowX;
      if (how === 'auto' || how === 'scroll' || getComputedStyle(up).textOverflow === 'ellipsis') {
        edge = Infinity;
      } else if (how !== 'visible' && edge !== Infinity) {
        edge = Math.min(edge, up.getBoundingClientRect().right);
      }
    }
    if (right > edge + 1) found.push(node.data.trim());
  }
  return found;
}"""
)


# Pairs of texts that share more than a pixel in both directions.
_OVERLAP = (
    f"() => {{ {_TEXTS}"
    + """
  const lines = [...texts()].flatMap(([node, rects]) => rects.map(r => [node, r]));
  const found = [];
  lines.forEach(([node, a], n) => lines.slice(n + 1).forEach(([other, b]) => {
    if (node !== other && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) {
      found.push(node.data.trim() + ' / ' + other.data.trim());
    }
  }));
  return found;
}"""
)


# An arrow that begins a line: the body it leads to, or the operands it comes from, are elsewhere.
_ORPHANS = """() => [...document.querySelectorAll('.pz-arrow')].filter(arrow => {
  if (!arrow.checkVisibility()) return false;
  const board = arrow.closest('.pz-board'), at = arrow.getBoundingClientRect();
  return ![...board.querySelectorAll('.pz-panel')].some(panel => {
    const box = panel.getBoundingClientRect();
    const beside = arrow.nextElementSibling ? box.right <= at.left + 1 : box.left >= at.right - 1;
    return beside && box.top < at.bottom && box.bottom > at.top;
  });
}).length"""

# Lines of prose that break inside a word.
_BROKEN = (
    f"() => {{ {_TEXTS}"
    + """
  const found = [], range = document.createRange();
  for (const [node, rects] of texts()) {
    const style = getComputedStyle(node.parentElement);
    if (rects.length < 2 || ['pre', 'nowrap'].includes(style.whiteSpace)) continue;
    for (const word of node.data.matchAll(/[a-zA-Z]{2,}/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.push(word[0]);
    }
  }
  return found;
}"""
)


@pytest.mark.parametrize("name", [name for name in SHOWN if name.startswith("hunt")])
def test_a_remedy_is_seen_only_by_those_who_open_it(name: str, page: Page) -> None:
    page.set_content(SHOWN[name]())
    says = page.get_by_text(re.compile("All visits to a block|Wait for that copy|nothing tells"))
    expect(says.first).to_be_hidden()
    expect(
        page.locator("path.pz-s-fault, path.pz-m-fault, path[stroke='#D55E00']").first
    ).to_be_visible()
    page.get_by_text("Have you found it?").click()
    expect(says.first).to_be_visible()


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize(("paper", "ink"), [("#ffffff", "#1f2328"), ("#111111", "#e6edf3")])
@pytest.mark.parametrize("width", [400, 620, 850, 1280])  # a phone, Colab, JupyterLab, a desktop
def test_nothing_is_cut_at_any_width(
    width: int, name: str, paper: str, ink: str, page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "narrow.html"
    file.write_text(
        f"<meta charset=utf-8><body style='background:{paper};color:{ink};font:14px sans-serif'>"
        + SHOWN[name]()
    )
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(file.as_uri())
    for fold in page.locator("summary").all():
        fold.click()
    assert page.evaluate(_CUT) == []
    assert page.evaluate(_OVERLAP) == []
    assert page.evaluate(_BROKEN) == []
    assert page.evaluate(_ORPHANS) == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    _shot(page, f"7-{name}-{width}-{ink[1:]}")


def test_an_orphaned_arrow_is_found(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 850, "height": 900})
    page.set_content(_walk("vector_add"))
    assert page.evaluate(_ORPHANS) == 0
    page.add_style_tag(content=".pz-board{display:block!important}")
    assert page.evaluate(_ORPHANS) > 0


def test_a_broken_word_is_found(page: Page) -> None:
    page.set_content("<div style='width:200px'>a wonderful kernel, and another one</div>")
    assert page.evaluate(_BROKEN) == []
    page.set_content("<div style='width:40px;word-break:break-all'>a wonderful kernel</div>")
    assert page.evaluate(_BROKEN) != []


def test_what_is_cut_is_found(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    for style, found in (
        ("white-space:pre", ["longer " * 20]),
        ("white-space:pre;overflow:hidden;width:200px", ["longer " * 20]),
        ("white-space:pre;overflow-x:auto", []),
        ("", []),
    ):
        page.set_content(f"<div style='{style}'>{'longer ' * 20}</div>")
        assert page.evaluate(_CUT) == [one.strip() for one in found]


def test_what_overlaps_is_found(page: Page) -> None:
    page.set_content("<p>one</p><p id=two>two</p>")
    assert page.evaluate(_OVERLAP) == []
    page.set_content("<p>one</p><p style='margin-top:-32px'>two</p>")
    assert page.evaluate(_OVERLAP) == ["one / two"]


DIAGRAMS = sorted((ROOT / "diagrams").glob("*/*.svg"))

# Boxes of all texts, and of the picture, on the page.
_BOXES = """() => {
  const svg = document.documentElement, all = [...svg.querySelectorAll('text')];
  const box = t => { const b = t.getBoundingClientRect(); return [b.x, b.y, b.right, b.bottom]; };
  return {whole: box(svg), texts: all.map(t => [t.textContent, box(t)])};
}"""


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)
def test_no_text_of_a_diagram_leaves_it_or_overlaps_another(path: Path, page: Page) -> None:
    page.goto(path.as_uri())
    found = page.evaluate(_BOXES)
    assert texts_at_fault(found["whole"], found["texts"]) == []


def texts_at_fault(whole: list[float], texts: list) -> list[str]:
    """The boxes outside `whole`, and the pairs that share more than a pixel in both directions."""
    faults = [
        f"outside: {words}"
        for words, (x0, y0, x1, y1) in texts
        if x0 < whole[0] or y0 < whole[1] or x1 > whole[2] or y1 > whole[3]
    ]
    for n, (words, (a0, b0, a1, b1)) in enumerate(texts):
        for other, (x0, y0, x1, y1) in texts[n + 1 :]:
            if min(a1, x1) - max(a0, x0) > 1 and min(b1, y1) - max(b0, y0) > 1:
                faults.append(f"overlap: {words} / {other}")
    return faults


def test_faults_of_texts_are_found() -> None:
    whole = [0.0, 0.0, 100.0, 100.0]
    apart = [["a", [0, 0, 10, 10]], ["b", [20, 0, 30, 10]]]
    assert texts_at_fault(whole, apart) == []
    assert texts_at_fault(whole, [["a", [95, 0, 105, 10]]]) == ["outside: a"]
    overlap = [["a", [0, 0, 10, 10]], ["b", [5, 5, 30, 15]]]
    assert texts_at_fault(whole, overlap) == ["overlap: a / b"]
