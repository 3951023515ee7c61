"""What is read from the compiler's words, and what of it counts as a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpxfer.bench.compiled import Facts, Loop, fault_of, loops_of

PIPELINED = """
  tt.func public @kernel() {
    %a = ttg.local_alloc : () -> !ttg.memdesc<3x128x64xbf16, #shared, #smem, mutable>
    %acc:3 = scf.for %i = %c0 to %n step %c64 iter_args(%x = %y) -> (tensor<128x128xf32, #mma>)  : i32 {
      %w = ttg.async_wait %t {num = 2 : i32}
      %d = ttng.warp_group_dot %p, %q, %x {inputPrecision = 0 : i32} : tensor<128x128xf32, #mma>
      %e = ttng.warp_group_dot_wait %d {pendings = 1 : i32} : tensor<128x128xf32, #mma>
      scf.yield %e : tensor<128x128xf32, #mma>
    }
    %end = ttg.async_wait {num = 0 : i32}
    scf.for %j = %c0 to %n step %c1  : i32 {
      %s = arith.addf %u, %v : f32
    }
"""
SINGLE = PIPELINED.replace("num = 2", "num = 0")
WITHOUT = "\n".join(line for line in PIPELINED.splitlines() if "async_wait" not in line)
GOOD = Facts(
    kernel="up",
    options={},
    capability=90,
    num_warps=8,
    num_stages=3,
    registers=128,
    spill_bytes=0,
    shared_bytes=96 * 1024,
    loops=(Loop(waits=(2,)),),
    buffers=("3x128x64xbf16",),
    uses_wgmma=True,
)


@pytest.mark.parametrize(
    ("code", "waits", "is_pipelined"), [(PIPELINED, (2,), True), (SINGLE, (0,), False), (WITHOUT, (), False)]
)
def test_a_loop_is_pipelined_if_copies_go_on_beside_its_product(
    code: str, waits: tuple[int, ...], is_pipelined: bool
) -> None:
    (loop,) = loops_of(code)
    assert (loop.waits, loop.is_pipelined) == (waits, is_pipelined)


def test_every_loop_with_a_product_counts() -> None:
    loops = loops_of(PIPELINED + SINGLE)
    assert [loop.waits for loop in loops] == [(2,), (0,)]
    assert fault_of(replace(GOOD, loops=loops)) is not None
    assert fault_of(replace(GOOD, loops=())) is None


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "num_warps", "blocks"),
    [
        (128, 96 * 1024, 8, 2),
        (129, 96 * 1024, 8, 1),  # 136 of 256 threads are more than half of 65,536
        (64, 144 * 1024, 8, 1),
        (32, 0, 4, 16),  # 2,048 threads
        (24, 0, 1, 32),
    ],
)
def test_blocks_of_a_multiprocessor(registers: int, shared_bytes: int, num_warps: int, blocks: int) -> None:
    facts = replace(GOOD, registers=registers, shared_bytes=shared_bytes, num_warps=num_warps)
    assert facts.blocks_per_multiprocessor == blocks
    assert facts.row()["blocks_per_multiprocessor"] == blocks


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (None, {"spill_bytes": 64}),
        ("spills 68 bytes", {"spill_bytes": 68}),
        ("without a pipeline", {"loops": (Loop(waits=(0,)),)}),
        ("232449 bytes of shared memory, 232448", {"shared_bytes": 227 * 1024 + 1}),
        (None, {"shared_bytes": 227 * 1024}),
    ],
)
def test_faults(fault: str | None, changes: dict[str, object]) -> None:
    found = fault_of(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert found is None if fault is None else found is not None and fault in found
