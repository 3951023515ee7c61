"""What the compiler says of every product of the table of block sizes: `python tests/tools/compile_facts.py`.

No GPU is needed. Every product of every entry for sm_90 is compiled, for layers with one matrix and with two, forward
and backward. `--triton 3.6.0` installs this version of Triton in a folder of its own and runs the same there. `--output
results/bench/compile_facts.jsonl` keeps the record, one line per version of Triton.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from compiled import Facts, compiling, fault_of
from docs_markdown import table as markdown_table

from hpxfer.kernels import experts_launch
from hpxfer.kernels.configs import Config, table
from hpxfer.kernels.experts_launch import Layer, Rows, Weights
from hpxfer.kernels.grouped_launch import matrix_gradient, product, tiles_of

ARCHITECTURE, CAPABILITY = "sm90", 90
RECORDS = Path("results/bench/compile_facts.jsonl")
_GROUPS, _ROWS = 4, 4096
# The size of matrices in an entry without a bound.
_WIDEST = 2048
_NAMES = {"rows_product": "product", "hidden_gradient": "hidden", "matrix_gradient": "gradient"}


def launch_layer(config: Config, *, gated: bool) -> None:
    """Launch every product of a layer of experts, forward and backward, and of the grouped product."""
    size = config.max_features or _WIDEST
    dtype = torch.bfloat16 if config.dtype_bytes == 2 else torch.float32
    index = torch.zeros(_ROWS, dtype=torch.int32)
    ends = (torch.arange(1, _GROUPS + 1) * (_ROWS // _GROUPS)).to(torch.int32)
    x, gate = torch.zeros(_ROWS, size, dtype=dtype), torch.zeros(_ROWS, 1)
    w = torch.zeros(_GROUPS, size, size, dtype=dtype)
    tiles = tiles_of(ends, _ROWS, config.m)
    weights = Weights(w, w if gated else None, w, None, None, None)
    layer = Layer(
        rows=Rows(index, index, ends),
        num_active=1,
        groups_at_once=_GROUPS,
        activation="swiglu" if gated else "gelu",
        config=config,
        tiles=tiles,
    )
    _, u, v = experts_launch.forward(layer, x, weights, gate)
    experts_launch.backward(layer, x, weights, gate, u, v, x)
    if not gated:
        product(x, w, tiles, config.product)
        product(x, w.transpose(1, 2), tiles, config.product)
        matrix_gradient(x, x, ends, config, _GROUPS, _ROWS, torch.float32)


def compiled_products() -> Iterator[tuple[int, Config, bool, Facts]]:
    """Yield (entry, its config, whether the layer has two matrices, facts) of every product of the table."""
    with compiling(CAPABILITY) as facts:
        for entry, config in enumerate(table()[ARCHITECTURE]):
            seen: set[int] = set()
            for gated in (False, True):
                facts.clear()
                launch_layer(config, gated=gated)
                for one in facts:
                    if one.loops and id(one) not in seen:
                        seen.add(id(one))
                        yield entry, config, gated, one


def rows() -> list[dict[str, Any]]:
    """Return one row per product of the table."""
    return [
        {
            "entry": entry,
            "dtype_bytes": config.dtype_bytes,
            "max_rows": config.max_rows,
            "max_features": config.max_features,
            "layer": "two matrices" if gated else "one matrix",
            **one.row(),
            "fault": fault_of(one),
        }
        for entry, config, gated, one in compiled_products()
    ]


def record(command: str) -> dict[str, Any]:
    """Return the rows with the versions, the date and the command."""
    import triton

    versions = {"triton": triton.__version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"date": date, "command": command, "versions": versions, "rows": rows()}


def keep(new: dict[str, Any], path: Path) -> None:
    """Write a record beside those of other versions of Triton."""
    old = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    kept = [one for one in old if one["versions"]["triton"] != new["versions"]["triton"]]
    ordered = sorted([*kept, new], key=lambda one: [int(part) for part in one["versions"]["triton"].split(".")])
    path.write_text("".join(json.dumps(one) + "\n" for one in ordered), encoding="utf-8")


def facts_markdown(root: Path) -> str:
    """Return the committed records as a table: for each entry and product the extremes over its kernels."""
    records = [json.loads(line) for line in (root / RECORDS).read_text(encoding="utf-8").splitlines()]
    cells: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for one in records:
        for row in one["rows"]:
            key = (_class_of(row), _NAMES.get(row["kernel"], row["kernel"]))
            cells.setdefault(key, {}).setdefault(one["versions"]["triton"], []).append(row)
    versions = [one["versions"]["triton"] for one in records]
    lines = [[*key, *(_cell(by_version.get(version, [])) for version in versions)] for key, by_version in cells.items()]
    commands = "; ".join(f"Triton {one['versions']['triton']} on {one['date']}: `{one['command']}`" for one in records)
    header = ("entry of sm_90", "product", *(f"Triton {version}" for version in versions))
    return f"{markdown_table(header, lines)}\n\n{commands}."


def _class_of(row: dict[str, Any]) -> str:
    words = [f"{row['dtype_bytes']} bytes"]
    words += [f"up to {row['max_rows']} rows per group"] if row["max_rows"] else []
    words += [f"up to {row['max_features']} features"] if row["max_features"] else []
    return ", ".join(words)


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    buffers = min(int(buffer.partition("x")[0]) for row in rows for buffer in row["buffers"])
    blocks = min(row["blocks_per_multiprocessor"] for row in rows)
    most = {name: max(row[name] for row in rows) for name in ("registers", "spill_bytes", "shared_bytes")}
    return (
        f"{most['registers']} registers, {most['spill_bytes']} B spilled, {most['shared_bytes'] // 1024} KiB shared, "
        f"{buffers} buffers, {blocks} per multiprocessor"
    )


def run_with(version: str, options: Sequence[str]) -> int:
    """Run this program with another version of Triton, in an environment that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*install, f"triton=={version}" if version[0].isdigit() else version], check=True)
        paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_CACHE_DIR": f"{folder}/cache"}
        return subprocess.run([sys.executable, __file__, *options], env=environment, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Print every product, and return 1 if one spills or has no pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triton", metavar="VERSION", help="of Triton, such as 3.6.0, or a wheel of it")
    parser.add_argument("--output", type=Path, help=f"such as {RECORDS}")
    parser.add_argument("--command", default=" ".join(["python tests/tools/compile_facts.py", *arguments]))
    options = parser.parse_args(arguments)
    if options.triton:
        output = ["--output", str(options.output)] if options.output else []
        return run_with(options.triton, [*output, "--command", options.command])
    found = record(options.command)
    for row in found["rows"]:
        print(  # noqa: T201
            f"{_class_of(row):40} {row['layer']:12} {_NAMES.get(row['kernel'], row['kernel']):8} {_cell([row])}"
            + (f"  FAULT: {row['fault']}" if row["fault"] else "")
        )
    if options.output:
        keep(found, options.output)
    return 1 if any(row["fault"] for row in found["rows"]) else 0


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    sys.exit(main(sys.argv[1:]))
