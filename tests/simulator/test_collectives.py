"""XLA's collectives between launches, on four devices that NumPy plays."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from puzzles import on_devices

N = 4
RIGHT = [(n, (n + 1) % N) for n in range(N)]
X = np.random.default_rng(0).integers(-9, 9, (N, 8, 128)).astype(np.float32)


def doubled(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(kernel, out_shape=x, interpret=True)(x)


# The results of each collective, by NumPy on the data of all devices.
COLLECTIVES: dict[str, tuple[Callable, Callable]] = {
    "psum": (lambda x: lax.psum(x, "x"), lambda x: np.stack([x.sum(0)] * N)),
    "pmean": (lambda x: lax.pmean(x, "x"), lambda x: np.stack([x.mean(0)] * N)),
    "pmax": (lambda x: lax.pmax(x, "x"), lambda x: np.stack([x.max(0)] * N)),
    "pmin": (lambda x: lax.pmin(x, "x"), lambda x: np.stack([x.min(0)] * N)),
    "ppermute": (lambda x: lax.ppermute(x, "x", RIGHT), lambda x: np.roll(x, 1, 0)),
    "all_gather": (lambda x: lax.all_gather(x, "x"), lambda x: np.stack([x] * N)),
    "all_to_all": (
        lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
        lambda x: x.reshape(N, N, 2, 128).swapaxes(0, 1).reshape(x.shape),
    ),
    "psum_scatter": (
        lambda x: lax.psum_scatter(x, "x", tiled=True),
        lambda x: x.sum(0).reshape(N, 2, 128),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_between_two_launches_gives_each_device_its_part(name: str) -> None:
    collective, wanted = COLLECTIVES[name]
    got = on_devices(lambda x: doubled(collective(doubled(x))), X, axes={"x": N})
    np.testing.assert_allclose(np.asarray(got), 4 * wanted(X), rtol=1e-6)


def test_a_collective_in_a_loop_is_called_once_a_turn() -> None:
    def three(x):
        return lax.fori_loop(0, 3, lambda _, y: lax.ppermute(doubled(y), "x", RIGHT), x)

    got = on_devices(three, X, axes={"x": N})
    np.testing.assert_array_equal(np.asarray(got), 8 * np.roll(X, 3, 0))


def test_axes_of_a_mesh_are_told_apart() -> None:
    x = np.arange(6, dtype=np.float32).reshape(6, 1)
    got = on_devices(lambda x: lax.psum(x, "b"), x, axes={"a": 2, "b": 3})
    np.testing.assert_array_equal(np.asarray(got)[:, 0], [3, 3, 3, 12, 12, 12])


def test_a_collective_that_one_device_never_calls_is_not_waited_for() -> None:
    def some(x):
        last = lax.axis_index("x") == N - 1
        return lax.cond(last, lambda y: y, lambda y: lax.psum(y, "x"), x)

    with pytest.raises(Exception, match="a collective that some devices never call"):
        on_devices(some, jnp.asarray(X), axes={"x": N})


def test_jax_agrees() -> None:
    for collective, wanted in COLLECTIVES.values():
        got = jax.vmap(collective, axis_name="x")(jnp.asarray(X))
        np.testing.assert_allclose(np.asarray(got), wanted(X), rtol=1e-6)
