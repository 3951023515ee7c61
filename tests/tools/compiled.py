"""What the compiler says of Triton kernels: registers, spills, shared memory, and whether the main loops are pipelined.

No GPU is needed. Inside `compiling()` every launch only compiles its kernel, so what it writes is garbage:

    with compiling() as facts:
        step()  # launches kernels
    faults = [fault for one in facts if (fault := fault_of(one))]

What is compiled stays in .cache/triton (or TRITON_CACHE_DIR), with the assembler's log beside it, which Triton's own
cache does not keep.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

# What one multiprocessor has, by capability (CUDA C++ programming guide, table of technical specifications).
_REGISTERS = 65536
_MOST_BLOCKS = 32
_MOST_THREADS = 2048
_SHARED_BYTES = {80: 164 * 1024, 90: 228 * 1024}
CAPABILITIES = tuple(_SHARED_BYTES)
# Every block keeps so much shared memory for the system.
_RESERVED_BYTES = 1024
# More than this is worth another choice of blocks: a few spilled addresses outside of the main loop cost nothing.
MOST_SPILL_BYTES = 64
# A product of matrices in Triton's intermediate code.
_DOT = re.compile(r"\b(?:warp_group_dot|tt\.dot)\b(?!_wait)")


CACHE = Path(__file__).parents[2] / ".cache" / "triton"


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop with a product of matrices. It is pipelined if copies for later iterations go on beside the product."""

    waits: tuple[int, ...]  # how many copies to shared memory may be on their way after each wait; () without copies

    @property
    def is_pipelined(self) -> bool:
        return max(self.waits, default=0) > 0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One compiled kernel. Registers and spills are per thread, shared memory per block."""

    kernel: str
    options: Mapping[str, Any]  # the constants that it was compiled with, e.g. {"BLOCK_M": 128}
    capability: int  # e.g. 90
    num_warps: int
    num_stages: int
    registers: int
    spill_bytes: int  # stored, or loaded if that is more
    shared_bytes: int
    loops: tuple[Loop, ...]  # of the products of matrices
    buffers: tuple[str, ...]  # what the loops copy into, e.g. ("3x128x64xbf16", "3x64x128xbf16")
    uses_wgmma: bool

    @property
    def most_shared_bytes(self) -> int:
        """The shared memory that one block may use."""
        return _SHARED_BYTES[self.capability] - _RESERVED_BYTES

    @property
    def blocks_per_multiprocessor(self) -> int:
        """How many blocks run on a multiprocessor at a time."""
        threads = 32 * self.num_warps
        per_thread = -(-self.registers // 8) * 8
        return min(
            _REGISTERS // (per_thread * threads),
            _SHARED_BYTES[self.capability] // (self.shared_bytes + _RESERVED_BYTES),
            _MOST_THREADS // threads,
            _MOST_BLOCKS,
        )

    @property
    def is_pipelined(self) -> bool:
        """Whether all its products of matrices are in pipelined loops. A kernel without products is."""
        return all(loop.is_pipelined for loop in self.loops)

    def row(self) -> dict[str, Any]:
        """Return the facts as a line of JSON holds them."""
        return {
            **asdict(self),
            "loops": [list(loop.waits) for loop in self.loops],
            "blocks_per_multiprocessor": self.blocks_per_multiprocessor,
            "is_pipelined": self.is_pipelined,
        }


def fault_of(facts: Facts) -> str | None:
    """Return why a kernel is slow or cannot run at all, or None."""
    if facts.shared_bytes > facts.most_shared_bytes:
        return f"{facts.kernel} needs {facts.shared_bytes} bytes of shared memory, {facts.most_shared_bytes} are there"
    if facts.spill_bytes > MOST_SPILL_BYTES:
        return f"{facts.kernel} spills {facts.spill_bytes} bytes of registers"
    if not facts.is_pipelined:
        return f"{facts.kernel} has a main loop without a pipeline"
    return None


@contextlib.contextmanager
def compiling(capability: int = 90) -> Iterator[list[Facts]]:
    """Let every launch of a Triton kernel only compile, and list the facts of its kernel.

    The list has one entry per launch, and a caller may clear it. A kernel that is launched twice compiles once. Where a
    GPU of this capability is, its driver is asked for the target. Elsewhere a stand-in knows the target alone. Kernels
    must not be interpreted: TRITON_INTERPRET is unset or 0 when the first of them is imported.
    """
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    facts: list[Facts] = []
    known: dict[str, Facts] = {}
    caches: dict[Any, Any] = {}
    run, before = JITFunction.run, driver._active

    def launch(self: Any, *args: Any, **options: Any) -> tuple[Any, str]:
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            return run(self, *args, **{**options, "warmup": True}), log.getvalue()

    def compile_only(self: Any, *args: Any, **options: Any) -> Any:
        if self not in caches:
            # Kernels of before were compiled for another target. Those of now are not for later.
            caches[self] = self.device_caches
            self.device_caches = defaultdict(self.create_binder)
        kernel, log = launch(self, *args, **options)
        if kernel.hash not in known:
            kept = Path(knobs.cache.dir, kernel.hash, "ptxas.log")
            if not log and kept.exists():
                log = kept.read_text()
            elif not log:  # it was compiled elsewhere, without a log
                self.device_caches = defaultdict(self.create_binder)
                with knobs.compilation.scope():
                    knobs.compilation.always_compile = True
                    kernel, log = launch(self, *args, **options)
            constants = {name: value for name, value in options.items() if name.isupper()}
            known[kernel.hash] = _facts(self.__name__, kernel, log, constants, capability)
            _write(kept, log)
        facts.append(known[kernel.hash])
        return kernel

    with knobs.cache.scope(), knobs.nvidia.scope():
        if "TRITON_CACHE_DIR" not in os.environ:
            knobs.cache.dir = str(CACHE)
        knobs.nvidia.dump_ptxas_log = True
        JITFunction.run = compile_only
        if not (torch.cuda.is_available() and torch.cuda.get_device_capability() == divmod(capability, 10)):
            driver.set_active(_Target(capability))
        try:
            yield facts
        finally:
            JITFunction.run = run
            driver.set_active(before)
            for kernel, cache in caches.items():
                kernel.device_caches = cache


def _write(path: Path, text: str) -> None:
    """Write a file at once, because other processes may write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    part.replace(path)


