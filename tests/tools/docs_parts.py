"""The generated parts of the docs, each made from code or from committed results."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs_markdown import table
from rooms import levels, room_graph

from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.table import Row
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec.presets import PRESETS, REFUSED

FACTORS = ("init_std", "lr", "eps", "weight_decay", "forward")
HEADINGS = ("role", "init std", "LR", "eps", "weight decay", "forward", "source")
OPTIMIZERS = {"adam": "Adam", "sgd": "SGD", "muon": "Muon"}

Part = Callable[[Path], str]


def tables_markdown(root: Path) -> str:
    """Return one row per parameterization: name, source, axes, optimizers, conventions."""
    rows = []
    for name in PARAMETERIZATIONS:
        entry = PARAMETERIZATIONS.get(name)
        axes = ", ".join(entry.axes) + (f" (Adam alone: {', '.join(entry.adam_axes)})" if entry.adam_axes else "")
        conventions = ", ".join(f"`{key}`" for key in entry.conventions) or "none"
        link = f"[`{entry.name}`](#{entry.name})"
        rows.append((link, entry.source, axes, ", ".join(OPTIMIZERS[key] for key in entry.rows), conventions))
    return table(("name", "source", "axes", "optimizers", "conventions"), rows)


def conventions_markdown(root: Path) -> str:
    """Return one row per convention: the legal values and what they mean."""
    found = {key: entry for row in PARAMETERIZATIONS.rows() for key, entry in row.conventions.items()}
    return table(
        ("convention", "legal values", "meaning"),
        [(f"`{key}`", f"`{entry.spell()}`", entry.doc) for key, entry in found.items()],
    )


def rules_markdown(root: Path) -> str:
    """Return every table in full: a section per parameterization, a Markdown table per optimizer."""
    return "\n\n".join(rules_of(name) for name in PARAMETERIZATIONS.names())


def rules_of(name: str) -> str:
    """Return one table in full: what every role's base values are multiplied by."""
    choice = parameterization(name)
    parts = [f"### {name}", choice.table.doc]
    for optimizer in choice.table.rows:
        parts += [f"`{name}`, {OPTIMIZERS[optimizer]} ({choice.table.source}):", _rows(choice, optimizer)]
    return "\n\n".join(parts)


def _rows(choice: Parameterization, optimizer: str) -> str:
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in choice.rows(optimizer):  # type: ignore[arg-type]
        groups.setdefault(_cells(row), []).append(f"`{row.role}`")
    return table(HEADINGS, [(", ".join(roles), *cells) for cells, roles in groups.items()])


def _cells(row: Row) -> tuple[str, ...]:
    return (*(f"`{getattr(row, name)}`" for name in FACTORS), row.source)


def presets_markdown(root: Path) -> str:
    """Return what each preset sets, what it leaves to the file, and the real models that no preset covers."""
    sections = [
        "### What they set",
        preset_table(),
        "### What they leave out",
        table(("preset", "the real model also has"), [(f"`{key}`", row.leaves_out) for key, row in PRESETS.items()]),
        "### Models that are refused",
        table(("model", "why, and what comes near"), [(f"`{key}`", why) for key, why in REFUSED.items()]),
    ]
    return "\n\n".join(sections)


def preset_table() -> str:
    """Return one row per option that a preset sets, and one column per preset."""
    keys = dict.fromkeys(key for row in PRESETS.values() for key in row.options)
    rows = [
        (f"`{key}`", *(_option(row.options[key]) if key in row.options else "" for row in PRESETS.values()))
        for key in keys
    ]
    return table(("key of `model`", *(f"`{name}`" for name in PRESETS)), rows)


def _option(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_option(part)}" for key, part in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def homes_markdown(root: Path) -> str:
    """Return one row per class of transformers that holds exported weights: the options that it has room for."""
    from hpxfer.weights.homes import HOMES

    rows = []
    for home in HOMES:
        options = "; ".join(f"{key} {' or '.join(map(_option, legal))}" for key, legal in home.options.items())
        dense = "any block" if home.dense_anywhere else "the first ones" if home.dense_first else "none"
        dense = dense if home.has_experts else "all"
        rows.append((f"`{home.model_type}`", options, dense, home.shared, "yes" if home.has_router_bias else "no"))
    return table(("class", "options", "dense blocks", "shared experts", "bias that balances"), rows)


def quickstart_yaml(root: Path) -> str:
    """Return the sweep file of the quickstart as a code block."""
    return f"```yaml\n{(root / 'sweeps' / 'quickstart.yaml').read_text(encoding='utf-8')}```"


def verdict_text(root: Path) -> str:
    """Return the short report on the published quickstart as a code block."""
    return _report_text(root, "summary")


def verdict_full_text(root: Path) -> str:
    """Return the full report on the published quickstart as a code block."""
    return _report_text(root, "to_text")


def _report_text(root: Path, method: str) -> str:
    from hpxfer.analysis import transfer_report
    from hpxfer.results import load_results

    report = transfer_report(load_results(root / "results" / "published" / "quickstart"))
    return f"```text\n{getattr(report, method)().strip()}\n```"


