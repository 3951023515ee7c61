"""The fuzz of the command line: planted faults are found and kept, its cases repeat, and a short one finds nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fuzz_cases import KINDS, TINY, Materials, case

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="processes are seen through /proc")]

TOOLS = Path(__file__).parent
# A script whose functions are at fault, each run by the fuzz.
PLANTED = """
import sys, time

def boom() -> None:
    raise KeyError("planted")
def sleep() -> None:
    time.sleep(1000)
def spin() -> None:
    while True: pass
def eat() -> None:
    held = b"x" * (700 * 2**20)
def chat() -> None:
    print("x" * 100_000, file=sys.stderr)
def odd() -> None:
    sys.exit(7)
def fine() -> None:
    print("fine")
globals()[sys.argv[1]]()
"""
DRIVER = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv.pop())
from fuzz_cases import Case
from fuzz import Limits, run_all
planted, root = Path(sys.argv[1]), Path(sys.argv[2])
names = ("boom", "sleep", "spin", "eat", "chat", "odd", "fine")
limits = Limits(cpu_s=3.0, peak_bytes=600 * 2**20)
files = {"planted.py": planted.read_bytes()}
cases = (
    Case(number=number, kind="planted", arguments=("planted.py", name), files=files)
    for number, name in enumerate(names)
)
print(json.dumps({one.arguments[1]: ended.faults(limits) for one, _, ended in run_all(cases, root, limits, workers=3)}))
"""


def python(*command: object) -> tuple[int, Any, str]:
    """Return exit code, JSON on stdout and stderr of a Python program."""
    ran = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, timeout=300)
    return ran.returncode, json.loads(ran.stdout or "null"), ran.stderr


def test_planted_faults_are_found(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    code, found, err = python("-c", DRIVER, tmp_path / "planted.py", tmp_path / "root", TOOLS)
    assert code == 0, err
    assert found["fine"] == []
    assert found["boom"] == ["traceback on stderr: KeyError: 'planted'"]
    assert found["sleep"] == ["hangs"]
    assert any(fault.startswith("took ") and fault.endswith(" s") for fault in found["spin"])
    # On a busy machine it takes more than its seconds too. Nothing else may be found of it.
    assert [fault for fault in found["eat"] if fault.endswith(" GB")] != []
    assert all(fault.startswith("took ") for fault in found["eat"])
    assert found["chat"] == ["says 100001 characters on stderr"]
    assert found["odd"] == ["exit code 7"]


def test_a_short_fuzz_finds_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    code, found, err = python(TOOLS / "fuzz.py", "--cases", "60", "--seed", "13", "--json", "--keep", kept)
    assert (code, found["failures"], err) == (0, [], "")
    assert sum(found["codes"].values()) == 60
    assert {name.split()[0] for name in found["codes"]} == set(KINDS)
    assert {name.split()[1] for name in found["codes"]} >= {"0", "2"}  # sound cases and refused ones
    assert not kept.exists()


def test_a_fault_is_kept_with_a_command_that_repeats_it(tmp_path: Path) -> None:
    """No command can do with so little memory: every case is at fault."""
    options = ("--cases", "2", "--kinds", "recipe", "--json", "--gigabytes", "0.05", "--keep", tmp_path / "kept")
    code, found, _ = python(TOOLS / "fuzz.py", *options)
    assert (code, [row["case"] for row in found["failures"]]) == (1, [0, 1])
    for row in found["failures"]:
        folder = tmp_path / "kept" / f"{row['case']:06d}"
        assert (folder / "recipe.yaml").is_file()
        assert (folder / ".stderr").is_file()
        first, second = row["repeat"]
        assert first == f"python tests/tools/fuzz.py --seed 0 --kinds recipe --only {row['case']}"
        assert second.startswith(f"cd {folder} && hpxfer explain ")


def test_the_cases_of_a_seed_are_always_the_same() -> None:
    results, data = {"sweep.yaml": TINY, "trials.parquet": b"PAR1" * 100}, {"words.txt": b"some words " * 50}
    materials = Materials(sweeps={"tiny": TINY}, results=results, recipe=TINY, tables=("sp", "mup"), data=data)
    first, again, others = ([case(materials, seed, n, tuple(KINDS)) for n in range(300)] for seed in (0, 0, 1))
    assert first == again
    assert sum(one == other for one, other in zip(first, others, strict=True)) < 30
    for one in first:
        assert one.arguments[0] not in ("run", "submit", "status", "logs", "stop", "fetch", "bench")
        assert all("\x00" not in text for text in one.arguments)  # no program can be given one
