"""`python tests/tools/fuzz.py`: run damaged and absurd input through the real command line, and say what breaks it.

    python tests/tools/fuzz.py --cases 2000 --seed 0 --keep fuzz-failures
    python tests/tools/fuzz.py --seed 0 --only 42 --keep fuzz-failures
    python tests/tools/fuzz.py --cases 500 --kinds sweep,options --json

No command may show a traceback, end with another exit code than 0, 1 or 2, take more than 10 s of CPU time or 2 GB, or
hang. The same seed gives the same cases. The exit code is 1 if a case is at fault: its folder is kept, with its files
and what it printed, and a command repeats it. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz_cases import KINDS, Case, case
from fuzz_materials import Materials, make_materials
from fuzz_run import Ended, Limits, run_all, warm_up


@dataclass(kw_only=True)
class Findings:
    """What a fuzz found."""

    codes: Counter[str] = field(default_factory=Counter)  # by kind and exit code
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def add(self, case: Case, ended: Ended, faults: Sequence[str], repeat: Sequence[str]) -> None:
        """Count a case."""
        command = shlex.join(["hpxfer", *(text[:200] for text in case.arguments)])
        self.codes[f"{case.kind} {ended.code}"] += 1
        self.slowest = max(self.slowest, (round(ended.cpu_s, 2), f"case {case.number}: {command}"))
        self.largest = max(self.largest, (ended.peak_bytes, f"case {case.number}: {command}"))
        if faults:
            row = {"case": case.number, "kind": case.kind, "faults": [*faults], "command": command}
            self.failures.append({**row, "repeat": list(repeat)})

    def text(self) -> str:
        """Return the findings for a reader."""
        lines = [f"{sum(self.codes.values())} cases, {len(self.failures)} at fault"]
        lines += [f"  {name}: {count}" for name, count in sorted(self.codes.items())]
        lines += [f"slowest: {self.slowest[0]} s of CPU time, {self.slowest[1]}"]
        lines += [f"largest: {self.largest[0] / 2**30:.2f} GB, {self.largest[1]}"]
        return "\n".join(lines)


def failure_text(row: dict[str, Any]) -> str:
    """Return one failure for a reader, with the commands that repeat it."""
    return "\n".join(
        [f"case {row['case']} ({row['kind']}): {'; '.join(row['faults'])}", *map("  {}".format, row["repeat"])]
    )


def main() -> int:
    """Run the fuzz that the command line asks for, and return the exit code."""
    asked = _parsed()
    kinds = asked.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        print(f"fuzz: --kinds must be of {', '.join(KINDS)}, got {', '.join(unknown)}", file=sys.stderr)  # noqa: T201
        return 2
    numbers = [asked.only] if asked.only is not None else range(asked.cases)
    materials = _in_a_child()
    warm_up()
    limits, found = Limits(cpu_s=asked.seconds, peak_bytes=int(asked.gigabytes * 2**30)), Findings()
    keep = asked.keep.absolute()
    with tempfile.TemporaryDirectory(prefix="hpxfer-fuzz-") as root:
        cases = (case(materials, asked.seed, number, kinds) for number in numbers)
        for one, folder, ended in run_all(cases, Path(root), limits, asked.workers):
            faults = ended.faults(limits)
            kept = keep / folder.name
            again = f"python tests/tools/fuzz.py --seed {asked.seed} --kinds {asked.kinds} --only {one.number}"
            call = f"cd {shlex.quote(str(kept))} && {shlex.join(['hpxfer', *one.arguments])}"
            repeat = [again, *([call] if len(call) < 2000 else [])]
            found.add(one, ended, faults, repeat)
            if faults:
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept, symlinks=True)
                if not asked.json:
                    print(failure_text(found.failures[-1]), flush=True)  # noqa: T201
            shutil.rmtree(folder, ignore_errors=True)
    found.failures.sort(key=lambda row: int(row["case"]))  # cases end in any order
    print(json.dumps(vars(found)) if asked.json else found.text())  # noqa: T201
    return int(bool(found.failures))


def _in_a_child() -> Materials:
    """Return the materials, made in a process of their own: this one forks, and should have no threads."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        with os.fdopen(writer, "wb") as file:
            pickle.dump(make_materials(), file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(pid, 0)
    materials: Materials = pickle.loads(content)
    return materials


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/tools/fuzz.py", description="Fuzz the command line.")
    parser.add_argument("--cases", type=int, default=2000, help="how many; default: 2000")
    parser.add_argument("--seed", type=int, default=0, help="what decides the cases; default: 0")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for the cases at fault")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time; default: 2")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU time of a case at most; default: 10")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="memory of a case at most; default: 2")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
