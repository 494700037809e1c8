"""A proof is kept as long as nothing changes that it depends on, and no longer."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import sample

from puzzles import _ladders
from puzzles._author import gate, proofs
from puzzles._author.report import Report

pytestmark = pytest.mark.newest  # JAX changes nothing here

PUZZLES = ("kept_first", "kept_second", "kept_third")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> proofs.Proofs:
    """Proofs of three puzzles: the second imports `_shared`, the third finds the first."""
    monkeypatch.delenv("CI", raising=False)
    texts = {
        "__init__": "",
        "_shared": "from kept._deeper import x\n",
        "_deeper": "x = 1\n",
        "kept_first": "y = 1\n",
        "kept_second": "from kept._shared import (\n    x,\n)\n",
        "kept_third": 'old = "find(\\"kept_first\\").solution"\n',
    }
    (tmp_path / "kept").mkdir()
    for name, text in texts.items():
        (tmp_path / "kept" / f"{name}.py").write_text(text)
    module = types.ModuleType("kept")
    module.__file__ = str(tmp_path / "kept" / "__init__.py")
    module.PUZZLES = PUZZLES  # type: ignore[attr-defined]
    monkeypatch.setattr(_ladders, "_ladder_modules", lambda: {"kept": module})
    one = proofs.Proofs(tmp_path)
    for puzzle in PUZZLES:
        assert one.taken(puzzle, "right-full") is None
        one.keep(puzzle, "right-full", Report(puzzle, {"cases": "2"}))
    return one


def there(kept: proofs.Proofs) -> str:
    """The initials of the puzzles whose proofs are taken."""
    now = proofs.Proofs(kept.root)
    return "".join(puzzle[5] for puzzle in PUZZLES if now.taken(puzzle, "right-full"))


def test_a_proof_is_taken_as_it_was(kept: proofs.Proofs) -> None:
    report = kept.taken("kept_first", "right-full")
    assert report is not None
    assert (report.before, report.counts) == (True, {"cases": "2"})
    assert kept.taken("kept_first", "right-quick") is None
    assert proofs.Proofs(kept.root, fresh=True).taken("kept_first", "right-full") is None


@pytest.mark.parametrize(
    ("edited", "left"),
    [
        ("kept_first", "s"),
        ("kept_second", "ft"),
        ("kept_third", "fs"),
        ("kept_first.toml", "st"),
        ("_shared", "ft"),
        ("_deeper", "ft"),
        ("__init__", ""),
    ],
)
def test_an_edit_spoils_the_proofs_that_rest_on_it(
    kept: proofs.Proofs, edited: str, left: str
) -> None:
    assert there(kept) == "fst"
    name = edited if "." in edited else f"{edited}.py"
    with (kept.root / "kept" / name).open("a") as file:
        file.write("# changed\n")
    assert there(kept) == left


def test_another_engine_or_version_spoils_all(
    kept: proofs.Proofs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(proofs, "version", lambda name: "0.1" if name == "jax" else "1")
        assert there(kept) == ""
    with monkeypatch.context() as other:
        other.setenv("CI", "true")
        assert there(kept) == ""
    with monkeypatch.context() as other:
        other.setattr(proofs, "version", lambda name: {"libtpu": "0.1"}.get(name, "1"))
        both = [proofs.digest("kept_first", kind) for kind in ("others", "others-compiled")]
        other.setattr(proofs, "version", lambda name: {"libtpu": "0.2"}.get(name, "1"))
        again = [proofs.digest("kept_first", kind) for kind in ("others", "others-compiled")]
        assert [a == b for a, b in zip(both, again, strict=True)] == [True, False]
    assert there(kept) == "fst"


def test_the_engine_is_code_and_words_and_no_ladder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "HOME", tmp_path)
    of = proofs._engine.__wrapped__
    for name, counts in {"_check.py": 1, "_judge/words.toml": 1, "basics/add_ten.py": 0}.items():
        before = of()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
        assert (of() != before) == counts


def test_a_proof_that_fails_is_torn_or_of_another_text_is_not_kept(kept: proofs.Proofs) -> None:
    kept.keep("kept_first", "right-full", Report("kept_first", problems=["x"]))
    (kept.root / "kept" / "kept_third.py").write_text("# edited while it was proven\n")
    kept.keep("kept_third", "right-full", Report("kept_third"))
    (kept.root / ".proofs" / "kept" / "kept_second-right-full.json").write_text('{"of": ')
    assert there(kept) == ""


@sample.in_turn
def test_verify_says_how_far_it_is_and_how_much_was_proven_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(gate, "has_libtpu", lambda: False)
    asked = []

    def kept(_: Path, fresh: bool) -> proofs.Proofs:
        asked.append(fresh)
        return proofs.Proofs(tmp_path, fresh)

    monkeypatch.setattr(gate, "Proofs", kept)
    for before in (False, True):
        assert gate.verify(["classify_blocks"], fresh=not before) == 0
        first, puzzle, last = capsys.readouterr().out.splitlines()
        assert first.startswith("libtpu is not installed, so nothing is compiled for a TPU: ")
        assert puzzle.startswith("[1/1] ok  splash_attention/classify_blocks  ")
        assert puzzle.endswith("(proven before)") == before
        assert last.startswith("1 puzzle, 0 puzzles with problems")
        assert (", 1 proven before (--fresh proves all anew), in " in last) == before
    assert asked == [True, False]