class _Target:
    """A driver that knows the target of the compiler and cannot run anything."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0


def _facts(name: str, kernel: Any, log: str, constants: Mapping[str, Any], capability: int) -> Facts:
    """Return the facts of a compiled kernel from the log of its assembler."""
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    no_registers = f"{name}: the log of ptxas names no registers: {log[:500]!r}"
    assert registers, no_registers
    assert spills, no_registers
    code = kernel.asm["ttgir"]
    return Facts(
        kernel=name,
        options=dict(constants),
        capability=capability,
        num_warps=kernel.metadata.num_warps,
        num_stages=kernel.metadata.num_stages,
        registers=int(registers[1]),
        spill_bytes=max(int(spills[1]), int(spills[2])),
        shared_bytes=kernel.metadata.shared,
        loops=loops_of(code),
        buffers=tuple(re.findall(r"local_alloc[^\n]*memdesc<(\d+x\d+x\d+x\w+)", code)),
        uses_wgmma="warp_group_dot" in code,
    )


def loops_of(code: str) -> tuple[Loop, ...]:
    """Return the loops of a kernel's intermediate code (TTGIR) that hold a product of matrices themselves."""
    open_loops: list[tuple[int, list[int]]] = []  # indentation and waits
    with_product: list[list[int]] = []
    for line in code.splitlines():
        indent = len(line) - len(line.lstrip())
        if open_loops and line.lstrip().startswith("}") and indent == open_loops[-1][0]:
            open_loops.pop()
        elif " scf.for " in f" {line}":
            open_loops.append((indent, []))
        elif open_loops:
            waits = open_loops[-1][1]
            waits += [int(number) for number in re.findall(r"async_wait[^\n]*num = (\d+)", line)]
            if _DOT.search(line) and not any(waits is one for one in with_product):
                with_product.append(waits)
    return tuple(Loop(waits=tuple(waits)) for waits in with_product)
