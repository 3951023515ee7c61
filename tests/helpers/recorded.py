"""What slow tests found, while everything that they depend on is as it was then.

What a compiler makes of a kernel depends on the kernel and on the compiler alone, and so does what Triton's interpreter
computes. A record in tests/records holds the digest of both. A test whose digest is that of the record is skipped, or
reads the record, and any change of a kernel runs it again. `HPXFER_RECORD=1` runs all of them and writes the records.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests" / "records"
PASSED = RECORDS / "passed.json"
RECORDING = os.environ.get("HPXFER_RECORD") == "1"
SUFFIXES = (".py", ".json")
# Tests of the kernels' room that take no time or depend on more than kernels.
ALWAYS = (
    *("test_backend.py", "test_configs.py", "test_cross_entropy_compiled.py", "test_head_limits.py", "test_hopper.py"),
    "test_recorded.py",
)

# Tests of whole models in Triton's interpreter, and the helpers that they read.
IN_MODEL = {
    "tests/model/test_triton_gpt.py": (
        "tests/model/conftest.py",
        "tests/model/gpt_cases.py",
        "tests/model/plain_gpt.py",
    ),
    "tests/kernels/test_strict_step.py": (
        *("hpxfer/train", "hpxfer/data", "hpxfer/trial", "tests/helpers/tiny_trials.py"),
        *("tests/kernels/conftest.py", "tests/kernels/triton_cases.py"),
    ),
}


def compiled_by(name: str, script: Sequence[str], inputs: Sequence[str]) -> Any:
    """Return the JSON that Python prints for these arguments, with warnings as errors and without the interpreter.

    `inputs` are files and folders below the repository's root, beside the kernels.
    """
    digest = digest_of(("hpxfer/kernels", "tests/tools/compiled.py", *inputs), script)
    record = RECORDS / f"{name}.json"
    if not RECORDING and record.exists() and (found := json.loads(record.read_text()))["inputs"] == digest:
        return found["result"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT / "tests" / "tools")
    command = [sys.executable, "-W", "error", *script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    if RECORDING:
        record.write_text(json.dumps({"inputs": digest, "result": result}) + "\n")
    return result


def digest_of(inputs: Sequence[str], words: Sequence[str] = ()) -> str:
    """Return the digest of files and folders below the repository's root, and of the versions that kernels need."""
    return _sha256("\n".join([*map(_version, ("torch", "triton", "numpy")), *words, *map(_digest, inputs)]).encode())


def _version(name: str) -> str:
    try:
        return f"{name} {version(name).partition('+')[0]}"
    except PackageNotFoundError:  # without Triton nothing is as it was recorded, and tests say why they are skipped
        return f"no {name}"


@lru_cache
def _digest(path: str) -> str:
    at = ROOT / path
    files = [at] if at.is_file() else sorted(file for file in at.rglob("*") if file.suffix in SUFFIXES)
    return "\n".join(f"{file.relative_to(ROOT)} {_sha256(file.read_bytes())}" for file in files)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def inputs_of(file: str) -> tuple[str, ...] | None:
    """Return all that the results of a test file depend on; None for one whose tests always run."""
    folder, _, name = file.rpartition("/")
    if file in IN_MODEL:
        return (
            "hpxfer/kernels",
            "hpxfer/model",
            "hpxfer/scaling",
            file,
            *IN_MODEL[file],
            "tests/helpers/tolerances.py",
        )
    if folder != "tests/kernels" or name in ALWAYS:
        return None
    cases = (f"{folder}/{module}.py" for module in ("conftest", "expert_cases", "head_cases", "router_cases"))
    return ("hpxfer/kernels", file, *cases, f"{folder}/triton_cases.py", "tests/helpers/tolerances.py")


class SkipUnchanged:
    """A plugin of pytest: it skips tests of kernels that passed with the same inputs.

    On a machine with a GPU nothing is skipped, as results depend on the device.
    """

    def __init__(self) -> None:
        self.failed: dict[str, bool] = {}
        self.passed: dict[str, str] = json.loads(PASSED.read_text()) if PASSED.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not RECORDING and not torch.cuda.is_available():
            files = {item.nodeid.partition("::")[0] for item in items}
            same = {file for file in files if (found := inputs_of(file)) and self.passed.get(file) == digest_of(found)}
            for item in items:
                if item.nodeid.partition("::")[0] in same:
                    item.add_marker(pytest.mark.skip(reason="passed before with the same kernels and the same Triton"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.failed[file] = self.failed.get(file, False) or report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Record the whole files that passed. Workers of xdist write nothing."""
        config = session.config
        partly = config.option.keyword or any("::" in argument for argument in config.args)
        if RECORDING and not partly and not hasattr(config, "workerinput"):
            found = {file: inputs for file in self.failed if (inputs := inputs_of(file))}
            digests = {file: digest_of(inputs) for file, inputs in found.items() if not self.failed[file]}
            PASSED.write_text(json.dumps(dict(sorted({**self.passed, **digests}.items())), indent=0) + "\n")