def bench_markdown(root: Path) -> str:
    """Return the latest committed run of every benchmark. What was never run says so."""
    from goals import bench_markdown as tables

    return tables(root / "results" / "bench")


def roofline_markdown(root: Path) -> str:
    """Return the predicted times of the parts of a step, for the base and its dense twin."""
    from roofline import HEADINGS, Machine, measured_groups, rows_of

    parts = []
    for name in ("base-32k", "twin-32k", "large"):
        rows = rows_of(name, Machine(), measured_groups(name, root / "results" / "bench"))
        parts += [f"`python tests/bench/roofline.py --case {name}`:", table(HEADINGS, rows)]
    return "\n\n".join(parts)


def error_rates_markdown(root: Path) -> str:
    """Return the latest committed run of the error rates, beside the first one on the same worlds."""
    from error_rates import error_rates_tables

    first, *others = _runs(root, "error_rates")
    return error_rates_tables(others[-1], first) if others else error_rates_tables(first)


def error_summary_markdown(root: Path) -> str:
    """Return the latest committed run of the error rates in one table, with a row per group of worlds."""
    from error_rates import error_summary

    return error_summary(_runs(root, "error_rates")[-1])


def seed_subsets_markdown(root: Path) -> str:
    """Return the latest committed run of the verdicts on few seeds of the published sweeps."""
    from seed_subsets import summary

    return summary(_runs(root, "seed_subsets")[-1])


def _runs(root: Path, study: str) -> list[dict[str, Any]]:
    """Return all committed runs of a study, the first one first."""
    text = (root / "results" / "bench" / f"{study}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def predict_rates_markdown(root: Path) -> str:
    """Return the latest committed run of the rates of `hpxfer recipe predict`."""
    from predict_rates import rates_table

    return rates_table(_runs(root, "predict_rates")[-1])


def prediction_text(root: Path) -> str:
    """Return what `hpxfer recipe predict` says of width 512 after the published sweep `transfer`, as a code block."""
    from hpxfer.prediction import predict
    from hpxfer.results import load_results

    target = {"width": 512, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 512, "head_dim": 32}
    found = predict(load_results(root / "results" / "published" / "transfer"), target)
    return f"```text\n{found}\n```"


def columns_markdown(root: Path) -> str:
    """Return one row per column of the stored tables."""
    from hpxfer.store.schema import CURVES, TRIALS

    parts = []
    for name, schema in (("trials", TRIALS), ("curves", CURVES)):
        rows = []
        for field in schema:
            metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
            rows.append((f"`{field.name}`", metadata["unit"], metadata["description"], "yes" if field.nullable else ""))
        parts += [f"### {name}.parquet", table(("column", "unit", "meaning", "may be null"), rows)]
    return "\n\n".join(parts)


def thresholds_markdown(root: Path) -> str:
    """Return one row per threshold of the verdict: its name, its value, and the comment above it, which says why."""
    from hpxfer import intervals
    from hpxfer.verdict import thresholds

    rows = []
    for module in (thresholds, intervals):
        comment: list[str] = []
        for text in Path(module.__file__).read_text(encoding="utf-8").splitlines():
            name = text.partition(" = ")[0]
            if text.startswith("# "):
                comment.append(text[2:])
            elif comment and name.isupper() and name.isidentifier():
                rows.append((f"`{name}`", f"`{getattr(module, name)}`", " ".join(comment)))
            elif not text:
                comment = []
    return table(("threshold", "value", "why"), rows)


def kinds_markdown(root: Path) -> str:
    """Return one row per extension point: the folder of its rows, and their names."""
    from hpxfer.registry import KINDS, registry

    rows = []
    for kind, where in KINDS.items():
        names = ", ".join(f"`{name}`" for name in registry(kind).names())
        rows.append((kind, f"`{_file(root, where.partition(':')[0])}`", names))
    return table(("kind", "registry", "names"), rows)


def _file(root: Path, module: str) -> str:
    path = Path(*module.split("."))
    return str(path / "__init__.py" if (root / path).is_dir() else path.with_suffix(".py"))


def rooms_markdown(root: Path) -> str:
    """Return one row per room, the lowest first: what it is, and which rooms it imports."""
    graph = room_graph(root)
    rows = [
        (f"`{room}`", _purpose(root / "hpxfer", room), ", ".join(f"`{name}`" for name in sorted(graph[room])) or "none")
        for level in levels(graph)
        for room in level
    ]
    return table(("room", "what it is", "imports"), rows)


def _purpose(package: Path, room: str) -> str:
    """Return the first sentence of a room's docstring without the room's name."""
    path = package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"
    if path.exists():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    else:  # a folder without code of its own says it in a README
        text = (path.parent / "README.md").read_text(encoding="utf-8").partition("\n\n")[2]
    first = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    name, colon, rest = first.partition(": ")
    shown = rest if colon and " " not in name else first
    return shown[:1].upper() + shown[1:]
