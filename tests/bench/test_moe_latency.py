"""The latency of MoE layers: what is timed is what is said, and rows hold what their times say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_near
from torch import Tensor

from hpxfer.bench import command, moe
from hpxfer.bench.moe import FFNs, latency, parts, random_ffns, row_of
from hpxfer.bench.moe_sizes import AXES, MoeSize, keys_along, sizes
from hpxfer.bench.parts import Part
from hpxfer.cli import main
from hpxfer.errors import HpxferError
from hpxfer.kernels.backend import TORCH
from hpxfer.plan.speeds import Kind

CPU = torch.device("cpu")
SMALL = MoeSize(axis="granularity", device="cpu", tokens=32, width=16, num_experts=8, num_active=4, expert_width=24)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_what_an_axis_is_named_after_changes_along_it(device: Kind) -> None:
    for axis in AXES:
        along = [size for size in sizes(device) if size.axis == axis]
        assert len(along) >= 5
        assert len({(size.tokens, size.width, size.num_active * size.expert_width) for size in along}) == 1
        assert all(size.shape().active_width == size.shape(dense=True).active_width for size in along)
        assert [size.num_experts for size in along] == sorted({size.num_experts for size in along})
        fixed = {(size.num_active, size.expert_width) if axis == "capacity" else size.shape().kappa for size in along}
        assert len(fixed) == 1


def test_the_sizes_of_a_gpu_are_those_of_the_paper() -> None:
    """2605.23893, Fig. 7: width 4096, 40k tokens; h 2048 and k 8 at E 8 to 256; h k 16384 and E/k 8 at k 2 to 64."""
    along = {axis: [size for size in sizes("cuda") if size.axis == axis] for axis in AXES}
    assert {(size.tokens // 1024, size.width) for size in sizes("cuda")} == {(40, 4096)}
    assert {(size.num_active, size.expert_width) for size in along["capacity"]} == {(8, 2048)}
    assert (along["capacity"][0].num_experts, along["capacity"][-1].num_experts) == (8, 256)
    assert {
        (size.num_experts / size.num_active, size.num_active * size.expert_width) for size in sizes("cuda")[6:]
    } == {(8, 16384)}
    assert (along["granularity"][0].num_active, along["granularity"][-1].num_active) == (2, 64)


def normed(ffns: FFNs) -> Tensor:
    total = ffns.stream_KTD[0] + ffns.branch_KTD[0]
    return F.rms_norm(total, total.shape[-1:], eps=ffns.moe.maps.norm_eps)


def swiglu(x: Tensor, w_in: Tensor, w_gate: Tensor, w_out: Tensor) -> Tensor:
    return (F.silu(x @ w_gate) * (x @ w_in)) @ w_out


def naive_moe(ffns: FFNs) -> Tensor:
    """Return the MoE layer token by token: normalized sigmoid weights of the best experts, times their number."""
    w = {name: weight[0] for name, weight in ffns.moe_weights.items()}
    out = []
    for h in normed(ffns):
        scores = (h @ w["router"].to(h.dtype)).sigmoid()
        best = scores.argsort(descending=True)[: SMALL.num_active].tolist()
        total = sum(scores[i] for i in best)
        out.append(
            sum(
                SMALL.num_active
                * scores[i]
                / total
                * swiglu(h, w["expert_in"][i], w["expert_gate"][i], w["expert_out"][i])
                for i in best
            )
        )
    return torch.stack(out)


def naive_dense(ffns: FFNs) -> Tensor:
    return swiglu(normed(ffns), *(ffns.dense_weights[f"dense_{part}"][0] for part in ("in", "gate", "out")))


def in_float64(ffns: FFNs) -> FFNs:
    def double(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: weight.double() for name, weight in weights.items()}

    return replace(
        ffns,
        stream_KTD=ffns.stream_KTD.double(),
        branch_KTD=ffns.branch_KTD.double(),
        moe_weights=double(dict(ffns.moe_weights)),
        dense_weights=double(dict(ffns.dense_weights)),
    )


@pytest.mark.parametrize(("run", "naive"), [(FFNs.run_moe, naive_moe), (FFNs.run_dense, naive_dense)])
def test_what_is_timed_is_the_layer(run: Callable[[FFNs], Tensor], naive: Callable[[FFNs], Tensor]) -> None:
    ffns = random_ffns(SMALL, CPU, torch.float32, TORCH)
    assert_near(run(ffns)[0], naive(ffns), naive(in_float64(ffns)))


def test_both_ffns_have_as_many_active_parameters_but_for_the_router() -> None:
    ffns = random_ffns(SMALL, CPU, torch.float32, TORCH)
    routed = sum(weight.numel() for name, weight in ffns.moe_weights.items() if name != "router")
    dense = sum(weight.numel() for weight in ffns.dense_weights.values())
    assert routed * SMALL.num_active // SMALL.num_experts == dense


def test_random_routing_uses_every_expert() -> None:
    size = sizes("cpu")[-1]
    ffns = random_ffns(replace(size, expert_width=8), CPU, torch.float32, TORCH)
    given = ffns.stream_KTD, ffns.branch_KTD, ffns.balance_KE
    choice = ffns.moe.moe(ffns.moe_weights, 0, *given, noise_KE=None, ties_K=None)[2]
    assert choice.load_KE.min() > 0


def test_a_row_has_medians_ranges_and_ratios_of_its_rounds() -> None:
    size = sizes("cpu")[0]
    times = {
        "moe": (0.030, 0.020, 0.060),
        "dense": (0.010, 0.010, 0.020),
        "moe_forward": (0.004, 0.005, 0.006),
        "dense_forward": (0.002, 0.002, 0.002),
    }
    row = latency(size, times)
    assert (row.key, row.unit, row.value) == (size.key, "x", pytest.approx(3.0))  # of 3, 2 and 3
    assert row.numbers["moe_ms"] == pytest.approx(30)
    assert (row.numbers["moe_low_ms"], row.numbers["moe_high_ms"]) == (pytest.approx(20), pytest.approx(60))
    assert row.numbers["forward_ratio"] == pytest.approx(2.5)
    assert row.note == "30.0 ms (20.0 to 60.0) over 10.0 ms (10.0 to 20.0); forward alone 5.0 ms (4.0 to 6.0), 2.50x"


def test_the_rows_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    small = tuple(replace(size, tokens=32, width=16, expert_width=8) for size in sizes("cpu")[::5])
    monkeypatch.setattr(moe, "sizes", lambda device: small)
    threads = torch.get_num_threads()
    rows = [row for part in parts(CPU, rounds=1) for row in part.run()]
    assert [row.key for row in rows] == ["cpu-capacity-8", "cpu-granularity-2"]
    assert all(row.value > 0 and row.numbers["moe_ms"] > row.numbers["moe_low_ms"] - 1e-9 for row in rows)
    assert torch.get_num_threads() == threads


def test_a_layer_without_room_on_the_gpu_is_an_error_that_names_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: MoeSize, device: torch.device) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(moe, "_jobs", full)
    with pytest.raises(HpxferError, match=r"^--row cuda-granularity-64: must fit into the memory of the GPU"):
        row_of(sizes("cuda")[-1], CPU, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_smallest_row_on_a_gpu() -> None:
    row = row_of(replace(sizes("cuda")[0], tokens=1024, width=512, expert_width=256), torch.device("cuda"), 2)
    assert row.value > 0


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    sys.argv = ["hpxfer", "bench", *arguments]
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


def test_an_axis_is_a_choice_of_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    found: list[str] = []

    def chosen(name: str, device: torch.device) -> list[Part]:
        return [Part(keys=(size.key,), run=lambda size=size: found.append(size.key) or []) for size in sizes("cpu")]  # type: ignore[misc, func-returns-value]

    monkeypatch.setattr(command, "_parts", chosen)
    code, _, err = ran(capsys, "moe", "--axis", "granularity", "--device", "cpu", "--output", str(tmp_path))
    assert (code, err) == (0, "")
    assert tuple(found) == keys_along("granularity", "cpu") == tuple(f"cpu-granularity-{k}" for k in (2, 4, 8, 16, 32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--axis", "capacty"), "--axis: must be capacity or granularity, got 'capacty'; did you mean 'capacity'?"),
        (
            ("--axis", "capacity", "--row", "cpu-capacity-8"),
            "--axis, --row: must be one of them, got both; leave one out",
        ),
        (("--row", "capacity-8"), "--row: moe on cpu has no row 'capacity-8'; legal: cpu-capacity-8, "),
    ],
)
def test_mistakes(given: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    code, out, err = ran(capsys, "moe", *given, "--device", "cpu", "--output", str(tmp_path))
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
