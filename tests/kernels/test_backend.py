"""The kernels that a stack gets, and the message if a machine lacks them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hpxfer.kernels import backend as module
from hpxfer.kernels.backend import BackendError, choose_backend
from hpxfer.kernels.usable import Asked

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
KERNELS = Path(module.__file__).parent


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make this machine look like one with an H200 and triton."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    return monkeypatch


def test_cpu_has_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert choose_backend(CPU, strict=True).name == "torch"
    with pytest.raises(BackendError, match="the device is cpu; give kernels: auto or torch"):
        choose_backend(CPU, asked="triton", strict=True)


def test_the_interpreter_is_only_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_backend(CPU, strict=True).name == "torch"
    assert choose_backend(CPU, asked="triton", strict=True).is_triton


def test_cuda_has_triton_unless_torch_is_asked_for(cuda: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert choose_backend(CUDA, strict=True).is_triton
    module._log_once.cache_clear()
    with caplog.at_level(logging.INFO, "hpxfer"):
        assert choose_backend(CUDA, asked="torch", strict=False).name == "torch"
    assert "kernels: torch (asked for, a debugging aid on CUDA" in caplog.text
    with pytest.raises(BackendError, match="strict on CUDA needs the Triton kernels"):
        choose_backend(CUDA, asked="torch", strict=True)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("asked", ["auto", "triton"])
@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        (torch.cuda, "get_device_capability", lambda device: (7, 5), "capability 7.5; take a CUDA device of"),
        (torch.version, "hip", "6.2", "ROCm; take a CUDA device of capability 8.0 or more, or give device: cpu"),
        (module.importlib.util, "find_spec", lambda name: None, r"not installed; pip install 'hpxfer\[triton\]'"),
    ],
)
def test_cuda_without_triton_is_an_error_with_a_fix(
    cuda: pytest.MonkeyPatch, where: object, name: str, value: object, reason: str, asked: Asked, strict: bool
) -> None:
    cuda.setattr(where, name, value)
    with pytest.raises(BackendError, match=f"resources.kernels: {asked} means the Triton kernels.*{reason}"):
        choose_backend(CUDA, asked=asked, strict=strict)
    assert choose_backend(CUDA, asked="torch", strict=False).name == "torch"


def test_the_choice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    module._log_once.cache_clear()
    with caplog.at_level(logging.INFO, "hpxfer"):
        for _ in range(2):
            choose_backend(CPU, asked="torch", strict=True)
    assert [record.getMessage() for record in caplog.records] == ["kernels: torch (asked for), strict"]


def test_modules_work_without_triton() -> None:
    """All modules except the Triton kernels can be imported without triton, and load nothing of it."""
    names = sorted(path.stem for path in KERNELS.glob("*.py") if not path.stem.endswith("_triton"))
    assert {"experts", "grouped", "routing"} <= set(names)
    code = "import sys\nsys.modules['triton'] = None\n" + "\n".join(f"import hpxfer.kernels.{name}" for name in names)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=KERNELS.parent)
