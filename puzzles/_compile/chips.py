"""The TPUs that kernels are compiled for, and the rates and sizes of their cores."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True)
class Chip:
    """One TensorCore: bf16 FLOP/s, HBM bytes/s and sizes in bytes.

    scoped_vmem_bytes: the VMEM that a kernel may use unless it passes `vmem_limit_bytes`.
    topology: libtpu's name of the smallest slice. matrix_side: rows and columns of a matrix unit,
    of which a core has four. step_seconds: a pipelined step that moves blocks, without its work.
    wait_seconds: a copy from HBM that no work hides, without its bytes. dot_seconds: a dot, without
    its multiplications. All three are 0 for a chip that libtpu cannot estimate. megacore: two cores
    work as one device and share the parallel axes of a grid.
    """

    name: str
    kind: str  # the `device_kind` of JAX's devices
    topology: str
    flops_per_second: float
    hbm_bytes_per_second: float
    vmem_bytes: int
    scoped_vmem_bytes: int
    smem_bytes: int = _MIB
    matrix_side: int = 128
    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    dot_seconds: float = 0.0
    megacore: bool = False

    @property
    def hertz(self) -> float:
        """Cycles a second: each cell of four matrix units does two operations in a cycle."""
        return self.flops_per_second / (8 * self.matrix_side**2)

    @property
    def ridge(self) -> float:
        """FLOPs per HBM byte from which on a kernel is compute-bound."""
        return self.flops_per_second / self.hbm_bytes_per_second


# Per TensorCore, as `pltpu.get_tpu_info_for_chip` has them; 0.7 has no such function. The seconds
# of steps, waits and dots are fitted to libtpu's estimates of small launches, which are no
# measurements: on v5e, v5p, v6e and 7x a step of small blocks takes 600, 455, 360 and 320 cycles; a
# wait 1,200, 720, 610 and 650; libtpu refuses to estimate v4. `make steps` prints its estimates.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", "v4:2x2x1", 137.5e12, 615e9, 16 * _MIB, 16 * _MIB, megacore=True),
        Chip("v5e", "TPU v5 lite", "v5e:2x2", 197e12, 820e9, 128 * _MIB, 16 * _MIB,
             step_seconds=0.4e-6, wait_seconds=0.8e-6, dot_seconds=0.07e-6),
        Chip("v5p", "TPU v5", "v5p:2x2x1", 229.5e12, 1230e9, 64 * _MIB, 16 * _MIB,
             step_seconds=0.26e-6, wait_seconds=0.41e-6, dot_seconds=0.06e-6, megacore=True),
        Chip("v6e", "TPU v6 lite", "v6e:2x2", 920e12, 1640e9, 128 * _MIB, 32 * _MIB,
             matrix_side=256, step_seconds=0.205e-6, wait_seconds=0.35e-6, dot_seconds=0.1e-6),
        Chip("7x", "TPU7x", "tpu7x:2x2x1", 1155e12, 3700e9, 64 * _MIB, 32 * _MIB,
             matrix_side=256, step_seconds=0.145e-6, wait_seconds=0.295e-6, dot_seconds=0.08e-6),
    )
}  # fmt: skip

# Bytes/s of a link between chips (ICI) in one direction: "ICI BW/link (one-way)" of the scaling
# book, https://jax-ml.github.io/scaling-book/tpus, 90 % of Google's nominal figures. It has no 7x,
# whose six links together carry as much as a v5p's: https://cloud.google.com/tpu/docs/tpu7x.
LINK_BYTES = {"v4": 45e9, "v5e": 45e9, "v5p": 90e9, "v6e": 90e9, "7x": 90e9}
