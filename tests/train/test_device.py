"""The switches that a run sets, and sets back."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from hpxfer.errors import HpxferError
from hpxfer.train import device as device_module
from hpxfer.train.device import CPU, Setup, one_thread, setup_for, switched

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("determinism", [None, "strict", "fast"])
def test_on_a_cpu_strict_and_fast_are_the_same_code(determinism: str | None) -> None:
    found = setup_for("cpu", determinism)
    assert found.determinism == (determinism or "strict")
    assert found.backend.name == "torch"
    assert found.backend.strict
    assert (found.compiled, found.captured, found.steps_per_read) == (False, False, 1)


def test_triton_on_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(HpxferError, match="triton"):
        setup_for("cpu", kernels="triton")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make this machine look like one with an H200 and triton."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return monkeypatch


def test_cuda_captures_and_compiles_its_steps_unless_torch_is_there_to_debug(cuda: pytest.MonkeyPatch) -> None:
    found = setup_for()
    assert (found.backend.name, found.compiled, found.captured) == ("triton", True, True)
    aid = setup_for(kernels="torch")
    assert (aid.backend.name, aid.compiled, aid.captured) == ("torch", False, False)


def test_cuda_without_triton_does_not_fall_back_to_torch(cuda: pytest.MonkeyPatch) -> None:
    cuda.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HpxferError, match=r"triton is not installed; pip install 'hpxfer\[triton\]'"):
        setup_for()


def test_one_thread_and_exact_products_while_it_runs() -> None:
    torch.set_num_threads(2)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction

    def run() -> None:
        with switched(CPU):
            assert torch.get_num_threads() == 1
            assert not matmul.allow_tf32
            assert not matmul.allow_bf16_reduced_precision_reduction
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert torch.get_num_threads() == 2
    assert (matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction) == before


@pytest.mark.parametrize(("determinism", "strict"), [("strict", True), ("fast", False)])
def test_strict_on_cuda_asks_for_deterministic_algorithms(determinism: str, strict: bool) -> None:
    setup = Setup(device=torch.device("cuda"), determinism=determinism, backend=CPU.backend)  # type: ignore[arg-type]
    assert not torch.are_deterministic_algorithms_enabled()
    with switched(setup):
        assert torch.are_deterministic_algorithms_enabled() is strict
        assert torch.utils.deterministic.fill_uninitialized_memory is not strict  # type: ignore[attr-defined]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_cublas_gets_its_workspace_before_cuda_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.setenv(name, "")  # so that it is put back
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    device_module.fix_workspace()
    assert device_module.os.environ[name] == ":4096:8"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    device_module.fix_workspace()  # as it should be
    monkeypatch.setenv(name, ":0:0")
    with pytest.raises(HpxferError, match="before CUDA starts, got ':0:0'"):
        device_module.fix_workspace()


@pytest.mark.gpu
@needs_gpu
def test_cuda_is_fast_by_default() -> None:
    found = setup_for("cuda")
    assert found.determinism == "fast"
    assert not found.backend.strict
    assert found.backend.is_triton
    assert found.captured


def test_one_thread_is_for_the_inside_only() -> None:
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
