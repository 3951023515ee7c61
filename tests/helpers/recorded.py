"""What a slow script printed, while everything that it depends on is as it was then.

What a compiler makes of a kernel depends on the kernel and on the compiler alone. A record holds the digest of both
beside the result, and a script runs again as soon as the digest differs. `HPXFER_RECORD=1` writes what it prints then.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "records"


def compiled_by(name: str, script: Sequence[str], inputs: Sequence[str]) -> Any:
    """Return the JSON that Python prints for these arguments, with warnings as errors and without the interpreter.

    `inputs` are files and folders below the repository's root. The kernels and the versions of their compiler always
    count.
    """
    digest = _digest(("hpxfer/kernels", "hpxfer/bench/compiled.py", *inputs), script)
    record = RECORDS / f"{name}.json"
    if record.exists() and (found := json.loads(record.read_text()))["inputs"] == digest:
        return found["result"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", *script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    if os.environ.get("HPXFER_RECORD") == "1":
        record.write_text(json.dumps({"inputs": digest, "result": result}, indent=0) + "\n")
    return result


def _digest(inputs: Sequence[str], script: Sequence[str]) -> str:
    parts = [f"triton {version('triton')}", f"torch {version('torch').partition('+')[0]}", *script]
    for path in (ROOT / name for name in inputs):
        files = sorted(path.rglob("*.py")) + sorted(path.rglob("*.json")) if path.is_dir() else [path]
        parts += [f"{file.relative_to(ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
