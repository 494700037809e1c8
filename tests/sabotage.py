"""Faults planted in right kernels, JAX's own among them: what `examine` has to find and to name."""

from __future__ import annotations

import importlib
import itertools
import linecache
import types
from dataclasses import dataclass
from pathlib import Path

import launches
import production
from production import FLASH, GMM, MATMUL, PAGED, SPLASH

from puzzles import Finding

_numbers = itertools.count()


@dataclass(frozen=True)
class Planted:
    """`old` becomes `new` in the text of a kernel; the finding has `kind`, and names `about`.

    place: a module of JAX's, or "launches". about: the operand, or words of what it says.
    """

    place: str
    make: str
    old: str
    new: str
    kind: str
    about: str

    @property
    def name(self) -> str:
        what = self.new.strip() or f"without {self.old.strip()}"
        return f"{self.make}: {' '.join(what.split())}"

    def found_by(self, finding: Finding) -> bool:
        """Whether a finding is of this fault, and names it."""
        named = finding.operand == self.about or self.about in finding.words
        return finding.kind == self.kind and named

    def launch(self) -> tuple:
        """(function, *arguments) with the fault in it."""
        if self.place == "launches":
            return getattr(edited(launches, self.old, self.new), self.make)()
        module = edited(importlib.import_module(self.place), self.old, self.new)
        return getattr(production, self.make)(module)


