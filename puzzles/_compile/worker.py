"""Compiles exported programs with libtpu, in a process of its own: libtpu can abort it.

A script: its arguments are the number of its end of a pipe and the names of topologies. It sends
the topologies that libtpu has, and then answers requests.
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
    # Python puts a script's folder first on the path; the modules in it are not top-level.
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]
    from jax.experimental import topologies

    devices = {}
    for name in names:
        with contextlib.suppress(Exception):
            devices[name] = topologies.get_topology_desc(name, platform="tpu").devices
    pipe.send(list(devices))
    while True:
        request = pipe.recv()
        if request.get("abort"):  # for the tests: libtpu may abort
            os.abort()
        try:
            name, programs = request["topology"], request["programs"]
            if max(program["devices"] for program in programs) > len(devices[name]):
                name = (
                    name.replace("2x2x1", "2x2x2") if "x1" in name else name.replace("2x2", "2x4")
                )
            if name not in devices:
                devices[name] = topologies.get_topology_desc(name, platform="tpu").devices
            pipe.send({"text": None, "kernels": _compile(programs, devices[name])})
        except Exception as error:
            pipe.send({"text": f"{error}" or type(error).__name__, "kernels": False})


def _compile(programs: list[dict], devices: list) -> bool:
    """Compile all of `programs` as one program; True if it holds their Mosaic kernels.

    Every kernel of several programs must be there; a single program may lack some of its kernels.
    """
    import jax
    from jax import export  # on 0.7 `jax.export` exists only once it is imported
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(devices[: max(program["devices"] for program in programs)], ("devices",))
    replicated = NamedSharding(mesh, PartitionSpec())
    exported = [export.deserialize(bytearray(p["program"])) for p in programs]
    shapes = [
        [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=replicated) for a in program.in_avals]
        for program in exported
    ]

    def program(arguments: list) -> list:
        return [part.call(*args) for part, args in zip(exported, arguments, strict=True)]

    # Without an argument, only the results say for which devices it is.
    where = {} if any(shapes) else {"out_shardings": replicated}
    text = jax.jit(program, **where).lower(shapes).compile().as_text()
    kernels = sum(program["kernels"] for program in programs)
    count = text.count('custom_call_target="tpu_custom_call"')
    return count == kernels if len(programs) > 1 else count > 0 or not kernels


if __name__ == "__main__":
    with contextlib.suppress(EOFError):
        main(*sys.argv[1:])
