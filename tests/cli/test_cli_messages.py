"""Bad input: one message and exit code 2, for every kind of it, and never a text as long as what was given."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from checked_models import mlp_recipe
from command_line import hpxfer
from fixture_types import Capsys, Folders, Patch
from foreign_runs import foreign_table
from recipe_data import data
from sweep_text import SWEEP
from tiny import write_tiny

from hpxfer.spec.yaml_file import write_yaml

ROOT = Path(__file__).parents[2]
ROWS = [row for rows in yaml.safe_load((Path(__file__).parent / "messages.yaml").read_text()).values() for row in rows]
SHORT = {
    "MOE": "explain --parameterization completep-moe --base moe.json --target moe.json",
    "SMALL": "explain --sweep small.yaml",
    "SP": "explain --parameterization sp --base moe.json --target",
    "SHOP": "check --module shop:build",
    "JUDGE": "judge runs.csv --map value=lr --map scale=width --map arm=method",
    "TRANSFER": str(ROOT / "results" / "published" / "transfer"),
    "WIDE": f"recipe predict {ROOT / 'results' / 'published' / 'transfer'} --target wide.json",
    "REGIME": str(ROOT / "sweeps" / "limit" / "limit_regime_ii.yaml"),
    "EXPORT": "recipe export recipe.yaml --shape three.json",
}
DATA = 'data: {source: "builtin:stdlib"}'
EDITS = {
    "broken": ("seeds: 2", "seeds: [2"),
    "key": ("seeds: 2", "seed: 2"),
    "type": ("context: 16", "context: wide"),
    "width": ("width: [16, 32]", "width: [16, 20]"),
    "none": (DATA, "data: {source: 'text:none.txt'}"),
    "short": (DATA, "data: {source: 'text:text.txt'}"),
    "head": (DATA, "data: {source: 'tokens:a.bin'}"),
    "id": (DATA, "data: {source: 'tokens:b.bin', vocab_size: 512}"),
    "digest": ('source: "builtin:stdlib"', f'source: "text:none.txt", digest: {"ab" * 16}'),
}
MOE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 32}
SHAPES = {
    "moe": MOE,
    "bare": {name: value for name, value in MOE.items() if name != "head_dim"},
    "wide": {**MOE, "width": 512, "expert_width": 512},
    "three": {**MOE, "width": 64, "depth": 3, "num_experts": 8, "num_active": 2, "expert_width": 128, "head_dim": 16},
    "dense": {"width": 32, "depth": 1, "dense_width": 32, "head_dim": 8},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: Folders) -> Path:
    """A folder with the files that rows name."""
    folder = tmp_path_factory.mktemp("files")
    for name, edit in EDITS.items():
        write_tiny(folder, edit).rename(folder / f"{name}.yaml")
    write_tiny(folder)
    for name, shape in SHAPES.items():
        (folder / f"{name}.json").write_text(json.dumps(shape))
    (folder / "text.txt").write_bytes(b"x" * 300)
    (folder / "a.bin").write_bytes(b"\0" * 2048)
    header, ids = [20240520, 1, 5000] + [0] * 253, [7] * 4999 + [600]
    content = b"".join(n.to_bytes(4, "little") for n in header) + b"".join(n.to_bytes(2, "little") for n in ids)
    (folder / "b.bin").write_bytes(content)
    (folder / "other.yaml").write_text("hpxfer_recipe: 2\nfamily: mamba\n")
    (folder / "small.yaml").write_text(SWEEP)
    shutil.copy(ROOT / "tests" / "golden" / "inputs" / "regime_ii.yaml", folder / "network.yaml")
    (folder / "mlp.yaml").write_text(mlp_recipe().dump())
    (folder / "recipe.yaml").write_text(write_yaml(data()))
    (folder / "table.yaml").write_text(write_yaml(data(parameterization={"name": "nowhere"})))
    (folder / "shop.py").write_text(
        "def build(shape): ...\ndef batch(shape): ...\ndef loss_fn(model, batch): ...\nroles = {}\n"
    )
    foreign_table({"good": 0.0, "plain": -1.0}, seed=1).to_csv(folder / "runs.csv", index=False)
    return folder


@pytest.mark.parametrize(("command", "message"), ROWS)
def test_bad_input_is_one_message_and_exit_code_2(
    command: str, message: str, files: Path, tmp_path: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    words = []
    for word in command.split(" "):
        if word[:1] in "{[" and word:
            Path("given.json").write_text(word)
            word = "given.json"
        words.append(SHORT.get(word, word))
    code, out, err = hpxfer(capsys, *shlex.split(" ".join(words).replace(";", r"\;")))
    sys.modules.pop("shop", None)
    assert (code, not out or "sweep tiny" in out) == (2, True)
    assert message in " ".join(err.split())
    assert err.startswith(("hpxfer: ", "Usage: "))
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.parquet"))
    assert "digest" not in command or hpxfer(capsys, "plan", "digest.yaml")[0] == 0  # its ids are known


LONG = """
plan LONG|plan q.yaml --results LONG|plan q.yaml --hardware LONG|plan q.yaml --LONG|plan q.yaml --max-gpu-hours LONG
recipe write LONG|list LONG|init LONG|report LONG|watch LONG --once|limit LONG|check --sweep LONG|LONG|--LONG
check --parameterization LONG|check --parameterization sp --axis LONG|explain --recipe LONG
explain --parameterization sp --base LONG --target LONG|explain --list --plugin LONG|explain --list --plugin LONG.py
"""


@pytest.mark.parametrize("command", re.split(r"[|\n]", LONG.strip()))
def test_no_message_repeats_a_long_text_whole(command: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path).rename("q.yaml")
    code, out, err = hpxfer(capsys, *command.replace("LONG", "x" * 50_000).split())
    assert (code, out) == (2, "")
    assert 0 < len(err) < 2500