def edited(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """A module with the first `old` in its text changed, run anew."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert old in text, old
    text = text.replace(old, new, 1)
    file = f"<{module.__name__.rpartition('.')[2]} {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    copy = types.ModuleType(module.__name__)
    copy.__file__ = module.__file__
    exec(compile(text, file, "exec"), copy.__dict__)
    return copy


def own(make: str, old: str, new: str, kind: str, about: str) -> Planted:
    return Planted("launches", make, old, new, kind, about)


_TWO_WAIT = "        fetch(step, step % 2).wait()\n"
_ZEROED = "        acc_ref[...] = jnp.zeros_like(acc_ref)\n\n    acc_ref[...] +="
_SUMMED = "            o_ref[...] = jnp.zeros_like(o_ref)\n\n        row ="
_FULL_ROWS = "inside = jnp.where(row < 30, x_ref[...], 0.0)"
_OVER_ROWS = "pl.BlockSpec((bm, width), lambda i: (i, 0))"
_A_MAP, _O_MAP = "lambda i, j, k: (i, k)", "lambda i, j, k: (i, j)"
_COPIED = "        copy = pltpu.make_async_copy(x_ref, o_ref, semaphore)\n        copy.start()\n"

PLANTED = (
    # index maps
    own("matmul", _A_MAP, "lambda i, j, k: (i, k + 1)", "out-of-bounds", "a_ref"),
    own("matmul", _A_MAP, "lambda i, j, k: (i, k - 1)", "out-of-bounds", "a_ref"),
    own("matmul", _A_MAP, "lambda i, j, k: (i * bm, k)", "out-of-bounds", "a_ref"),
    own("matmul", _O_MAP, "lambda i, j, k: (i, 0)", "never-written", "o_ref"),
    own("matmul", _O_MAP, "lambda i, j, k: (k, j)", "revisited", "o_ref"),
    own("matmul", "grid=(m // bm,", "grid=(m // bm - 1,", "never-written", "o_ref"),
    own("scale_rows", _OVER_ROWS, "pl.BlockSpec((bm, width), lambda i: (3 - 2 * i, 0))",
        "out-of-bounds", "x_ref"),
    own("picked_blocks", "(index_ref[i], 0)", "(index_ref[i + 1], 0)", "out-of-bounds",
        "index_ref"),
    own("picked_blocks", "[5, 0, 0, 7]", "[5, 0, 0, 8]", "out-of-bounds", "x_ref"),
    own("masked_blocks", "lambda i, j: (i, 0)),\n            out_shape=S((32, 128), f32),",
        "lambda i, j: (j, 0)),\n            out_shape=S((32, 128), f32),", "revisited", "o_ref"),
    own("squeezed_batch", "lambda b, i: (b, 0, i)", "lambda b, i: (0, 0, i)", "never-written",
        "o_ref"),
    # memory read before it is written
    own("matmul", _ZEROED, "        pass\n\n    acc_ref[...] +=", "uninitialised", "acc_ref"),
    own("ragged_sum", _SUMMED, "            pass\n\n        row =", "uninitialised", "o_ref"),
    own("ragged_sum", _FULL_ROWS, "inside = x_ref[...]", "uninitialised", "x_ref"),
    own("matmul", "== pl.num_programs(2) - 1", "== pl.num_programs(2)", "uninitialised", "o_ref"),
    own("running_sum", "@pl.when(i == 0)", "@pl.when(i == 1)", "uninitialised", "acc_ref"),
    own("add_vectors", "o_ref[...] = x_ref[...] + y_ref[...]", "o_ref[:4] = x_ref[:4]",
        "uninitialised", "o_ref"),
    # copies
    own("one_copy", _COPIED + "        copy.wait()\n", _COPIED, "hazard", "copy.start()"),
    own("one_copy", _COPIED, "        copy = pltpu.make_async_copy(x_ref, o_ref, semaphore)\n",
        "hazard", "not on its way"),
    own("two_buffers", _TWO_WAIT, "", "hazard", "buffers"),
    own("two_buffers", _TWO_WAIT, "        fetch(step, (step + 1) % 2).wait()\n", "hazard",
        "buffers"),
    own("two_buffers", "fetch(step + 1, (step + 1) % 2).start()",
        "fetch(step + 1, step % 2).start()", "hazard", "buffers"),
    own("two_buffers", "@pl.when(step + 1 < steps)", "@pl.when(step < steps)", "out-of-bounds",
        "x_ref"),
    own("two_buffers", "semaphores.at[slot])", "semaphores.at[0])", "hazard", "buffers"),
    own("scoped_copy", "            copy.wait()\n            o_ref", "            o_ref", "hazard",
        "buffer"),
    # parallel axes
    own("matmul", '"parallel", "arbitrary")', '"parallel", "parallel")', "parallel", "o_ref"),
    own("matmul", '("parallel", "parallel", "arbitrary")', '("arbitrary", "parallel")',
        "parallel", "3 axes"),
    own("running_sum", '("arbitrary",)', '("parallel",)', "parallel", "o_ref"),
    own("masked_blocks", "@pl.when(j == 0)", "@pl.when((i == 0) & (j == 0))", "parallel", "o_ref"),
    own("masked_blocks", '("parallel", "arbitrary")', '("parallel", "parallel")', "parallel",
        "o_ref"),
    # what a TPU refuses
    own("matmul", "bm=128, bk=128, bn=128", "bm=128, bk=96, bn=128", "misaligned", "a_ref"),
    own("ragged_rows", "rows(n, bm=8, width=128)", "rows(n, bm=5, width=128)", "misaligned",
        "x_ref"),
    own("softmax_rows", "jnp.max(x_ref[...], axis=1, keepdims=True)",
        "jnp.cumsum(x_ref[...], axis=1)", "lowering", "cumsum"),
    own("softmax_rows", "S((32, 128), f32)\n\n\ndef squeezed",
        "S((32, 128), jnp.float16)\n\n\ndef squeezed", "compile", "float16"),
    own("one_copy", _COPIED, "        o_ref[...] = x_ref[...]\n" + _COPIED, "lowering", "x_ref"),
    own("matmul", "preferred_element_type=f32)\n\n    @pl.when(pl.program_id(2) == pl",
        "preferred_element_type=bf16)\n\n    @pl.when(pl.program_id(2) == pl", "lowering",
        "accumulates in 32 bits"),
    own("large_blocks", "bm = 1024", "bm = 4096", "vmem", "16 MiB"),
    own("picked_blocks", "jnp.array([5, 0, 0, 7], i32)",
        "jnp.zeros((2**19,), i32)", "smem", "SMEM"),
    # aliases
    own("in_place", "in_specs=rows(1), out_specs=rows(1)[0],\n            out_shape=S(x.shape, "
        "x.dtype), input", "in_specs=[pl.BlockSpec((8, 128), lambda i: (i // 2, 0))], "
        "out_specs=rows(1)[0],\n            out_shape=S(x.shape, x.dtype), input", "alias",
        "x_ref"),
    own("add_vectors", "o_ref[...] = x_ref[...] + y_ref[...]",
        "x_ref[...] += y_ref[...]\n        o_ref[...] = x_ref[...]", "alias", "x_ref"),
    own("filled_elsewhere", ", input_output_aliases={1: 0}", "", "never-written", "o_ref"),
    # JAX's own
    Planted(GMM, "gmm", "acc_scratch[...] = jnp.zeros_like(acc_scratch)", "pass",
            "uninitialised", "acc_scratch"),
    Planted(GMM, "gmm", "return m_tile_ids[grid_id], k_i", "return m_tile_ids[grid_id] + 1, k_i",
            "out-of-bounds", "lhs"),
    Planted(GMM, "gmm", "return m_tile_ids[grid_id], n_i",
            "return group_metadata[1][grid_id], n_i", "out-of-bounds", "out"),
    Planted(GMM, "gmm", '"parallel", "arbitrary", "arbitrary"',
            '"parallel", "arbitrary", "parallel"', "parallel", "out"),
    Planted(MATMUL, "matmul", "l, r = block_shape", "l, r = 100, 128", "misaligned", "x_tile_ref"),
    Planted(MATMUL, "matmul", "acc_ref[...] = jnp.zeros_like(acc_ref)", "pass", "uninitialised",
            "acc_ref"),
    Planted(MATMUL, "matmul", "lambda _, j, k: (k, j)", "lambda _, j, k: (j, k)", "out-of-bounds",
            "y_tile_ref"),
    Planted(MATMUL, "matmul", '"parallel", "parallel", "arbitrary"',
            '"parallel", "parallel", "parallel"', "parallel", "o_tile_ref"),
    Planted(FLASH, "flash_gradient", "dk_scratch_ref[:, :] = jnp.zeros(", "_ = jnp.zeros(",
            "uninitialised", "dk_scratch_ref"),
    Planted(SPLASH, "splash", "    o_scratch_ref[...] = jnp.zeros_like(o_scratch_ref)", "    pass",
            "uninitialised", "o_scratch_ref"),
    Planted(SPLASH, "splash", "l_scratch_ref[...] = jnp.zeros_like(l_scratch_ref)", "pass",
            "uninitialised", "l_scratch_ref"),
    # Its slot is kept in SMEM and so unknown: the semaphore is told, not the slot.
    Planted(PAGED, "paged", "k = async_copy_k.wait_and_get_loaded()",
            "k = async_copy_k._vmem_buffer[...].astype(jnp.float32).reshape(-1, 128)",
            "hazard", "a semaphore that is not back at zero"),
    Planted(PAGED, "paged", "      async_copy_next_v.start()\n", "      pass\n", "hazard",
            "not on its way"),
)  # fmt: skip
