"""The line that makes an answer wrong is found, whatever the names of the learner's variables."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
import sample
from learner import edited, judged

import puzzles
from puzzles import _regions
from puzzles._judge import judge, judging
from puzzles._judge.answer import Answer
from puzzles._judge.explain import by_exchange
from puzzles._judge.explain.by_exchange import _grows
from puzzles._judge.explain.written import Written
from puzzles._puzzle import Mistake, Puzzle, load, variant

GOLDEN = Path(__file__).parents[1] / "verdicts" / "collectives"
FOUND = re.compile(r"(?:changing|deleting|adding|moving) (?:it|that line|that part|these)")


def with_a_line() -> list[tuple[Puzzle, Mistake]]:
    """The known mistakes of collectives with a line as the likely cause, and their puzzles."""
    pairs = []
    for path in sorted(GOLDEN.glob("*.txt")):
        puzzle = puzzles.find(path.stem)
        verdicts = dict(part.partition("\n")[::2] for part in path.read_text().split("\n\n"))
        told = {name for name, text in verdicts.items() if FOUND.search(" ".join(text.split()))}
        pairs += [(puzzle, m) for m in puzzle.mistakes if m.name in told]
    return pairs


def renamed(puzzle: Puzzle, mistake: Mistake) -> str:
    """The module's text with the mistake, and with other names of the learner's variables."""
    lines = mistake.apply(puzzle.text).splitlines()
    spans = _regions.regions("\n".join(lines))
    written = [n for span in spans for n in range(span.first - 1, span.last)]
    given = "\n".join(line for n, line in enumerate(lines) if n not in written)
    names = {
        node.id
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if node.lineno - 1 in written
    } - set(re.findall(r"\w+", given))
    for n in written:
        for name in names:
            lines[n] = re.sub(rf"(?<![.\w]){name}\b", f"the_{name}", lines[n])
    return "\n".join(lines)


PAIRS = with_a_line()


def test_many_known_mistakes_have_a_line() -> None:
    assert len(PAIRS) > 60
    assert len({puzzle.name for puzzle, _ in PAIRS}) > 10


@pytest.mark.parametrize(
    ("puzzle", "mistake"), sample.share(PAIRS, 6), ids=lambda x: x.name.replace(" ", "_")
)
def test_a_line_is_found_under_other_names(puzzle: Puzzle, mistake: Mistake) -> None:
    answer = load(puzzle, renamed(puzzle, mistake), f"renamed {mistake.name}")[puzzle.name]
    assert FOUND.search(judge(puzzle, answer).first or "")


PRODUCT = "chunk = product(lax.rem(me - i - 2 + 2 * n, n))"
ADDED = "slots_ref[there] += chunk"


@pytest.mark.parametrize(
    ("wrong", "right", "part"),
    [
        ("s = i * (m - i)", "s = i * (m + i)", "m - i"),
        ("send(a, b, to=(left,))", "send(a, b, to=(right,))", "to=(left,)"),
        ("send(a[k, 0], b)", "send(a[k, n], b)", "a[k, 0]"),
        ("when(i <= n)(f)", "when(i < n)(f)", "i <= n"),
        ("c.wait_send()", "c.wait()", "c.wait_send"),
        ("c = f(x)", "c = g(y, x)", ""),  # the whole value: the line says as much
        ("c = f(x - 1, y - 1)", "c = f(x, y)", ""),  # two parts
    ],
)
def test_the_part_of_a_line_that_is_wrong_is_named(wrong: str, right: str, part: str) -> None:
    before, after = (f"def f(m, i):\n    x = 0\n    {line}" for line in (wrong, right))
    tree = ast.parse(before).body[0]
    assert isinstance(tree, ast.FunctionDef)
    assert Written(before, tree, frozenset()).changed_part(after) == part


@pytest.mark.parametrize("name", ["mine", "new", "rows_of_step", "p"])
@pytest.mark.parametrize("block", ["right", "i", "(me + i) % n"])
def test_a_variable_is_known_by_its_use(name: str, block: str) -> None:
    line = f"{name} = product({block})"
    verdict = judged(
        "matmul_reduce_scatter", (PRODUCT, line), (ADDED, ADDED.replace("chunk", name))
    )
    assert re.search(f"look at (`.*` in )?`{re.escape(line)}`: changing", str(verdict.first))


def test_an_expression_is_exchanged_in_a_statement_that_no_right_answer_has() -> None:
    line = "scores = jnp.where((owner < me) | (row <= column), s * H**-0.5, -1e9)"
    verdict = judged(
        "ring_attention",
        ("s = jnp.where((owner < me) | (row >= column), s * H**-0.5, -jnp.inf)", line),
        ("jnp.max(s, axis=1", "jnp.max(scores, axis=1"),
        ("jnp.exp(s - m)", "jnp.exp(scores - m)"),
    )
    assert f"look at `row <= column` in `{line}`: changing that part" in str(verdict.first)


def test_two_statements_in_the_wrong_order_are_to_be_exchanged() -> None:
    verdict = judged(
        "matmul_reduce_scatter",
        (f"        copy.wait()\n        {ADDED}\n", f"        {ADDED}\n        copy.wait()\n"),
    )
    assert f"the order of `{ADDED}` and the next statement: exchanging" in str(verdict.first)


def test_a_line_that_uses_wrong_variables_is_not_blamed_alone() -> None:
    chunk = "back = 2 * i\n        chunk = x_ref[lax.rem(me - back + 2 * n, n)]\n        "
    right = "slots_ref[there] += x_ref[lax.rem(me - i - 2 + 2 * n, n)]"
    verdict = judged("ring_reduce_scatter", (right, chunk + "slots_ref[there] += chunk"))
    assert "at the lines that set `back` and `chunk`: changing these" in str(verdict.first)


@pytest.mark.parametrize(("call", "grows"), [("copies.append(copy)", True), ("f(copy)", False)])
def test_no_exchange_runs_forever(call: str, grows: bool) -> None:
    """A right answer appends to a list; with the learner's loop over it, it never ends."""
    assert any(map(_grows, ast.walk(ast.parse(f"for copy in copies: {call}")))) == grows
    assert any(map(_grows, ast.walk(ast.parse(f"while True: {call}"))))


