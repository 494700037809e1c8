"""Every kind of fault that a stranger planted in a rung: the gate says where it is, and the remedy.

51 kinds. Most are planted here; a tally counts those that are told.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest
import sample
from planted import FRONT, Rung

from puzzles import __main__ as cli
from puzzles import _ladders
from puzzles._author import gate, notebook, repository, scaffold, tree

pytestmark = pytest.mark.newest  # JAX changes nothing here

TEXT = scaffold.rung_text("toy_warm_up")


def block(first: str, last: str) -> str:
    """The scaffold's text from one mark to before another."""
    start = TEXT.index(first)
    return TEXT[start : TEXT.index(last, start)]


HINT = "Every element of the block is treated alike, so the block can be treated as one value."
PROSE = "# Fill the one with twice the other."
DOUBLE = "    o_ref[...] = x_ref[...] * 2\n"
WHOLE = f"    ### BEGIN SOLUTION\n{DOUBLE}    ### END SOLUTION\n"
SPEC, SOLUTION = "def toy_warm_up_spec(", "def toy_warm_up("
ANNOTATED = 'x: Float[Array, "M N"]) -> Float[Array, "M N"]:\n'
BODY = "    return 2 * x\n"
DRAW = "rng(key).normal(0, 3, (M, N))"
CASES = "cases=[dict(M=16, N=384), dict(M=24, N=256)]"
SCALE = "    scale=scale,\n"
FIRST_ROW = block('"fills the first row', "            says=")
OTHERS = block('        Mistake(\n            "doubles outside', "    ],\n    # ✎ Add other")
WORK = block('        Mistake(\n            "takes the whole', "    ],\n    # ✎ Add other")
AUDIT = block("    assert launch.steps", "\n\nPUZZLE = ")
ALTERNATIVES = block("        Alternative(", "    ],\n    audit=audit")
ITSELF = '"adds the block to itself"'
PLOT = "# ![A plot](diagrams/toy/plot.svg)\n"
NUMPY = ("import jax.numpy as jnp\n", "import jax.numpy as jnp\nimport numpy as np\n")
CELL = "# %%\n# ✎ Write the reference solution"


@dataclass(frozen=True)
class Plant:
    """One fault: its kind, a piece of its line, what is said of it, the edits that make it."""

    kind: str
    at: str
    says: str
    edits: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.says}"


def plant(kind: str, at: str, says: str, *edits: tuple[str, str]) -> Plant:
    return Plant(kind, at, says, edits)


