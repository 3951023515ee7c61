"""The fuzz of the command line: its cases, what it takes for a fault, and a short one that must find nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import fuzz_mutate as mutate
import pytest
from fuzz_cases import KINDS, case
from fuzz_materials import TINY, Materials
from fuzz_run import Ended, Limits

pytestmark = pytest.mark.slow

TOOLS = Path(__file__).parent
FUZZ = str(TOOLS / "fuzz.py")
MATERIALS = Materials(
    sweeps={"tiny": TINY},
    results={"sweep.yaml": TINY, "trials.parquet": b"PAR1" * 100},
    recipe=TINY,
    tables=("sp", "mup"),
    data={"words.txt": b"some words " * 50, "shard.bin": bytes(2000)},
)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a process is measured through /proc")

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
from fuzz_run import Limits, run_all
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


@LINUX
def test_planted_faults_are_found(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "planted.py"), str(tmp_path / "root"), str(TOOLS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(ran.stdout)
    assert found["fine"] == []
    assert found["boom"] == ["traceback on stderr: KeyError: 'planted'"]
    assert found["sleep"] == ["hangs"]
    assert any(fault.startswith("took ") and fault.endswith(" s") for fault in found["spin"])
    # On a busy machine it takes more than its seconds too. Nothing else may be found of it.
    assert [fault for fault in found["eat"] if fault.endswith(" GB")] != []
    assert all(fault.startswith("took ") for fault in found["eat"])
    assert found["chat"] == ["says 100001 characters on stderr"]
    assert found["odd"] == ["exit code 7"]


@LINUX
def test_a_short_fuzz_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, FUZZ, "--cases", "60", "--seed", "13", "--json"]
    ran = subprocess.run(
        [*command, "--keep", str(tmp_path / "kept")], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.stderr == ""
    found = json.loads(ran.stdout)
    assert found["failures"] == []
    assert ran.returncode == 0
    assert sum(found["codes"].values()) == 60
    assert {name.split()[0] for name in found["codes"]} == set(KINDS)
    assert {name.split()[1] for name in found["codes"]} >= {"0", "2"}  # sound cases and refused ones
    assert not (tmp_path / "kept").exists()


@LINUX
def test_a_fault_is_kept_with_a_command_that_repeats_it(tmp_path: Path) -> None:
    command = [sys.executable, FUZZ, "--cases", "2", "--kinds", "recipe", "--json"]
    # No command can do with so little memory: every case is at fault.
    ran = subprocess.run(
        [*command, "--gigabytes", "0.05", "--keep", str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 1
    failures = json.loads(ran.stdout)["failures"]
    assert [row["case"] for row in failures] == [0, 1]
    for row in failures:
        folder = tmp_path / "kept" / f"{row['case']:06d}"
        assert (folder / "recipe.yaml").is_file()
        assert (folder / ".stderr").is_file()
        first, second = row["repeat"]
        assert first == f"python tests/tools/fuzz.py --seed 0 --kinds recipe --only {row['case']}"
        assert second.startswith(f"cd {folder} && hpxfer explain ")


def test_an_unknown_kind_is_named() -> None:
    command = [sys.executable, FUZZ, "--kinds", "sweep,nonsense"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "got nonsense" in ran.stderr


def test_the_cases_of_a_seed_are_always_the_same() -> None:
    kinds = tuple(KINDS)
    first = [case(MATERIALS, 0, number, kinds) for number in range(300)]
    assert first == [case(MATERIALS, 0, number, kinds) for number in range(300)]
    assert first[41] == case(MATERIALS, 0, 41, kinds)  # alone, as `--only` makes it
    others = [case(MATERIALS, 1, number, kinds) for number in range(300)]
    assert sum(one == other for one, other in zip(first, others, strict=True)) < 30
    for one in first:
        assert one.arguments[0] not in ("run", "submit", "status", "logs", "stop", "fetch", "bench")
        assert all("\x00" not in text for text in one.arguments)  # no program can be given one


@pytest.mark.parametrize("change", [mutate.of_yaml, mutate.of_json, mutate.of_text, mutate.of_bytes])
def test_most_mutations_change_something(change: mutate.Mutation) -> None:
    for data in (TINY, b'{"a": [1, {"b": 2}]}', b"", b"\xff\x00"):
        changed = [change(data, Random(number)) != data for number in range(200)]
        assert sum(changed) > 100


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, []),
        ({"code": 2}, []),
        ({"code": 70}, ["exit code 70"]),
        ({"code": None, "signal": 11}, ["ended by SIGSEGV"]),
        ({"code": None, "signal": 9, "wall_s": 70.0}, ["hangs"]),
        ({"cpu_s": 10.5}, ["took 10.5 s"]),
        ({"wall_s": 40.0}, []),  # a busy machine
        ({"peak_bytes": 3 * 2**30}, ["took 3.00 GB"]),
        (
            {"code": 1, "err": "Traceback (most recent call last):\n  x\nKeyError: 1\n"},
            ["traceback on stderr: KeyError: 1"],
        ),
        ({"code": 1, "out": "Traceback (most recent call last):\nOSError"}, ["traceback on stdout: OSError"]),
    ],
)
def test_what_is_a_fault(changes: dict[str, object], fault: list[str]) -> None:
    sound = {"code": 0, "signal": None, "cpu_s": 1.0, "wall_s": 1.0, "peak_bytes": 2**30, "out": "", "err": ""}
    assert Ended(**(sound | changes)).faults(Limits()) == fault  # type: ignore[arg-type]