def test_a_statement_that_is_missing_has_its_place() -> None:
    store = "o_ref[...] = acc_ref[...].astype(o_ref.dtype)"
    verdict = judged("grouped_outer", (store, "pass  # not written yet"))
    assert "something is missing in place of `pass`: adding it alone" in str(verdict.first)


def test_an_output_without_a_store_comes_before_the_first_nan() -> None:
    verdict = judged("attention_dq", ("dq_ref[...] = acc_ref[...].astype(dq_ref.dtype)", "pass"))
    assert "nothing is ever stored in `dq_ref`" in str(verdict.first)


def test_an_exchange_that_is_right_in_a_square_case_only_is_no_cause() -> None:
    spec = "            pl.BlockSpec((bm, bn), lambda i, j: (i, j)),\n"
    verdict = judged(
        "launch_vector_add",
        ("grid=(pl.cdiv(M, bm), pl.cdiv(N, bn))", "grid=(pl.cdiv(N, bn), pl.cdiv(M, bm))"),
        (2 * spec, 2 * spec.replace("(i, j)", "(j, i)")),
    )
    # The grid and both inputs' maps could be changed as well: a single line comes first.
    line = "out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),"
    assert f"look at `{line}`: changing that line" in " ".join(str(verdict.first).split())


def only_line(monkeypatch: pytest.MonkeyPatch, puzzle: str, mistake: str) -> str:
    """The line that the search for a line names, without the known mistakes."""
    monkeypatch.setattr(judging, "EXPLAINERS", (("first", by_exchange.line_exchanged),))
    found = puzzles.find(puzzle)
    return str(judge(found, variant(found, found.mistake(mistake))).first)


@pytest.mark.parametrize(
    ("puzzle", "mistake", "right"),
    [
        # The launch is given. Other index maps would make up for the list.
        ("local_experts", "numbers groups as in the whole layer", "pl.pallas_call("),
        # Another first slot would make up for the order.
        ("gapless_attention", "reads the slot after it has flipped", "slot_ref[0] = 0"),
    ],
)
def test_a_right_line_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, puzzle: str, mistake: str, right: str
) -> None:
    assert right not in only_line(monkeypatch, puzzle, mistake)


def test_a_call_without_an_argument_is_shown_as_a_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = only_line(monkeypatch, "launch_pipeline", "builds the pipeline and never runs it")
    assert "look at `pltpu.emit_pipeline(…)`: changing this statement alone" in first


@pytest.mark.parametrize(("grid", "right"), [("(M // bm, N // bn)", True), ("(3, 2)", False)])
def test_an_exchange_is_right_in_the_random_case_as_well(grid: str, right: bool) -> None:
    swapped = edited("outer_product", ("grid=(M // bm, N // bn)", "grid=(N // bn, M // bm)"))
    run = Answer(puzzles.find("outer_product"), swapped, seed=4).runs[0]  # then N is larger than M
    source = inspect.getsource(swapped).replace("(N // bn, M // bm)", grid)
    exchange = by_exchange._Exchange(source, "line_exchanged_replace", f"grid={grid},")
    assert by_exchange._right_as(run, "outer_product", exchange) is right


def test_a_function_without_a_kernel_gets_a_line() -> None:
    s = "s = jnp.dot(q, k.T) * q.shape[1] ** -0.5"
    shift = "p = jnp.exp(s - jnp.max(s, axis=1, keepdims=True))"
    verdict = judged(
        "attention",
        (s, "s = jnp.minimum(jnp.dot(q, k.T) * q.shape[1] ** -0.5, 80)"),
        (shift, "p = jnp.exp(s)"),
    )
    assert "look at `" in str(verdict.first)


def test_garbage_beyond_an_edge_is_named() -> None:
    sums = "o_ref[...] += jnp.where(j * bn < N, jnp.sum(x_ref[...], axis=1, keepdims=True), 0)"
    verdict = judged("ragged_row_sum", ("o_ref[...] += jnp.sum(x, axis=1, keepdims=True)", sums))
    assert "the block of `x_ref` at grid step (0, 2) reaches beyond the edge" in str(verdict.first)
