"""The TPUs that kernels are compiled for, and what one of their cores can do."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True)
class Chip:
    """One TensorCore: bf16 FLOP/s, HBM bytes/s and sizes in bytes.

    scoped_vmem_bytes is what a kernel may use unless it passes `vmem_limit_bytes`. topology is
    the name under which libtpu knows the smallest slice. step_seconds is what a step of a pipelined
    grid takes at least, however little it moves, and wait_seconds what a copy from HBM takes at
    least beside its bytes; 0 where nobody has estimated it. megacore: its two
    cores work as one device, and share out the parallel axes of a grid.
    """

    name: str
    kind: str  # as JAX's devices say it
    topology: str
    flops_per_second: float
    hbm_bytes_per_second: float
    vmem_bytes: int
    scoped_vmem_bytes: int
    smem_bytes: int = _MIB
    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    megacore: bool = False

    @property
    def ridge(self) -> float:
        """FLOPs per HBM byte from which on a kernel is compute-bound."""
        return self.flops_per_second / self.hbm_bytes_per_second


# Per TensorCore, as `pltpu.get_tpu_info_for_chip` has them; 0.7 has no such function. What a step
# takes is libtpu's estimate of launches of small blocks, and no measurement: 595 to 800 cycles of
# 1.5 GHz on v5e; on v5p 455 to 520 of 1.75 GHz, of matmuls 259 and more. So is what a kernel waits
# for a copy that it has just started, of 32 to 512 KiB: 1,178 to 1,303 cycles beside those of its
# bytes on v5e, 386 to 721 on v5p. `make steps` prints both.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", "v4:2x2x1", 137.5e12, 615e9, 16 * _MIB, 16 * _MIB, megacore=True),
        Chip("v5e", "TPU v5 lite", "v5e:2x2", 197e12, 820e9, 128 * _MIB, 16 * _MIB,
             step_seconds=0.4e-6, wait_seconds=0.8e-6),
        Chip("v5p", "TPU v5", "v5p:2x2x1", 229.5e12, 1230e9, 64 * _MIB, 16 * _MIB,
             step_seconds=0.265e-6, wait_seconds=0.22e-6, megacore=True),
        Chip("v6e", "TPU v6 lite", "v6e:2x2", 920e12, 1640e9, 128 * _MIB, 32 * _MIB),
        Chip("7x", "TPU7x", "tpu7x:2x2x1", 1155e12, 3700e9, 64 * _MIB, 32 * _MIB),
    )
}  # fmt: skip

# Bytes/s of a link between chips (ICI) in one direction: "ICI BW/link (one-way)" of the scaling
# book, https://jax-ml.github.io/scaling-book/tpus, 90 % of Google's nominal figures. It has no 7x,
# whose six links together carry as much as a v5p's: https://cloud.google.com/tpu/docs/tpu7x.
LINK_BYTES = {"v4": 45e9, "v5e": 45e9, "v5p": 90e9, "v6e": 90e9, "7x": 90e9}
