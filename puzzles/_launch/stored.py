"""Which rows of an output's block a step stores, where a mask keeps the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._jax import JaxprEqn
from puzzles._launch.evaluate import Walk
from puzzles._launch.operand import spread
from puzzles._launch.smem import Buffer

_MASK = 1 << 17  # own elements of a mask, and of what it is made from
_ALL = 1 << 22  # of them over all steps
_CASTS = ("convert_element_type", "copy", "reduce_precision")


@dataclass(frozen=True)
class _Held:
    """What a ref held, or with `mask`, over the grid, something new where that is true."""

    ref: Buffer
    mask: np.ndarray | None = None

    def but(self, new: np.ndarray, rank: int) -> _Held:
        """The same with something new where `new` is true, unless it is so for all rows alike."""
        own = tuple(range(rank, new.ndim))
        if not own or (new.all(axis=own) == new.any(axis=own)).all():
            return self
        return _Held(self.ref, new if self.mask is None else new | self.mask)


class RowWalk(Walk):
    """A walk that knows masks of whole blocks; `rows` are (output, rows stored, weight)."""

    def __init__(self, grid: tuple[int, ...], axes: Sequence[int], outputs: Sequence[Any]) -> None:
        super().__init__(grid, axes)
        self.outputs = [one for one in outputs if isinstance(one, Buffer)]
        self.rows: list[tuple[str, np.ndarray, np.ndarray]] = []

    def step(
        self, equation: JaxprEqn, values: list[Any], weight: np.ndarray, path: tuple
    ) -> list[Any]:
        name = equation.primitive.name
        if name in _CASTS and isinstance(values[0], _Held):
            return [values[0]]
        if name == "select_n" and len(values) == 3 and isinstance(values[0], np.ndarray):
            mask, *cases = values  # case 1 is where the mask is true
            for case, new in zip(cases, (mask, ~mask.astype(bool)), strict=True):
                if isinstance(case, _Held):
                    return [case.but(new.astype(bool), self.rank)]
        return super().step(equation, values, weight, path)

    def worth(self, equation: JaxprEqn, values: list[Any]) -> bool:
        """Small values, and integers and booleans as large as a block."""
        if super().worth(equation, values):
            return True
        if equation.effects or not all(isinstance(v, np.ndarray) for v in values):
            return False
        avals = [v.aval for v in equation.outvars]
        if any(a.dtype.kind not in "biu" or a.size > _MASK for a in avals):
            return False
        lead = np.broadcast_shapes(*(v.shape[: self.rank] for v in values))
        return all(a.size * np.prod(lead, dtype=np.int64) <= _ALL for a in avals)

    def _get(
        self, equation: JaxprEqn, values: list[Any], weight: np.ndarray, path: tuple
    ) -> list[Any]:
        whole = equation.outvars[0].aval.shape == equation.invars[0].aval.shape
        if values[0] in self.outputs and whole:
            return [_Held(values[0])]
        return super()._get(equation, values, weight, path)

    def _swap(
        self, equation: JaxprEqn, values: list[Any], weight: np.ndarray, path: tuple
    ) -> list[Any]:
        new = values[1] if len(values) > 1 else None
        if isinstance(new, _Held) and new.mask is not None and new.ref == values[0]:
            rows = new.mask.astype(bool)
            own = rows.ndim - self.rank
            if own > 1:
                rows = np.asarray(rows.any(axis=tuple(range(self.rank + 1, rows.ndim))))
            if own:
                self.rows.append((new.ref.name, rows, weight[0]))
        return super()._swap(equation, values, weight, path)


def stored_rows(walk: RowWalk) -> dict[str, np.ndarray]:
    """Of each output, (steps, 2): the first row that a step stores and the one after the last.

    (-1, -1) where it stores all of its block, or none, or rows that are not side by side.
    """
    found: dict[str, np.ndarray] = {}
    for name, rows, weight in walk.rows:
        size = rows.shape[-1]
        first, count = rows.argmax(axis=-1), rows.sum(axis=-1)
        after = size - rows[..., ::-1].argmax(axis=-1)
        first, after = np.where(count == 0, 0, first), np.where(count == 0, 0, after)
        sure = (after - first == count) & (weight > 0)
        one = [spread(np.where(sure, edge, -1), walk.grid) for edge in (first, after)]
        here = np.stack(one, axis=1)
        before = found.get(name)
        found[name] = here if before is None else np.where(here >= 0, here, before)
    return found
