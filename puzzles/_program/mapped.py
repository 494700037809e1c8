"""One device's function over a mesh, for which no device has to exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from puzzles._jax import Jaxpr, JaxprEqn
from puzzles._program.jaxprs import PALLAS_CALL, visited

# XLA's collectives between launches, by their primitives.
COLLECTIVES = (
    "psum", "psum_invariant", "pmax", "pmin", "ppermute", "all_gather", "all_gather_invariant",
    "all_to_all", "reduce_scatter",
)  # fmt: skip


def over_mesh(fn: Callable, axes: Mapping[str, int], mesh: Any = None) -> Callable:
    """Return `fn`, which one device runs, as a function of all devices' arrays.

    The first axis of each array, and of each result, counts the devices in the order of the mesh.

    Args:
        axes: the name and the length of each axis of the mesh.
        mesh: a mesh of devices; None means an abstract one.
    """

    def mapped(*args: Any) -> Any:
        arrays = [n for n, x in enumerate(args) if isinstance(x, jax.Array)]

        def local(*parts: Any) -> Any:
            local_args = list(args)
            for n, part in zip(arrays, parts, strict=True):
                local_args[n] = jax.lax.squeeze(part, (0,))
            return jax.tree.map(
                lambda y: jax.lax.expand_dims(jnp.asarray(y), (0,)), fn(*local_args)
            )

        devices = PartitionSpec(tuple(axes))
        where = mesh
        if where is None:
            auto = (AxisType.Auto,) * len(axes)  # not the default since JAX 0.11.2
            where = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=auto)
        whole = jax.shard_map(
            local, mesh=where, in_specs=devices, out_specs=devices, check_vma=False
        )  # fmt: skip
        return whole(*(args[n] for n in arrays))

    return mapped


def over_axes(fn: Callable, axes: Mapping[str, int]) -> Callable:
    """Return what `over_mesh` does by `jax.vmap`: for a spec in `jax.lax`'s collectives."""

    def mapped(*args: Any) -> Any:
        sizes = tuple(axes.values())
        split = [isinstance(x, jax.Array) for x in args]
        inner = fn
        for name, size in reversed([*axes.items()]):
            places = tuple(0 if is_split else None for is_split in split)
            inner = jax.vmap(inner, in_axes=places, axis_name=name, axis_size=size)
        pairs = zip(args, split, strict=True)
        out = inner(*(x.reshape(*sizes, *x.shape[1:]) if is_split else x for x, is_split in pairs))
        return jax.tree.map(lambda y: y.reshape(-1, *y.shape[len(sizes) :]), out)

    return mapped


def mesh_axes(equation: JaxprEqn) -> dict[str, int]:
    """The names and lengths of the axes that a `shard_map` maps over."""
    mesh = equation.params["mesh"]
    manual = equation.params.get("manual_axes", mesh.axis_names)
    return {name: mesh.shape[name] for name in mesh.axis_names if name in manual}


def axes_around_kernels(jaxpr: Jaxpr) -> dict[str, int]:
    """The axes of the first `shard_map` around a kernel; empty if there is none."""
    for equation, path in visited(jaxpr):
        if equation.primitive.name == PALLAS_CALL:
            for around in path:
                if around.primitive.name == "shard_map":
                    return mesh_axes(around)
    return {}