PLANTS = [
    plant(
        "hint with a line of the solution",
        "hints=",
        "a hint contains a line of the solution, `o_ref[...] = x_ref[...] * 2`: say it in words",
        (HINT, "Write `o_ref[...] = x_ref[...] * 2`."),
    ),
    plant(
        "author's code in a public cell",
        "o_ref[...] = x_ref[...] * 2",
        "a cell of this rung contains a line of the solution",
        ('# %% tags=["author"]\n', "# %%\n"),
    ),
    plant(
        "author's code in a public cell",
        "# That is, o_ref",
        "a cell of this rung contains a line of the solution",
        (PROSE, f"# That is, o_ref[...] = x_ref[...] * 2.\n{PROSE}"),
    ),
    plant(
        "mistake that is right",
        '"adds two"',
        "mistake 'adds two' survives (seed 0): add a case, or an assertion to the audit",
        ('new="x_ref[...] + 2"', 'new="2 * x_ref[...]"'),
    ),
    plant(
        "two mistakes alike",
        '"adds two twice"',
        "'adds two' and 'adds two twice' give equal values: add a case that tells them apart",
        (
            FIRST_ROW,
            '"adds two twice",\n            old="x_ref[...] * 2",\n'
            '            new="x_ref[...] + 2.0",\n',
        ),
    ),
    plant(
        "two mistakes of one name",
        '"adds two"',
        "two mistakes or alternatives are called 'adds two': rename one",
        ('"takes larger blocks"', '"adds two"'),
    ),
    plant(
        "edit of what is not there",
        '"adds two"',
        "cannot be made: occurs 0 times instead of once: 'x_ref[...] * 3'; mend its `old`",
        ('old="x_ref[...] * 2"', 'old="x_ref[...] * 3"'),
    ),
    plant(
        "edit of what is not there",
        '"adds two"',
        "mistake 'adds two' cannot be made: invalid syntax",
        ('new="x_ref[...] + 2"', 'new="x_ref[...] +"'),
    ),
    plant(
        "wrong stage",
        '"doubles outside the kernel"',
        "is caught at stage 'pallas', not 'work' (seed 0)",
        ('stage="pallas"', 'stage="work"'),
    ),
    plant(
        "wrong stage",
        '"doubles outside the kernel"',
        "Set stage='pallas' if that is where it belongs",
        ('stage="pallas"', 'stage="pallass"'),
    ),
    plant(
        "mistake that says nothing",
        '"adds two"',
        "says nothing: `says` tells the learner why it is wrong",
        ('says="twice x is x + x, not x + 2"', 'says=" "'),
    ),
    plant(
        "mistake that says nothing",
        '"doubles outside the kernel"',
        "is rejected, but not in its own words 'dances on the data outside the kernel'",
        ('says="works on the data', 'says="dances on the data'),
    ),
    plant(
        "alternative that is wrong",
        ITSELF,
        "alternative 'adds the block to itself' is rejected: mend it, or call it a mistake",
        ('new="x_ref[...] + x_ref[...]"', 'new="x_ref[...] + 3.0"'),
    ),
    plant(
        "alternative that is wrong",
        ITSELF,
        "alternative 'adds the block to itself' cannot be made: invalid syntax",
        ('new="x_ref[...] + x_ref[...]"', 'new="x_ref[...] +"'),
    ),
    plant(
        "equal dims",
        "cases=",
        "a case with equal dims, {'M': 128, 'N': 128}, hides swapped axes: make them differ",
        ("dict(M=16, N=384)", "dict(M=128, N=128)"),
    ),
    plant(
        "hints that are too few or empty",
        "hints=",
        "2 hints: give an idea, an API and the shape of the code",
        (f'        "{HINT}",\n', ""),
    ),
    plant(
        "hints that are too few or empty",
        "hints=",
        "hint 1 is empty: write it, or take it out",
        ("hints=[\n", "hints=[\n        ' ',\n"),
    ),
    plant(
        "no explanation, few mistakes",
        "explain=",
        "no explanation: say why the solution works",
        ("A kernel for one block is a kernel for the whole array: the grid does the rest.", ""),
    ),
    plant(
        "no explanation, few mistakes",
        "mistakes=",
        "2 mistakes: at least 3 are wanted; what do people write?",
        (OTHERS, ""),
    ),
    plant(
        "region that is not closed",
        "### BEGIN SOLUTION",
        "'### BEGIN SOLUTION' without '### END SOLUTION'. Mend it first",
        ("    ### END SOLUTION\n", ""),
    ),
    plant(
        "starter that passes",
        "### BEGIN SOLUTION",
        "the starter passes as it stands: put what the learner has to write into the region",
        (WHOLE, f"    ### BEGIN SOLUTION\n    y = 1\n    ### END SOLUTION\n{DOUBLE}"),
    ),
    plant(
        "image without a file or words",
        "diagrams/toy/plot.svg",
        "there is no image diagrams/toy/plot.svg: draw it, or mend the link",
        (PROSE, f"{PLOT}{PROSE}"),
    ),
    plant(
        "image without a file or words",
        "diagrams/toy/plot.svg",
        "the image has only 2 words for who cannot see it: describe it in its alt text",
        (PROSE, f"{PLOT}{PROSE}"),
    ),
    plant(
        "image without a file or words",
        "diagrams/toy/plot.svg",
        "the image has no words for who cannot see it: describe it in its alt text",
        (PROSE, PLOT.replace("A plot", "") + PROSE),
    ),
    plant(
        "no picture",
        "# %% [markdown]",
        "this prose has no picture: add an image or a ```text drawing, or set picture=False",
        ("# ```text", "# ```"),
    ),
    plant(
        "heading that is wrong or missing",
        "# %%",
        "the first cell must be Markdown, beginning '## toy_warm_up: '",
        ("# ## toy_warm_up: twice a matrix", "# ## doubled: twice a matrix"),
    ),
    plant(
        "heading that is wrong or missing",
        "# %%",
        "the first cell must be Markdown, beginning '## toy_warm_up: '",
        ("# ## toy_warm_up: twice a matrix\n#\n", ""),
    ),
    plant(
        "API that no text explains",
        "pl.CostEstimate",
        "`pl.CostEstimate` is used here, and no text up to this rung mentions it: say what it",
        (
            "        interpret=INTERPRET",
            "        cost_estimate=pl.CostEstimate(flops=1, transcendentals=0, bytes_accessed=1),\n"
            "        interpret=INTERPRET",
        ),
    ),
    plant(
        "API that no text explains",
        "debug=False",
        "`debug` is used here, and no text up to this rung mentions it",
        ("        interpret=INTERPRET", "        debug=False,\n        interpret=INTERPRET"),
    ),
    plant(
        "illegal block",
        SOLUTION,
        "Try a multiple of 8 or all 8192",
        ("bm, bn = 8, 128", "bm, bn = 4, 128"),
    ),
    plant(
        "spec of another dtype or other numbers",
        SOLUTION,
        "The result has the wrong dtype: expected bfloat16, got float32",
        (BODY, "    return (2 * x).astype(jnp.bfloat16)\n"),
    ),
    plant(
        "spec of another dtype or other numbers",
        SOLUTION,
        "the solution is rejected (seed 0); mend it, or its spec",
        (DOUBLE, DOUBLE.replace("2", "4")),
    ),
    plant(
        "tolerance of 10",
        '"adds two"',  # found by no case: 2**-40 shows it
        "is rejected, but not in its own words",
        (SCALE, f"{SCALE}    tolerance=10,\n"),
    ),
    plant(
        "import that the notebook lacks",
        "itertools",
        "the setup cell does not import 'itertools' (itertools): import it in a cell of this",
        ("import jax\n", "import itertools\nimport jax\n"),
    ),
    plant(
        "undefined name in a notebook's cell",
        "no_such_thing",
        "no_such_thing is defined neither in the setup cell nor in this puzzle's cells",
        (CELL, f'# %% active="ipynb"\n# no_such_thing(toy_warm_up)\n\n{CELL}'),
    ),
    plant(
        "code that does not run",
        "# show(",
        "SyntaxError: '(' was never closed, in a cell that runs in the notebook only",
        (CELL, f'# %% active="ipynb"\n# show(\n\n{CELL}'),
    ),
    plant(
        "code that does not run",
        "PUZZLE = ",
        "SyntaxError: '(' was never closed (toy_warm_up.py, line 86). Mend it first",
        ("    audit=audit,\n", "    audit=(audit,\n"),
    ),
    plant(
        "code that does not run",
        "(np.asarray(",
        "NameError: name 'np' is not defined. Mend it first",
        ("(array(rng", "(np.asarray(rng"),
    ),
    plant(
        "code that does not run",
        "x.T.foo",
        "has no attribute foo. Mend it first",
        (BODY, "    return 2 * x.T.foo\n"),
    ),
    plant(
        "code that does not run",
        "PUZZLE = ",
        "got an unexpected keyword argument 'audits'. Mend it first",
        ("    audit=audit,\n", "    audits=audit,\n"),
    ),
    # What the gate did not see at first
    plant(
        "spec with false annotations",
        SPEC,
        "`x` of `toy_warm_up_spec` is annotated Float[Array, 'M M'], and it is float32[16, 384] "
        "(M=16, N=384): mend the annotation",
        (f"{ANNOTATED}    return", ANNOTATED.replace("N", "M") + "    return"),
    ),
    plant(
        "spec with false annotations",
        SPEC,
        "the result of `toy_warm_up_spec` is annotated Float[Array, 'N 7']",
        (f'-> Float[Array, "M N"]:\n{BODY}', f'-> Float[Array, "N 7"]:\n{BODY}'),
    ),
    plant(
        "solution with false annotations",
        SOLUTION,
        "`x` of `toy_warm_up` is annotated Float[Array, 'N M']",
        (f"{ANNOTATED}    M, N", ANNOTATED.replace("M N", "N M") + "    M, N"),
    ),
    plant(
        "solution with false annotations",
        SOLUTION,
        "the result of `toy_warm_up` is annotated Float[Array, 'M']",
        ('-> Float[Array, "M N"]:\n    M, N', '-> Float[Array, "M"]:\n    M, N'),
    ),
    plant(
        "solution with false annotations",
        SOLUTION,
        "the result of `toy_warm_up` is annotated tuple[Float[Array, 'M N'], int]",
        ('-> Float[Array, "M N"]:\n    M, N', '-> tuple[Float[Array, "M N"], int]:\n    M, N'),
    ),
    plant(
        "solution with false annotations",
        SOLUTION,
        "`x` of `toy_warm_up` is annotated Int[Array, 'M N'], and it is float32[16, 384]",
        (f"{ANNOTATED}    M, N", ANNOTATED.replace("x: Float", "x: Int") + "    M, N"),
        ("import Array, Float", "import Array, Float, Int"),
    ),
    plant(
        "data without a seed",
        "inputs=",
        "`inputs` gives other data for the same key (M=16, N=384): draw all of it from",
        (DRAW, "np.random.default_rng().normal(0, 3, (M, N))"),
        NUMPY,
    ),
    plant(
        "spec that is the solution",
        SPEC,
        "`toy_warm_up_spec` reaches `toy_warm_up`, which the learner writes: nothing",
        (BODY, "    return toy_warm_up(x)\n"),
    ),
    plant(
        "spec that is the solution",
        SPEC,
        "`toy_warm_up_spec` reaches `toy_warm_up`, which the learner writes: nothing",
        (
            BODY,
            '    from puzzles import find\n    return find("toy_warm_up").solution(x)\n',
        ),
    ),
    plant(
        "spec that is the solution",
        SPEC,
        "`toy_warm_up_spec` reaches `toy_warm_up_kernel`",
        (
            BODY,
            "    return pl.pallas_call(\n        toy_warm_up_kernel, out_shape=x, "
            "interpret=INTERPRET\n    )(x)\n",
        ),
    ),
    plant(
        "spec that is the solution",
        SPEC,
        "the spec launches a kernel itself: write what is wanted in plain jax.numpy",
        (
            BODY,
            "    def twice(x_ref, o_ref):\n        o_ref[...] = 2 * x_ref[...]\n"
            "    return pl.pallas_call(twice, out_shape=x, interpret=INTERPRET)(x)\n",
        ),
    ),
    plant(
        "interpret=True",
        "interpret=True",
        "`interpret=True` in a launch: write `interpret=INTERPRET`",
        ("interpret=INTERPRET", "interpret=True"),
    ),
    plant(
        "interpret=True",
        "pl.pallas_call(",
        "a launch without `interpret`: write `interpret=INTERPRET`",
        ("        interpret=INTERPRET,\n", ""),
    ),
    plant(
        "audit that cannot fail",
        "PUZZLE = ",
        "no production shape: give `scale`, so that an answer's cost is compared where it matters",
        ("    audit=audit,\n    scale=scale,\n", ""),
        (WORK, ""),
    ),
    plant(
        "audit that cannot fail",
        "audit=audit",
        "no mistake of stage 'work' shows that the audit can fail: record the launch that",
        (AUDIT, "    pass\n"),
        (WORK, ""),
    ),
    plant(
        "audit that cannot fail",
        "audit=audit",
        "no mistake of stage 'work' shows that the audit can fail: record the launch that",
        ("launch.steps > 1, (", "launch.steps > 0, ("),
        (WORK, ""),
    ),
    plant(
        "no other answer",
        "alternatives=",
        "0 alternatives: at least 2 are wanted; how else would an expert write it?",
        (ALTERNATIVES, ""),
    ),
    plant(
        "no other answer",
        ITSELF,
        "alternative 'adds the block to itself' is the solution in other layout: write",
        ('new="x_ref[...] + x_ref[...]"', 'new="(x_ref[...] * 2)"'),
    ),
    plant(
        "cases that show little",
        "cases=",
        "no case has more than one block on every axis of its grid (grids (1, 3)): make one",
        (CASES, "cases=[dict(M=8, N=384)]"),
    ),
    plant(
        "cases that show little",
        "cases=",
        "no case has more than one block on every axis of its grid (grids (1, 3), (3, 1))",
        (CASES, "cases=[dict(M=8, N=384), dict(M=24, N=128)]"),
    ),
    plant(
        "cases that show little",
        "cases=",
        "two cases are {'N': 384, 'M': 16}: make one differ, or take it out",
        ("dict(M=24, N=256)", "dict(N=384, M=16)"),
    ),
    plant(
        "data without signs or all alike",
        "inputs=",
        "array 0 of the arguments is constant in every case: draw it at random",
        (DRAW, "jnp.zeros((M, N))"),
    ),
    plant(
        "data without signs or all alike",
        "inputs=",
        "array 0 of the arguments is never negative: draw signed numbers",
        (DRAW, "rng(key).random((M, N))"),
    ),
    plant(
        "tolerance of 0.1",
        "tolerance=",
        "within a tolerance of 0.1 lie real faults of float32: give 0.0002 at most, 10 times what "
        "is usual",
        (SCALE, f"{SCALE}    tolerance=0.1,\n"),
    ),
    plant(
        "words that any verdict has",
        '"takes the whole matrix in one step"',
        "is known by 'e': quote 3 words of its own verdict, or a number or a `name`",
        ('says="cut the matrix into blocks"', 'says="e"'),
    ),
    plant(
        "answer in other words",
        "hints=",
        "a hint contains the solution's `o_ref[...] = x_ref[...] * 2` in other words: say it in",
        (HINT, "Write `o_ref[...] = 2 * x_ref[...]`."),
    ),
    plant(
        "answer in other words",
        "# ## toy_warm_up",
        "a cell of this rung contains the solution's `o_ref[...] = x_ref[...] * 2` in other words",
        (PROSE, "# Write `o_ref[...] = 2 * x_ref[...]`."),
    ),
    plant(
        "false fact with a figure",
        "# A v5e has 3 MiB",
        "`3 MiB` has no source: put the sentence and where it is from, or the test that shows it",
        (PROSE, f"# A v5e has 3 MiB of VMEM and runs grid steps in random order.\n{PROSE}"),
    ),
    plant(
        "rung that is not there, in prose",
        "# As in `row_summ`.",
        "`row_summ` is no rung and no name of the code: mend the name",
        (PROSE, f"# As in `row_summ`.\n{PROSE}"),
    ),
    plant(
        "rung that is not there, in prose",
        "# As in `flash_attention`.",
        "`flash_attention`, of splash_attention, is a rung that no reader has met here: name",
        (PROSE, f"# As in `flash_attention`.\n{PROSE}"),
    ),
    plant(
        "lint",
        "unused = 1",
        "F841 Local variable `unused` is assigned to but never used (ruff)",
        ("    M, N = x.shape\n", "    M, N = x.shape\n    unused = 1\n"),
    ),
]

