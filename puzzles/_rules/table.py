"""Every rule by which an answer is refused: its name, the stage at which it speaks, what it asks.

A refusal names one of them, and the stage follows. `python -m puzzles rules` prints how many
mistakes on record each decides; one that decides none says here why it stays.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """stage: of a verdict. asks: what has to hold. why: why it stays though it decides nothing."""

    stage: str
    asks: str
    why: str = ""


RULES: dict[str, Rule] = {
    # not solved yet
    "untouched": Rule("unsolved", "something is filled in"),
    "ellipsis-left": Rule(
        "unsolved",
        "no `...` stands for a value",
        "the only word for a gap that is filled in halfway",
    ),
    # it runs as Python
    "raises": Rule("error", "it raises no exception"),
    "unreadable": Rule("error", "its launches can be read"),
    "negative-grid": Rule(
        "error",
        "no axis of a grid is negative",
        "the only word for a grid that is counted with a difference, as `(M - bm) // bm - 1`",
    ),
    "empty-grid": Rule(
        "error",
        "a grid that has to write something has steps",
        "the only word for `N // bn` where a block is longer than its axis",
    ),
    "map-asks": Rule(
        "error",
        "an index map gets program ids and does not ask for them",
        "the only word for `pl.program_id` in an index map: the CPU answers, Mosaic refuses",
    ),
    "scope-asks": Rule(
        "error",
        "program ids are asked for outside of `pl.run_scoped`",
        "the only word for `pl.program_id` inside `pl.run_scoped`, which the CPU refuses",
    ),
    "calls-spec": Rule(
        "error",
        "it does not call the spec that it is compared with",
        "the only word for who tries all blocks and asks the spec of choose_blocks",
    ),
    "unequal-copy": Rule(
        "error",
        "both ends of a copy hold equally much",
        "the only word for a copy between slices of two lengths, which JAX may let pass",
    ),
    # the work is in a kernel
    "no-kernel": Rule("pallas", "there is a `pallas_call`"),
    "work-outside": Rule("pallas", "the work is done in the kernel"),
    # the numbers
    "none": Rule("values", "it returns something", "the only word for a forgotten `return`"),
    "structure": Rule("values", "it returns what the spec returns: one array, or a tuple of some"),
    "order": Rule("values", "results come in the spec's order"),
    "shape": Rule("values", "results have the spec's shapes"),
    "dtype": Rule("values", "results have the spec's dtypes"),
    "numbers": Rule("values", "the numbers are the spec's"),
    "rounded-twice": Rule("values", "a narrow result is rounded once"),
    "not-accepted": Rule("values", "the rung's own predicate accepts the result"),
    # memory
    "out-of-bounds": Rule("memory", "blocks and slices lie within their arrays"),
    "never-written": Rule(
        "memory",
        "every block of an output is written",
        "the only word for a grid that is a block short at production scale alone",
    ),
    "revisited": Rule("memory", "a block of an output is held in consecutive steps"),
    "alias": Rule(
        "memory",
        "an aliased array is read before it is overwritten",
        "the only word for an aliased array that is read after its block was written",
    ),
    "promise": Rule("memory", "what `pl.multiple_of` promises holds"),
    "parallel-state": Rule("memory", "steps of a parallel axis share nothing"),
    "hazard": Rule("memory", "a buffer is left alone while a copy is in flight"),
    "not-a-slice": Rule("memory", "a Ref in HBM is copied, not indexed"),
    "simulator": Rule(
        "memory",
        "JAX's simulator of a TPU runs it",
        "what JAX's simulator stops at for a reason of its own has to be told",
    ),
    "other-in-simulator": Rule("memory", "the numbers are the same on a simulated TPU"),
    # the launch
    "parallel": Rule(
        "work",
        "`dimension_semantics` says what a TPU takes",
        "the only word for `dimension_semantics` with too few words, or of a misspelt one",
    ),
    "long-loop": Rule(
        "work",
        "loops count blocks",
        "the only word for a loop over elements, which would take hours",
    ),
    "large-grid": Rule(
        "work",
        "a grid counts blocks",
        "the only word for a grid that counts elements, which would take hours",
    ),
    "grown-kernel": Rule(
        "work",
        "a kernel is no unrolled loop",
        "the only word for a Python loop over elements in a kernel, which compiles for minutes",
    ),
    "unrolled": Rule(
        "work",
        "under `jit` no Python loop goes through elements",
        "the only word for a Python loop over elements under `jax.jit`",
    ),
    "loop-of-launches": Rule(
        "work",
        "how often a kernel is launched is known",
        "the only word for a `pallas_call` inside of `jax.lax.while_loop`",
    ),
    "launches": Rule("work", "there are as many launches as the rung asks for"),
    "audit": Rule("work", "the rung's own audit holds"),
    "audit-unreadable": Rule(
        "work",
        "the rung's audit finds the operands that it asks about",
        "the only word for a launch with other operands than a rung's audit reads",
    ),
    "rounds-on-the-way": Rule("work", "at production scale nothing is rounded on the way"),
    "cost-count": Rule("work", "at production scale: no more launches"),
    "cost-outside": Rule("work", "at production scale: no more is made outside of kernels"),
    "cost-vmem": Rule("work", "at production scale: blocks fit VMEM"),
    "cost-dot_flops": Rule("work", "at production scale: no more multiplications"),
    "cost-transcendentals": Rule("work", "at production scale: no more exps"),
    "cost-idle": Rule("work", "at production scale: no more steps without work"),
    "cost-transfers": Rule("work", "at production scale: no more blocks fetched and written"),
    "cost-bytes": Rule("work", "at production scale: no more bytes moved"),
    "cost-steps": Rule(
        "work",
        "at production scale: no more grid steps",
        "a row of the table of costs: more steps on the same blocks",
    ),
    "cost-smem": Rule(
        "work",
        "at production scale: prefetched numbers fit SMEM",
        "a row of the table of costs: a prefetched list that outgrows SMEM",
    ),
    "cost-with_dots": Rule("work", "at production scale: no more steps with multiplications"),
    # a TPU takes it
    "misaligned": Rule("tpu", "blocks are legal on a TPU"),
    "lowering": Rule("tpu", "Mosaic lowers it"),
    "compile": Rule(
        "tpu",
        "libtpu compiles it",
        "`verify` asks libtpu of solutions and alternatives, `check` with PUZZLES_TPU=1",
    ),
}
