"""Is a rung's text complete, and does it explain what it uses?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from puzzles import _regions
from puzzles._author.report import plural
from puzzles._ladders import front_page, ladder_module, ladders
from puzzles._puzzle import Puzzle

UNDONE = "✎"  # what a scaffold's comments begin with: instructions to be followed and deleted
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*)\)")
_API = re.compile(r"(pl|pltpu|jax\.lax|lax)\.")


def text_problems(puzzle: Puzzle) -> Iterator[str]:
    """Everything that a reader of the module would miss, each with its place and remedy."""
    yield from _hints(puzzle)
    yield from _cases(puzzle)
    yield from _names(puzzle)
    yield from _pictures(puzzle)
    yield from unexplained(puzzle)


def _hints(puzzle: Puzzle) -> Iterator[str]:
    place = puzzle.place("hints=")
    if len(puzzle.hints) < 3:
        few = plural(len(puzzle.hints), "hint")
        yield f"{place}: {few}: give an idea, an API and the shape of the code"
    for number, text in enumerate(puzzle.hints, 1):
        if not text.strip():
            yield f"{place}: hint {number} is empty: write it, or take it out"
    if not puzzle.explain.strip():
        yield f"{puzzle.place('explain=')}: no explanation: say why the solution works"


def _cases(puzzle: Puzzle) -> Iterator[str]:
    if len(puzzle.mistakes) < 3:
        place = puzzle.place("mistakes=")
        yield (
            f"{place}: {plural(len(puzzle.mistakes), 'mistake')}: at least 3 are wanted; what do "
            "people write?"
        )
    for dims in puzzle.cases:
        sizes = [v for v in dims.values() if isinstance(v, int)]
        if len(sizes) > 1 and len(set(sizes)) == 1:
            yield (
                f"{puzzle.place('cases=')}: a case with equal dims, {dict(dims)}, hides swapped "
                "axes: make them differ"
            )


def _names(puzzle: Puzzle) -> Iterator[str]:
    names = [m.name for m in (*puzzle.mistakes, *puzzle.alternatives)]
    for name in sorted({n for n in names if names.count(n) > 1}):
        place = puzzle.place(f'"{name}"')
        yield f"{place}: two mistakes or alternatives are called '{name}': rename one"


def _pictures(puzzle: Puzzle) -> Iterator[str]:
    text = prose(puzzle.text)
    images = _IMAGE.findall(text)
    if puzzle.kernel and puzzle.picture and not images and "```text" not in text:
        yield (
            f"{puzzle.place('# %% [markdown]', author=False)}: a kernel moves blocks "
            "through space, "
            "and this prose has no picture: add an image or a ```text drawing, or set "
            "picture=False in the Puzzle if it would give the answer away"
        )
    for alt, source in images:
        place = puzzle.place(source, author=False)
        if len(alt.split()) < 8:
            few = f"only {plural(len(alt.split()), 'word')}" if alt.split() else "no words"
            yield f"{place}: the image has {few} for who cannot see it: describe it in its alt text"
        if not source.startswith("http") and not (_root(puzzle) / source).exists():
            yield f"{place}: there is no image {source}: draw it, or mend the link"


def _root(puzzle: Puzzle) -> Path:
    """The folder that holds the puzzle's top-level package."""
    return puzzle.path.parents[puzzle.module.count(".")]


def undone(puzzle: Puzzle) -> list[str]:
    """What a scaffold's comments still ask for, each with its place."""
    lines = puzzle.path.read_text(encoding="utf-8").splitlines()
    return _undone(puzzle.file, lines)


def undone_of_ladder(name: str) -> list[str]:
    """What the scaffold's comments in a ladder's `__init__.py` still ask for."""
    module = ladder_module(name)
    with open(str(module.__file__), encoding="utf-8") as file:
        return _undone(front_page(name), file.read().splitlines())


def undone_of_project(root: Path) -> list[str]:
    """What is still asked for in the files beside a project's ladders."""
    paths = [path for path in (root / "pyproject.toml", root / "README.md") if path.exists()]
    texts = {path.name: path.read_text(encoding="utf-8").splitlines() for path in paths}
    return [line for name, lines in texts.items() for line in _undone(name, lines)]


def _undone(file: str, lines: list[str]) -> list[str]:
    return [
        f"{file}:{number}: left undone: {line.split(UNDONE, 1)[1].strip()}"
        for number, line in enumerate(lines, 1)
        if UNDONE in line
    ]


# What the reader has been told


def unexplained(puzzle: Puzzle) -> Iterator[str]:
    """API names in the rung's code that neither its prose nor any earlier rung's mentions."""
    told = _told_before(puzzle) + prose(puzzle.text)
    known = set(re.findall(r"\w+", told))
    for name, line in sorted(api_names(puzzle.text).items(), key=lambda item: item[1]):
        if name.split(".")[-1] not in known:
            yield (
                f"{puzzle.file}:{line}: `{name}` is used here, and no text up to this rung "
                "mentions "
                "it: say what it does, or do without it"
            )


def _told_before(puzzle: Puzzle) -> str:
    """All prose and code that a learner has met when they come to this rung."""
    texts = [t for name in climbed_before(puzzle.ladder) for t in (_front(name), *_told_in(name))]
    return "\n".join([*texts, _front(puzzle.ladder), *_told_in(puzzle.ladder, puzzle.name)])


def _told_in(name: str, until: str | None = None) -> Iterator[str]:
    """What each rung of a ladder tells, up to one; of a rung whose module is broken, too."""
    front = ladder_module(name)
    for rung in front.RUNGS:
        path = Path(str(front.__file__)).with_name(f"{rung}.py")
        if rung == until:
            return
        if path.exists():
            yield _met(_regions.without_author(path.read_text(encoding="utf-8")))


def climbed_before(name: str) -> Iterator[str]:
    """The ladders that a ladder takes as known: its AFTER, and theirs."""
    for earlier in getattr(ladder_module(name), "AFTER", ()):
        if earlier in ladders() and earlier != name:  # else `front_problems` says so
            yield from climbed_before(earlier)
            yield earlier


def _front(name: str) -> str:
    module = ladder_module(name)
    return "\n".join([getattr(module, "INTRO", ""), *getattr(module, "PARTS", {}).values()])


def _met(text: str) -> str:
    """A rung's prose, and the API names of its code, which have been complained of there."""
    try:
        return prose(text) + " ".join(api_names(text))
    except SyntaxError:
        return text


def prose(text: str) -> str:
    """The Markdown cells of a module's text."""
    cells = _regions.split_cells(text)
    return "\n".join(body for marker, body in cells if "[markdown]" in marker)


def api_names(text: str) -> dict[str, int]:
    """Names of JAX's and Pallas' API, and keywords of Pallas' functions, by their first line."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if _API.match(name) and re.fullmatch(r"[\w.]+", name):
                found.setdefault(name, node.lineno)
        elif isinstance(node, ast.Call) and re.match(r"(pl|pltpu)\.", ast.unparse(node.func)):
            for word in node.keywords:
                if word.arg:
                    found.setdefault(word.arg, word.value.lineno)
    return found