# Kinds of which another test plants one each: by its file here, and its name.
ELSEWHERE = {
    "notebook, table or diagram edited by hand: notebook": "test_faults.what_is_generated",
    "notebook, table or diagram edited by hand: table": "test_faults.what_is_generated",
    "notebook, table or diagram edited by hand: diagram": "test_faults.what_is_generated",
    "two ladders of one ORDER": "test_faults.two_ladders_of_one_order",
    "stray file, rung or part that is not there": "test_gate.stray_files_are_named",
    "two puzzles of one name": "test_gate.a_second_puzzle_of_a_name_is_named",
    "no TITLE": "test_told_once.a_front_page_is_looked_at_though_only_a_rung_is_named",
    "unknown AFTER": "test_told_once.an_unknown_ladder_before_is_told_once_where_it_is_named",
    "entry point with a typo": "test_fork.a_ladder_of_another_package_that_does_not_load",
    "bad names for `new`": "test_fork.a_name_that_cannot_be_is_refused",
    "first check of half a minute": "test_told_once.a_first_check_that_takes_long_is_noted",
}

# Kinds that the gate does not see, and why.
UNSEEN = {
    "words of the field that no text explains": (
        "jax.numpy is taken as known, and no list has the words that a reader knows",
        (BODY, '    return jnp.einsum("mn,->mn", x, 2.0)\n'),
        (PROSE, f"# A megacore has two of them, a SparseCore none.\n{PROSE}"),
    ),
}
KINDS = 51


