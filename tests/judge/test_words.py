"""What is said of mistakes that JAX's own words do not explain, or that were once misread."""

from __future__ import annotations

import pytest
from learner import Notebook, edited, solved

import puzzles
from puzzles._judge import judge
from puzzles._judge.source import handed_out

NUMBER = "pl.program_id(0) * pl.num_programs(1) + pl.program_id(1) + 1"
SPEC = "out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))"
SCRATCH = "scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)]"
ZERO = "    @pl.when(pl.program_id(1) == 0)\n    def _():\n"
KEPT = "return product(a, b), (a, b)"
RUN = "    pipeline(x_ref, y_ref, o_ref)"

# A rung, an edit of its answer, and what has to be said of it.
SAID = {
    "a step that is not asked for": ("scale_blocks", NUMBER, "i + 1", "`i = pl.program_id(axis)`"),
    "a number of steps": (
        "scale_blocks",
        NUMBER,
        "pl.program_id(0) * (N // 128) + 1",
        "How many steps an axis of the grid has, `pl.num_programs(axis)` tells",
    ),
    "another size": ("scale_blocks", NUMBER, "N + 1", "The size of a block is in `x_ref.shape`"),
    "a name in an index map": (
        "batched_matmul",
        "(None, M, K), lambda b: (b",
        "(None, M, K), lambda B: (b",
        "`b` is no argument of this index map",
    ),
    "a name in a pipeline's index map": (
        "pipelined_add",
        "lambda i, j: (i, j))\n    pipeline",
        "lambda i, j: (i, q))\n    pipeline",
        "`q` is no argument of this index map",
    ),
    "a name in a backward rule": (
        "trainable_matmul",
        "    a, b = residuals\n",
        "",
        "A backward rule does not see the arguments",
    ),
    "a name in a launch": ("launch_matmul", "K // bk)", "KK // bk)", "need that cell to be run."),
    "the second of two launches": (
        "matmul_gradients",
        "contract=(0, 0)",
        "contract=(1, 1)",
        "in `matmul_gradients_kernel`, launched by `db = pl.pallas_call(`, raises",
    ),
    "three gradients for two arguments": (
        "trainable_matmul",
        "solution(a, b, g)\n",
        "solution(a, b, g) + (g,)\n",
        "The backward rule returns one gradient for each argument of the function",
    ),
    "an index map that is no function": (
        "launch_vector_add",
        "out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j))",
        "out_specs=pl.BlockSpec((bm, bn), (i, j))",
        "An index map is a function, which JAX calls with the program ids",
    ),
    "data for a block's number": (
        "add_reversed_blocks",
        "return (n - 1 - i,)",
        "return y[n - 1 - i]",
        "An index map returns whole numbers, which count blocks",
    ),
    "a fraction for a block's number": (
        "add_reversed_blocks",
        "return (n - 1 - i,)",
        "return ((2 * n - 2 - 2 * i) / 2,)",
        "no fraction (`//` divides)",
    ),
    "square brackets for a program id": (
        "row_sum",
        "pl.program_id(1) == 0",
        "pl.program_id[1] == 0",
        "its axis stands in round brackets, `pl.program_id(0)`",
    ),
    "a right-hand side that keeps its batch axis": (
        "batched_matmul",
        "pl.BlockSpec((None, K, N)",
        "pl.BlockSpec((1, K, N)",
        "The blocks still have their leading axis",
    ),
    "residuals before the result": (
        "trainable_matmul",
        KEPT,
        "return (a, b), product(a, b)",
        "first what the function itself returns, here one array",
    ),
    "a pair for the result": (
        "splash_vjp",
        "    return o, (q, k, v, segment_ids, o, lse)",
        "    return (o, lse), (q, k, v, segment_ids, o, lse)",
        "first what the function itself returns, here one array",
    ),
    "jnp.max of two arrays": (
        "softmax_two_pass",
        "m_ref[...] = jnp.maximum(m_ref",
        "m_ref[...] = jnp.max(m_ref",
        "Of two arrays, element by element: `jnp.maximum(a, b)`",
    ),
    "values for a pipeline": (
        "pipelined_add",
        RUN,
        "    pipeline(x_ref[...], y_ref[...], o_ref)",
        "given to a pipeline, is named and not read",
    ),
    "an axis that a pipeline lacks": (
        "ragged_row_sums",
        "i = pl.program_id(0)  # of the pipeline",
        "i = pl.program_id(1)",
        "the grid is the pipeline's own",
    ),
    "a grid of floats": ("launch_vector_add", "pl.cdiv(M, bm)", "M / bm", "`//`, or by `pl.cdiv`"),
    "pl.when of two": (
        "row_sum",
        ZERO,
        "    @lambda body: pl.when(pl.program_id(1) == 0, body)\n    def _():\n",
        "`@pl.when(condition)` on one line",
    ),
    "a name that pl lacks": (
        "scale_blocks",
        "pl.num_programs(1)",
        "pl.num_program(1)",
        "Did you mean `num_programs`?",
    ),
    "no axis": (
        "scale_blocks",
        "pl.program_id(0)",
        "pl.program_id()",
        "Of which axis of the grid?",
    ),
    "a puzzle for a function": (
        "trainable_matmul",
        'find("matmul_gradients").solution(',
        'find("matmul_gradients")(',
        "the function to call is its `.solution`",
    ),
    "a list for one output": (
        "launch_matmul",
        SPEC,
        SPEC.replace("=", "=[", 1) + "]",
        "With one output, `out_specs` is one `pl.BlockSpec(…)`: no list around it",
    ),
    "a list for one shape": (
        "launch_matmul",
        "out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32)",
        "out_shape=[jax.ShapeDtypeStruct((M, N), jnp.float32)]",
        "with one output, neither has to be",
    ),
    "a tuple for a BlockSpec": (
        "launch_matmul",
        "pl.BlockSpec((bk, bm), lambda i, j, k: (k, i))",
        "((bk, bm), lambda i, j, k: (k, i))",
        "a tuple alone is none",
    ),
    "a scratch too many": (
        "launch_matmul",
        SCRATCH,
        SCRATCH + " * 2",
        "This call gives `launch_matmul_kernel` 5 Refs, and it has parameters for 4",
    ),
    "jnp.dot with a dtype": (
        "tiled_matmul",
        "b_ref[...]",
        "b_ref[...], dtype=jnp.float32",
        "it is `preferred_element_type=jnp.float32`",
    ),
    "a dtype that NumPy does not know": (
        "tiled_matmul",
        "b_ref[...]",
        "b_ref[...], preferred_element_type='f32'",
        "'f32' names no dtype",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_a_mistake_gets_its_own_words(case: str) -> None:
    rung, old, new, says = SAID[case]
    verdict = judge(puzzles.find(rung), edited(rung, (old, new)))
    assert verdict.stage == "error"
    assert says in verdict.says
    assert "read it with `x_ref[...]`" not in verdict.says
    assert "shapes are those of the blocks" not in verdict.says


def test_names_of_ipython_are_not_what_was_meant() -> None:
    notebook = Notebook()
    notebook.run(solved("scale_blocks").replace(NUMBER, "ii + In1"))
    notebook.names |= {"_ii": "", "In": [], "Out": {}, "_i": ""}
    assert "Did you mean" not in judge(puzzles.find("scale_blocks"), notebook["scale_blocks"]).says


# A rung, edits of its answer, what has to be said of it, and what must not.
TOLD = {
    "blocks, where nothing is computed": (
        "choose_blocks",
        (("    return chosen", "    return 128, 128, 128"),),
        "the launch is not what this rung asks for",
        "the numbers are right",
    ),
    "a copy that would have to cast": (
        "stream_sum",
        (("pltpu.VMEM((64, N), x.dtype)", "pltpu.VMEM((64, N), jnp.bfloat16)"),),
        "one end is of float32, the other of bfloat16, and a copy casts nothing",
        "both ends have one shape",
    ),
    "a copy of another shape": (
        "stream_sum",
        (("pltpu.VMEM((64, N), x.dtype)", "pltpu.VMEM((32, N), x.dtype)"),),
        "both ends have one shape",
        "casts",
    ),
    "blocks by pallas_call": (
        "pipelined_add",
        (
            ("pallas_call(\n        pipelined_add_kernel,", "pallas_call(\n        add_blocks,"),
            (
                "in_specs=[pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pl.ANY)],",
                "in_specs=[pl.BlockSpec((64, 128), lambda i, j: (i, j))] * 2,",
            ),
            (
                "out_specs=pl.BlockSpec(memory_space=pl.ANY)",
                "grid=(x.shape[0] // 64, x.shape[1] // 128),\n"
                "        out_specs=pl.BlockSpec((64, 128), lambda i, j: (i, j))",
            ),
        ),
        "`x_block` comes and goes in blocks by `pallas_call`",
        "as a whole",
    ),
    "work outside": (
        "add_ten",
        ((")(x)", ")(x) + 0 * x"),),
        "as far as they cost no more than the reference's",
        "no work",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_is_said_is_true_of_the_answer(case: str) -> None:
    rung, edits, says, never = TOLD[case]
    verdict = str(judge(puzzles.find(rung), edited(rung, *edits)))
    assert says in verdict
    assert never not in verdict


def test_only_functions_without_a_gap_are_handed_out() -> None:
    lines = handed_out(puzzles.find("flash_attention"))
    assert "p = jnp.exp(s - m_new)" in lines
    assert "return pl.pallas_call(" not in lines
    assert "p = jnp.exp(s - m_new)" not in handed_out(puzzles.find("attention_one_block"))
