"""Pages, tables and lengths for the cases of several puzzles, and what they need at least."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles import array


def check_lengths(lengths: Any, table: Any, page: int) -> None:
    """Raise ValueError if a length is negative or its row of the table has too few pages.

    Under `jit` the lengths are traced, and nothing is checked.
    """
    if isinstance(lengths, jax.core.Tracer | jax.ShapeDtypeStruct):
        return
    most = table.shape[1] * page
    for b, length in enumerate(np.asarray(lengths)):
        if not 0 <= length <= most:
            raise ValueError(
                f"lengths[{b}] is {length}: the table has {table.shape[1]} pages of {page} keys "
                f"for each sequence, so a length is 0 to {most}"
            )


def table_for(
    r: np.random.Generator, lengths: tuple[int, ...], page: int, pages: int, each: int, shared: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(a shuffled table, how many rows of each page count); beyond a length, any page is named.

    shared: the first page of the first sequence that has one is also the second such sequence's.
    """
    table = r.integers(0, pages, (len(lengths), each))
    free = iter(r.permutation(pages))
    rows = np.zeros(pages, int)
    first = None
    for b, length in enumerate(lengths):
        for i in range(-(-length // page)):
            table[b, i] = first if shared and first is not None and i == 0 else next(free)
            rows[table[b, i]] = max(rows[table[b, i]], min(page, length - i * page))
            first = table[b, 0] if first is None else first
    return table.astype(np.int32), rows


def spoiled(
    r: np.random.Generator, pages: np.ndarray, rows: np.ndarray, garbage: float, dtype: str
) -> Any:
    """`pages` (..., P, page, H) with about `garbage` in all rows that nobody uses: 50 times as much
    behind a text's last key, where a mask decides and no table.
    """
    page = pages.shape[-2]
    for number, count in enumerate(rows):
        rest = page - count
        tail = r.uniform(50, 100, (rest, pages.shape[-1])) * r.choice([-1, 1], (rest, 1))
        pages[..., number, count:, :] = garbage * (tail if count else tail / 50)
    return array(pages, dtype)


def drawn(
    r: np.random.Generator,
    lengths: tuple[int, ...],
    page: int,
    pages: int,
    each: int,
    garbage: float,
    shared: bool,
    heads: tuple[int, ...] = (),
    queries: int = 1,
    H: int = 128,
    dtype: str = "float32",
) -> tuple:
    """(q, k_pages, v_pages, lengths, table) of a case; `heads` are axes before the pages.

    The scores of the first sequence that has any jump from page to page, in the next they lie far
    above 0, in the next far below, all alike; then near 0. So do those of one query after another.
    q and k are eighths of small integers: a dot of them is exact, in whatever order it is summed,
    and bf16 holds them, too.
    """
    table, rows = table_for(r, lengths, page, pages, each, shared)
    q = np.round(8 * r.normal(size=(len(lengths), queries, H))) / 8
    kinds = (np.cumsum(np.array(lengths) > 0)[:, None] - 1 + np.arange(queries)) % 4
    q[kinds == 2] = 0
    q[..., 0], q[..., 1] = np.choose(kinds, (0, 200, -(2**21), 0)), 96 * (kinds == 0)
    k, v = r.normal(size=(2, *heads, pages, page, H))
    k = np.round(8 * k) / 8
    k[..., 0], k[..., 1] = 8, r.choice([-8, 8], (*heads, pages, 1))
    k, v = (spoiled(r, x, rows, garbage, dtype) for x in (k, v))
    q, lengths = array(q, dtype), array(lengths, jnp.int32)
    return q, k, v, lengths, array(table, jnp.int32)


def pages_needed(lengths: Any, page: int, window: int | None = None) -> int:
    """How many pages hold rows that count, over all sequences; with a window, its last rows do."""
    ends = np.asarray(lengths)
    first = 0 if window is None else np.maximum(ends - window, 0) // page
    return int((-(-ends // page) - first).sum())


def fetches_no_more(
    launch: Any,
    lengths: Any,
    page: int,
    heads: int = 1,
    idle: int = 0,
    arrays: int = 2,
    window: int | None = None,
) -> None:
    """Asserts that no more pages are fetched than the lengths need.

    idle: what a sequence without pages may fetch. arrays: 2 of keys and of values, or 1 of both.
    """
    empty = int((np.asarray(lengths) == 0).sum())
    needed = arrays * heads * pages_needed(lengths, page, window)
    most = needed + arrays * heads * idle * empty
    one = [o for o in launch.inputs if len(o.shape) > 2 and o.shape[-2] == page][-2:]
    fetched = sum(o.hbm_bytes // (np.dtype(o.dtype).itemsize * page * o.shape[-1]) for o in one)
    assert fetched <= most, (
        f"{fetched} pages are fetched, but these lengths need only {needed}"
        + (f", or {most} with one of each array for each empty sequence" if idle else "")
        + ": fetch each page with keys that count once, for all heads that it serves, and no other"
        + (". A step past a sequence's last page names that page again" if idle else "")
        + (f"; a sequence of {page} keys has only one page" if idle else "")
    )


def afresh(r, other: dict, lengths: tuple, **shapes) -> dict:
    """Dims of a drawn case: mostly the first case's shapes, whose programs are compiled by now.

    The lengths of the texts are data. other: lengths and shapes that no listed case has, now and then.
    """
    dims = (
        other if r.integers(4) == 0 else dict(lengths=lengths[r.integers(len(lengths))], **shapes)
    )
    return dict(dims, garbage=float("nan"), shared=False)