@pytest.fixture
def verified(rung: Rung, monkeypatch: pytest.MonkeyPatch):
    """What `verify --quick` says of the scaffold's rung with some edits."""
    monkeypatch.setattr(gate, "first_check", lambda _: 0.0)  # its seconds are not asked here

    def verify(*edits: tuple[str, str]) -> list[str]:
        try:
            rung(*edits)
        except AssertionError:  # an edit of what is not there
            raise
        except Exception:  # the module cannot be imported: the gate is to say so
            pass
        return gate.verify_rung("toy_warm_up", use_libtpu=False, quick=True).problems

    return verify


@pytest.mark.graduate
@pytest.mark.parametrize("fault", sample.share(PLANTS, 2), ids=str)
def test_a_planted_fault_is_told_with_its_place_and_remedy(verified, tmp_path, fault) -> None:
    problems = verified(*fault.edits)
    text = (tmp_path / "toy" / "toy_warm_up.py").read_text(encoding="utf-8")
    at = next(n for n, one in enumerate(text.splitlines(), 1) if fault.at in one)
    place = f"toy/toy_warm_up.py:{at}: "
    told = [one for one in problems if one.startswith(place) and fault.says in one]
    assert len(told) == 1, (place, problems)


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_is_listed_as_unseen_is_not_seen(verified, kind: str) -> None:
    why, *edits = UNSEEN[kind]
    assert why
    assert verified(*edits) == []


