"""Parameters of equations, and of launches that raised, in one form for every version of JAX."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from traceback import walk_tb
from typing import Any

import jax

from puzzles._jax import JaxprEqn


def call_at_fault(error: BaseException) -> tuple[Any, int | None]:
    """The index map that `pallas_call` was reading when it raised, or None; and how many arrays it
    was to prefetch, or None if its grid has no place for them."""
    index_map, count = None, None
    for frame, _ in walk_tb(error.__traceback__):
        held = frame.f_locals
        count = getattr(held.get("grid_spec"), "num_scalar_prefetch", count)
        if "origin" in held and hasattr(held.get("block_spec"), "index_map"):
            index_map = held["block_spec"].index_map
            index_map = getattr(index_map, "index_map", index_map)
    return index_map, count


def argument_at_fault(error: BaseException) -> str:
    """An argument of another kind than the one that it stands for, or ""."""
    for frame, _ in walk_tb(error.__traceback__):
        held = frame.f_locals
        ref = re.search(r"Ref<(\w+)>\{\w+\[([\d, ]+)\]", str(held.get("dst_sem_aval", "")))
        if ref and not ref[1].startswith("sem"):
            return f"the {ref[1].upper()} buffer ({', '.join(ref[2].split(','))}) for a semaphore"
        if isinstance(held.get("core_axis_name"), int):
            return "a core axis that is no name"
        if kind := unknown_params(held.get("compiler_params")):  # 0.7 asserts, and says nothing
            return f"{kind} for compiler_params"
    return ""


def bind_params(equation: JaxprEqn) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(functions, parameters) to bind an equation's primitive with."""
    params: Any = equation.primitive.get_bind_params(equation.params)
    if isinstance(params, tuple):  # 0.7; later the functions are among the parameters
        return tuple(params[0]), params[1]
    return (), params


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a `scan`'s operands are constants, and how many carries; the rest are rows."""
    if "ft_in" in params:  # since 0.11
        consts, carries, _ = params["ft_in"].unpack()
        return len(consts), len(carries)
    return params["num_consts"], params["num_carry"]


def hi_primitive(equation: JaxprEqn) -> Any:
    """The high-level primitive that an equation calls, which can `expand`; None for all others."""
    return equation.params.get("_prim")  # since 0.12


def is_key(form: Any) -> bool:
    """Whether an array, or its shape, or a Ref, is of random keys, which have no bytes to NumPy."""
    return jax.dtypes.issubdtype(form.dtype, jax.dtypes.prng_key)


def key_bits(form: Any) -> jax.ShapeDtypeStruct:
    """The shape of the numbers that random keys of this form are made of."""
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(form.shape, form.dtype))


def keys_of(bits: Any, form: Any) -> Any:
    """Random keys of this form, made of numbers."""
    return jax.random.wrap_key_data(bits, impl=form.dtype._impl.name)


def array_of(block_mapping: Any) -> Any:
    """Shape and dtype of the array that a block mapping cuts into blocks."""
    # 0.7 says `array_shape_dtype`
    return getattr(block_mapping, "array_aval", None) or block_mapping.array_shape_dtype


def compiler_param(params: Any, key: str) -> Any:
    """One of a `pallas_call`'s `compiler_params`, or None."""
    if isinstance(params, Mapping):  # 0.7 files them by backend
        params = dict(params).get("mosaic_tpu", params)
    return dict(params).get(key) if isinstance(params, Mapping) else getattr(params, key, None)


def unknown_params(params: Any) -> str | None:
    """The name of the type of `compiler_params`, if it can hold no setting; else None."""
    fine = params is None or isinstance(params, Mapping) or dataclasses.is_dataclass(params)
    return None if fine else type(params).__name__


Part = tuple[Any, tuple[Any, ...]]  # a ref, and its transforms


def copy_ends(tree: Any, leaves: Sequence[Any]) -> tuple[tuple[Part, ...], Any]:
    """`copy_parts`, then the sender's semaphore, and the id of the other device; both are None for
    a copy within a device."""
    *parts, device = tree.unflatten(leaves)
    if isinstance(parts[1], tuple):  # 0.7 has refs and transforms in turn
        return tuple(zip(parts[::2], parts[1::2], strict=True)), device
    pairs = ((getattr(p, "ref", p), tuple(getattr(p, "transforms", ()))) for p in parts)
    return tuple(pairs), device


def copy_parts(tree: Any, leaves: Sequence[Any]) -> tuple[Part, ...]:
    """(ref, its transforms) of a copy's source, its target and the semaphore that signals its end.

    Of the operands of a `dma_start` or a `dma_wait`.
    """
    return copy_ends(tree, leaves)[0][:3]


@lru_cache(maxsize=1024)
def is_remote(equation: JaxprEqn) -> bool:
    """Whether a `dma_start` copies to another device."""
    return equation.params["tree"].unflatten(equation.invars)[-1] is not None


def function_place(jaxpr: Any) -> tuple[str, int]:
    """File and line of the function that a jaxpr was traced from; ("", 0) if unknown."""
    place = str(getattr(jaxpr.debug_info, "func_src_info", "")).rpartition(" at ")[2]
    file, _, number = place.rpartition(":")
    return (file, int(number)) if number.isdigit() else ("", 0)
