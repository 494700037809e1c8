"""The notebook in a real browser: JupyterLab, driven as a learner would drive it.

`make test-browser` runs this; it needs Chromium. Screenshots stay in tests/browser/screenshots.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

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
    address, _ = lab
    _open(page, address)
    page.locator(".lm-MenuBar-itemLabel", has_text="Run").click()
    page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
    last = page.locator(".jp-CodeCell", has_text="progress()").last
    page.keyboard.press("Escape")
    last.scroll_into_view_if_needed()
    expect(last.locator(".jp-OutputArea-output")).to_contain_text("0 of 15 solved", timeout=SLOW)
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
    expect(_verdict(cell)).to_contain_text("1/15")
    _shot(page, "3-right")