def test_what_is_generated_and_edited_by_hand_is_named(
    rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    rung()
    settings = '[project.urls]\nRepository = "https://github.com/a/b"\n[tool.pallas-puzzles]\n'
    (tmp_path / "pyproject.toml").write_text(settings + 'branch = "main"\n')
    (tmp_path / "README.md").write_bytes((scaffold.PROJECT / "README.md").read_bytes())
    (tmp_path / "diagrams").mkdir()
    (tmp_path / "diagrams" / "draw.py").write_text('DIAGRAMS = {"toy/plot": lambda: "<svg/>"}\n')
    monkeypatch.chdir(tmp_path)
    assert cli.main(["build"]) == 0
    assert cli.main(["build", "--check"]) == 0
    edited = {
        "toy.ipynb": ("twice", "thrice"),
        "README.md": ("| 1 |", "| 2 |"),
        "diagrams/toy/plot.svg": ("svg", "gsv"),
    }
    for name, (old, new) in edited.items():
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new), encoding="utf-8")
    capsys.readouterr()
    assert cli.main(["build", "--check"]) == 1
    says = f"out of date: {', '.join(edited)}. Run python -m puzzles build\n"
    assert capsys.readouterr().err == says
    assert cli.main(["build"]) == 0
    assert notebook.out_of_date(tmp_path, ["toy"]) == []


