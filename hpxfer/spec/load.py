"""From a sweep file to a SweepSpec and back; every error says where, what rule, what was given and the fix."""

from __future__ import annotations

import glob
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.registry import registry
from hpxfer.spec.budget import budget_text
from hpxfer.spec.checks import problems
from hpxfer.spec.sections import in_file, validated
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import YamlFile, parse_yaml, read_yaml, write_yaml


def load_sweep(path: str | Path) -> SweepSpec:
    """Return the checked sweep in a YAML file.

    A relative data path in it starts at the file's folder. Raises HpxferError with one line for each broken rule.
    """
    spec = _checked(read_yaml(path))
    kind, _, rest = spec.data.source.partition(":")
    if not registry("data source").get(kind).is_path or Path(rest).is_absolute():
        return spec
    absolute = Path(glob.escape(str(Path(path).resolve().parent))) / rest
    return spec.model_copy(update={"data": spec.data.model_copy(update={"source": f"{kind}:{absolute}"})})


def parse_sweep(text: str, name: str = "<sweep>") -> SweepSpec:
    """Return the checked sweep in `text`; `name` stands for the file in messages."""
    return _checked(parse_yaml(text, name))


def dump_sweep(spec: SweepSpec) -> str:
    """Return YAML that loads to an equal sweep. Its first line states the budget."""
    return f"# {budget_text(spec)}\n" + write_yaml(spec.model_dump(mode="json", exclude_none=True))


def _checked(file: YamlFile) -> SweepSpec:
    if not isinstance(file.data, dict):
        got = "an empty file" if file.data is None else type(file.data).__name__
        raise HpxferError(f"{file.where(())}: must be a mapping that starts with name:, got {got}")
    spec = validated(SweepSpec, file)
    settings = spec.search.row.settings
    own = {key: value for key, value in spec.search.given.items() if key in settings.model_fields}
    validated(settings, file, own, at=("search",))
    broken = [f"{file.where(in_file(file, path))}: {message}" for path, message in problems(spec)]
    if broken:
        raise HpxferError("\n".join(broken))
    return spec
