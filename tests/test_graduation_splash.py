"""splash_multi_head is as good as the attention that JAX ships: over masks that nobody tuned for.

Head counts, dtypes, caps, segments and tolerance are those of JAX's own test of its kernel,
https://github.com/jax-ml/jax/blob/main/tests/pallas/tpu_splash_attention_kernel_test.py. Masks
are rougher, value heads may differ, and rows may attend to nothing, which JAX's test avoids.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from puzzles import _puzzle, find
from puzzles.splash_attention import _graduation as graduation
from puzzles.splash_attention import splash_multi_head
from puzzles.splash_attention._graduation import Case

SOLUTION = find("splash_multi_head").solution
SEEDS = st.integers(0, 2**31)
# Hypothesis keeps notes in ./.hypothesis, and pytest then warns of that folder
hypothesis.configuration.set_hypothesis_home_dir(tempfile.gettempdir() + "/hypothesis")

lines: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if not lines:
        return
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join([graduation.HEAD, *lines.values()]))


@st.composite
def bands(draw: st.DrawFn, T: int, S: int) -> np.ndarray:
    """Causal and local masks: a row sees a window around its own number, plus an offset."""
    i, j = np.indices((T, S))
    left, right = (draw(st.none() | st.integers(0, n)) for n in (T, S // 2))
    ahead = j - i - draw(st.integers(-T // 4, S // 4))
    return (ahead <= (S if right is None else right)) & (-ahead <= (T if left is None else left))


@st.composite
def scattered(draw: st.DrawFn, T: int, S: int) -> np.ndarray:
    """Squares of 1 to 128 elements, each seen or not by chance."""
    size, share = draw(st.sampled_from([1, 32, 64, 128])), draw(st.floats(0.02, 0.98))
    few = np.random.default_rng(draw(SEEDS)).random((T // size, S // size)) < share
    return np.kron(few, np.ones((size, size))) > 0


@st.composite
def rectangles(draw: st.DrawFn, T: int, S: int) -> np.ndarray:
    """A few rectangles with edges anywhere; often rows of blocks are empty."""
    mask = np.zeros((T, S), bool)
    for _ in range(draw(st.integers(1, 4))):
        (a, b), (c, d) = (
            sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2))) for n in (T, S)
        )
        mask[a : b + 1, c : d + 1] = True
    return mask


def one_mask(T: int, S: int) -> st.SearchStrategy[np.ndarray]:
    simple = bands(T, S) | scattered(T, S) | rectangles(T, S)
    return simple | st.tuples(simple, simple, st.booleans()).map(
        lambda x: x[0] & x[1] if x[2] else x[0] | x[1]
    )


@st.composite
def cases(draw: st.DrawFn, N: int, K: int) -> Case:
    """T, S, head dims, blocks, dtype, one mask or N, 1 to 4 documents, a cap or none."""
    bq, bk = draw(st.sampled_from([(128, 128), (128, 256), (256, 128), (256, 256)]))
    most = 4 if N < 6 else 2
    T, S = (256 * draw(st.integers(1, most)) for _ in range(2))
    H = draw(st.sampled_from([64, 128]))
    Hv = draw(st.sampled_from([H, H, 192 - H]))
    dtype = draw(st.sampled_from([jnp.float32, jnp.bfloat16]))
    arrays = graduation.draw(draw(SEEDS), N, K, T, S, H, Hv, dtype)
    mask = draw(one_mask(T, S))
    if N > 1 and draw(st.booleans()):
        mask = np.stack([mask, *(draw(one_mask(T, S)) for _ in range(N - 1))])
    ids, documents = None, draw(st.integers(1, 4))
    if documents > 1:
        cuts = sorted(
            draw(
                st.lists(
                    st.integers(1, min(T, S) - 1), min_size=documents - 1, max_size=documents - 1
                )
            )
        )
        ids = tuple(
            jnp.asarray(np.searchsorted(cuts, np.arange(n), side="right"), jnp.int32)
            for n in (T, S)
        )
    cap = draw(st.none() | st.floats(1.0, 50.0))
    return Case(*arrays, mask, ids, cap, bq, bk)


@pytest.mark.slow
@pytest.mark.parametrize(("N", "K"), [(1, 1), (4, 1), (6, 2), (8, 4)])
def test_same_numbers_and_no_more_work_than_production(N: int, K: int) -> None:
    @hypothesis.settings(
        max_examples=6,  # the first is always the smallest
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],  # shrinking would take minutes
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases(N, K))
    def compare(case: Case) -> None:
        line = graduation.examine(SOLUTION, case)
        lines[line] = line

    compare()


def _with_dead_steps(q, k, v, mask, segment_ids=None, soft_cap=None, *, bq, bk):
    """Right numbers from a list as long as the dense grid: visits are added that do nothing."""
    tiles, patterns = splash_multi_head.tiles_of_heads(mask, bq, bk)
    more = mask.size // (bq * bk) - len(tiles[0])
    tiles = [np.pad(x, (0, more), mode="edge") for x in tiles[:3]] + [np.pad(tiles[3], (0, more))]
    return splash_multi_head.splash_over_tiles(q, k, v, tiles, patterns, segment_ids, soft_cap)


def _with_a_cap_of_half(q, k, v, mask, segment_ids=None, soft_cap=None, *, bq, bk):
    return SOLUTION(q, k, v, mask, segment_ids, soft_cap and soft_cap / 2, bq=bq, bk=bk)


def _mistaken(name: str) -> Callable:
    puzzle = find("splash_multi_head")
    return _puzzle.mutate(puzzle, puzzle.mistake(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (_with_dead_steps, "grid steps, and JAX's splash attention takes"),
        (_with_a_cap_of_half, "are not those of dense attention in f32"),
        (_mistaken("masks dead visits and skips none"), "dots, and JAX's splash attention takes"),
        (_mistaken("lets full tiles see other documents"), "are not those of dense attention"),
        (_mistaken("deals the key heads out in turn"), "are not those of dense attention"),
    ],
    ids=["dead steps", "wrong cap", "no skip", "leaking documents", "wrong groups"],
)
def test_what_is_wrong_or_wasteful_does_not_graduate(fn: Callable, says: str) -> None:
    if not graduation.has_splash() and "JAX's" in says:
        pytest.skip("this JAX has no splash attention to compare with")
    i, j = np.indices((512, 512))
    mask = (j < 300) & (i // 128 != 2)  # a row and a column of blocks are empty
    ids = tuple(jnp.asarray(np.arange(512) // 200, jnp.int32) for _ in range(2))
    arrays = graduation.draw(0, 4, 2, 512, 512, 64, 64, jnp.float32)
    with pytest.raises(AssertionError, match=says):
        graduation.examine(fn, Case(*arrays, mask, ids, 4.0))


@pytest.mark.slow
def test_a_learner_reads_the_table_or_what_is_wrong() -> None:
    table = graduation.graduate(SOLUTION)
    assert table.startswith(graduation.HEAD)
    assert len(table.splitlines()) == 1 + len(graduation.examples())
    zeros = graduation.graduate(lambda q, k, v, *args, bq, bk: jnp.zeros_like(q))
    assert zeros.startswith("not yet: ")
    assert "are not those of dense attention" in zeros
    starter = _puzzle.starter_function(find("splash_multi_head"))
    assert graduation.graduate(starter) == "not yet: `splash_multi_head_kernel` is as you found it"
    assert graduation.graduate(lambda *args, bq, bk: None).startswith("not yet: ")


def test_production_shapes_are_counted_without_data() -> None:
    table = graduation.costs(splash_multi_head.splash_over_tiles, T=8192)
    assert "yours" in table
    assert "reference" not in table
    unsolved = graduation.costs(lambda *args: ..., T=8192)
    assert "reference, not yours" in unsolved