def test_two_ladders_of_one_order_are_told(rung: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    rung(front=FRONT.format('"toy_warm_up",') + "ORDER = 7\n")
    toy = _ladders.ladder_module("toy")
    modules = {**_ladders._ladder_modules(), "twin": toy}
    monkeypatch.setattr(_ladders, "_ladder_modules", lambda: modules)
    says = "toy/__init__.py:6: twin has this ORDER, too: give each ladder its own"
    assert says in list(tree.front_problems("toy"))


def test_of_51_kinds_of_faults_nearly_all_are_told() -> None:
    for place in ELSEWHERE.values():
        file, _, name = place.partition(".")
        tree_of = ast.parse(Path(__file__).with_name(f"{file}.py").read_text(encoding="utf-8"))
        tests = [one.name for one in tree_of.body if isinstance(one, ast.FunctionDef)]
        assert any(one.startswith(f"test_{name}") for one in tests), place
    told = {fault.kind for fault in PLANTS} | set(ELSEWHERE)
    print(f"{len(told)} of {KINDS} kinds of faults are told, by {len(PLANTS)} plants and more")
    for kind, (why, *_) in UNSEEN.items():
        print(f"not told: {kind}: {why}")
    assert len(told) + len(UNSEEN) == KINDS
    assert len(told) >= 48
    readme = (repository.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Of {KINDS} kinds of faults planted in a new puzzle, {len(told)} are told" in readme
