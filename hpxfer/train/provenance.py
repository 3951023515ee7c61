"""Provenance: the machine, the versions and the kernels that trained a stack."""

from __future__ import annotations

import datetime
import json
import platform
import resource
import socket
import sys
from typing import Any

import torch

import hpxfer
from hpxfer.host.machine import cpu_name
from hpxfer.train.device import Setup


def provenance(setup: Setup) -> dict[str, Any]:
    """Return the fields of a TrialResult that name the machine, its memory, the versions and the kernels."""
    device = torch.cuda.get_device_name(setup.device) if setup.cuda else "cpu"
    versions = {"hpxfer": hpxfer.__version__, "python": platform.python_version(), "torch": torch.__version__}
    return {
        "peak_bytes": _peak_bytes(setup),
        "device": device,
        "cpu": None if setup.cuda else f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}",
        "determinism": setup.determinism,
        "backend": setup.backend.name,
        "backend_reason": setup.backend.reason,
        "kernel_configs": _configs(setup),
        "host": socket.gethostname(),
        "versions": json.dumps(versions),
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    }


def _configs(setup: Setup) -> str | None:
    if not setup.backend.is_triton:
        return None
    from hpxfer.kernels.configs import config_hash

    return config_hash()


def _peak_bytes(setup: Setup) -> int:
    if setup.cuda:
        return torch.cuda.max_memory_allocated(setup.device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
