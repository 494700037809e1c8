"""Compiles exported programs with libtpu, in a process of its own: libtpu can abort it.

Run as a script, with the number of its end of a pipe and the names of topologies: it says which of
these it knows, and then answers requests.
"""

from __future__ import annotations

import contextlib
import os
import sys
from multiprocessing.connection import Connection

_HERE = os.path.dirname(os.path.abspath(__file__))


def main(end: str, *names: str) -> None:
    """Answer requests until the pipe is closed."""
    pipe = Connection(int(end))
    # A script's own folder comes first on the path; these modules are no top-level ones.
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]
    from jax.experimental import topologies

    devices = {}
    for name in names:
        with contextlib.suppress(Exception):
            devices[name] = topologies.get_topology_desc(name, platform="tpu").devices
    pipe.send(list(devices))
    while True:
        request = pipe.recv()
        if request.get("abort"):  # for the tests: what libtpu does on a bad day
            os.abort()
        try:
            name, programs = request["topology"], request["programs"]
            if max(one["devices"] for one in programs) > len(devices[name]):
                name = (
                    name.replace("2x2x1", "2x2x2") if "x1" in name else name.replace("2x2", "2x4")
                )
            if name not in devices:
                devices[name] = topologies.get_topology_desc(name, platform="tpu").devices
            pipe.send({"text": None, "kernels": _compile(programs, devices[name])})
        except Exception as error:
            pipe.send({"text": f"{error}" or type(error).__name__, "kernels": False})


def _compile(programs: list[dict], devices: list) -> bool:
    """Compile all of `programs` as one; True if it holds their Mosaic kernels.

    Of several programs every kernel is counted; a program alone may have lost some, but not all.
    """
    import jax
    from jax import export  # on 0.7 `jax.export` exists only once it is imported
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(devices[: max(one["devices"] for one in programs)], ("devices",))
    there = NamedSharding(mesh, PartitionSpec())
    exported = [export.deserialize(bytearray(p["program"])) for p in programs]
    shapes = [
        [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=there) for a in one.in_avals]
        for one in exported
    ]

    def together(arguments: list) -> list:
        return [one.call(*some) for one, some in zip(exported, arguments, strict=True)]

    text = jax.jit(together).lower(shapes).compile().as_text()
    wanted = sum(one["kernels"] for one in programs)
    found = text.count('custom_call_target="tpu_custom_call"')
    return found == wanted if len(programs) > 1 else found > 0 or not wanted


if __name__ == "__main__":
    with contextlib.suppress(EOFError):
        main(*sys.argv[1:])
