"""Materials: the sound files that a fuzz mutates. They are made without training, by real code."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

RESULTS = "results/tiny"
TINY = b"""\
name: tiny
model:
  family: gpt
  base: {width: 16, depth: 1, num_experts: 2, num_active: 1, expert_ratio: 1, head_dim: 8}
  context: 16
data: {source: "builtin:stdlib"}
training: {batch_tokens: 64, steps: 60, validation_tokens: 128}
parameterizations: [completep-moe, sp]
axes:
  width: [16, 32, 64]
grid:
  lr: {log2: [-9, -3]}
seeds: 2
resources: {executor: local, workers: 2}
"""
BASE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 32}
_NONE = dict.fromkeys(("num_stored", "finished", "diverged", "stopped", "failed", "running"), 0)
_SHAPE = {"label": "w16 d1 E2A1 h16", "num_trials": 10, **_NONE, "finished": 10, "best_loss": 3.6, "best": "lr 2^-5"}
_COUNTS = {"num_left": 10, "finished": 10, "diverged": 0, "stopped": 0, "failed": 0, "tokens": 11520, "eta_s": None}
_STATUS = {"version": 2, "sweep": "tiny", "at_most": False, "elapsed_s": 3.4, "tokens_per_s": 9.5, **_COUNTS}
_STATUS |= {"running": [], "shapes": [_SHAPE], "num_notes": 1, "notes": ["a note"], "errors": []}
_PROGRESS = {"state": "ended", "run": "eb4fe343972f9047", "counter": 3, "host": "here", "pid": 1, "machine": None}
_PROGRESS |= {"started": None, "progress": _STATUS}
_MAGIC, _VERSION, _TOKENS = 20240520, 1, 20_000


@dataclass(frozen=True, kw_only=True)
class Materials:
    """Sound files by name, and the names of the tables."""

    sweeps: Mapping[str, bytes]
    results: Mapping[str, bytes]  # relative to the results folder
    recipe: bytes
    tables: tuple[str, ...]
    data: Mapping[str, bytes]
    tiny: bytes = TINY
    base: bytes = json.dumps(BASE).encode()
    target: bytes = json.dumps({**BASE, "width": 128, "depth": 4, "expert_width": 128}).encode()

    def source_of(self, name: str) -> bytes:
        """Return the data source that reads a file of `data`."""
        return f"{'tokens' if name.endswith('.bin') else 'text'}:{name}".encode()


def make_materials() -> Materials:
    """Return the materials: the examples of the package, and a sweep with planted results."""
    from planted_store import PlantedStore, planted_result

    from hpxfer.cli.init import examples
    from hpxfer.data import data_ref
    from hpxfer.recipe import recipe_from_results, write_recipe
    from hpxfer.report.write import write_report
    from hpxfer.results import load_results
    from hpxfer.scaling.tables import PARAMETERIZATIONS
    from hpxfer.spec.load import parse_sweep
    from hpxfer.store import Store
    from hpxfer.trial import Expansion

    spec = parse_sweep(TINY.decode())
    expansion = Expansion(spec, data_ref(spec.data))
    with TemporaryDirectory() as folder:
        where = Path(folder) / RESULTS
        store = Store.open(where, write=True)
        store.append([(trial, planted_result(trial, PlantedStore())) for trial in expansion.trials()])
        store.compact()
        store.save_sweep(spec, expansion.setting.data_digest)
        found = write_report([where], form="text", output=Path(folder) / "out").reports[0]
        write_recipe(recipe_from_results(load_results(where), found), where / "recipe.yaml")
        (where / "progress.json").write_text(json.dumps(_PROGRESS))
        results = {path.name: path.read_bytes() for path in sorted(where.iterdir()) if path.is_file()}
    return Materials(
        sweeps={name: path.read_bytes() for name, path in examples().items()} | {"tiny": TINY},
        results=results,
        recipe=results["recipe.yaml"],
        tables=tuple(sorted(PARAMETERIZATIONS)),
        data={"words.txt": b"the quick brown fox jumps over the lazy dog\n" * 400, "shard.bin": _shard()},
    )


def _shard() -> bytes:
    header = struct.pack("<256i", _MAGIC, _VERSION, _TOKENS, *([0] * 253))
    return header + b"".join(struct.pack("<H", (7 * k) % 500) for k in range(_TOKENS))
