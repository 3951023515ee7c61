"""Ray sends no statistics of its use from a cluster that somebody starts by our pages, scripts and messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "sweeps").rglob("*.md"))]
BLOCKS = [
    (path.name, block)
    for path in PAGES
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    if "ray start" in block
]
# Stands in for `ray`: it prints what Ray itself would decide in that environment.
STUB = f"""#!/bin/sh
case "$1" in start) exec {sys.executable} -c \
'import sys; from ray._common.usage import usage_lib; print("enabled", usage_lib.usage_stats_enabled())' "$@";; esac
"""


def enabled(script: str, folder: Path) -> list[str]:
    """Return what Ray decides about its statistics at every `ray start` of a shell script."""
    stub = folder / "ray"
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**kept, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    end = subprocess.run(["sh", "-e", "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert end.returncode == 0, end.stderr
    return end.stdout.splitlines()


def test_a_cluster_that_is_started_by_a_page_sends_none(tmp_path: Path) -> None:
    """Each block is a shell of its own: it is what one copies on one machine."""
    assert len(BLOCKS) >= 4
    found = {(name, block): enabled(block, tmp_path) for name, block in BLOCKS}
    assert set(map(tuple, found.values())) == {("enabled False",)}, found


def test_without_the_variable_ray_would_send_them(tmp_path: Path) -> None:
    assert enabled("ray start --head", tmp_path) == ["enabled True"]


def joined(path: Path) -> str:
    """Return a file with the lines of its split texts as one."""
    return re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8"))


FILES = [*(ROOT / "hpxfer").rglob("*.py"), *(ROOT / "sweeps" / "cluster").glob("*.sh")]
HEADS = [path for path in sorted(FILES) if "ray start --head" in joined(path)]


@pytest.mark.parametrize("path", HEADS, ids=lambda path: path.name)
def test_a_script_or_a_message_that_starts_a_head_turns_them_off(path: Path) -> None:
    text = joined(path)
    for start in re.finditer(r"ray start --head[^`]*", text):
        before = text[: start.start()]
        assert "--disable-usage-stats" in start.group() or "export RAY_USAGE_STATS_ENABLED=0" in before, start.group()


def test_the_messages_and_the_script_are_found() -> None:
    assert {"client.py", "ray_session.py", "slurm.sh"} <= {path.name for path in HEADS}
