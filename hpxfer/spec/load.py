"""From a sweep file to a SweepSpec and back. Every error says where, what rule, what was given and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ConfigDict

from hpxfer.errors import HpxferError, joined
from hpxfer.registry import registry, rows_of
from hpxfer.spec.against_recipe import compared, without_useless
from hpxfer.spec.around import centered
from hpxfer.spec.budget import budget_text
from hpxfer.spec.check_family import unread_keys
from hpxfer.spec.checks import problems
from hpxfer.spec.data import absolute, stated
from hpxfer.spec.fields import Section, Seq
from hpxfer.spec.from_recipe import Start, with_recipe
from hpxfer.spec.overrides import with_overrides
from hpxfer.spec.plugins import are_registered, import_plugin, import_plugins, stored_names
from hpxfer.spec.sections import in_file, validated
from hpxfer.spec.sweep import Plugin, SweepSpec
from hpxfer.spec.trainer_files import in_folder
from hpxfer.spec.yaml_file import KeyPath, YamlFile, parse_yaml, read_yaml, write_yaml


class _Plugins(Section):
    """The part of a sweep file that is read before the rest."""

    model_config = ConfigDict(extra="ignore")

    plugins: Seq[Plugin] | None = None
    """As in `SweepSpec`."""


def load_sweep(
    path: str | Path, *, plugins: Sequence[str] = (), trusted: bool = True, overrides: Sequence[str] = ()
) -> SweepSpec:
    """Return the checked sweep in a YAML file. A relative data path or plug-in file starts at the file's folder.

    The plug-ins of the file are imported before its names are checked, and after them more `plugins`, of which a
    relative file starts at the current folder. A file that is not `trusted`, such as that of a results folder, imports
    nothing: names that its plug-ins registered are accepted as they are. If it gives no `ties`, they are by `index`.
    `overrides` change keys first, as `hpxfer.spec.overrides` says, e.g. `training.steps=100`.
    Raises HpxferError with one line for each broken rule.
    """
    file, folder = with_overrides(read_yaml(path), overrides), Path(path).resolve().parent
    spec = _checked(file, folder, trusted, plugins)
    return in_folder(absolute(spec, folder), folder)


def parse_sweep(text: str, name: str = "<sweep>", *, plugins: Sequence[str] = (), trusted: bool = True) -> SweepSpec:
    """Return the checked sweep in `text`, as `load_sweep` does. `name` stands for the file in messages."""
    return _checked(parse_yaml(text, name), Path(), trusted, plugins)


def check_edit(text: str, file: YamlFile) -> None:
    """Raise HpxferError unless `text`, an edit of the sweep in `file`, is a legal sweep. The lines are those of `file`.

    A key that the edit adds has the line of the part that it stands in. No plug-in is imported.
    """
    edited = YamlFile(name=file.name, data=parse_yaml(text, file.name).data, lines=file.lines)
    _checked(edited, Path(), False, ())


def dump_sweep(spec: SweepSpec) -> str:
    """Return YAML that loads to an equal sweep. Its first line states the budget.

    It spells out every key, but for those of the model that its family does not read.
    """
    budget = f"# {budget_text(spec)}\n" if spec.search.kind in registry("search") else ""
    data = spec.model_dump(mode="json", exclude_none=True)
    unread, model = unread_keys(rows_of("family").get(spec.model.family)), data["model"]
    base = {name: value for name, value in model["base"].items() if name not in unread["base"]}
    model = {name: value for name, value in {**model, "base": base}.items() if name not in unread["model"]}
    data["model"] = {name: value for name, value in model.items() if name != "base" or value}
    return budget + write_yaml(data)


def _checked(file: YamlFile, folder: Path, trusted: bool, plugins: Sequence[str]) -> SweepSpec:
    if not isinstance(file.data, dict):
        got = "an empty file" if file.data is None else type(file.data).__name__
        raise HpxferError(f"{file.where(())}: must be a mapping that starts with name:, got {got}")
    given = validated(_Plugins, file).plugins or ()
    start = None
    if trusted:
        file, start = with_recipe(file, folder)
        loaded = (*import_plugins(file, given, folder), *(import_plugin(name, Path()) for name in plugins))
        given = tuple({plugin.name: plugin for plugin in loaded}.values())
    names = stored_names(given)
    spec = validated(SweepSpec, file, stored=names).model_copy(update={"plugins": given or None})
    spec = centered(spec if start is None else without_useless(spec, start.filled))
    if trusted and (more := stated(spec.data, folder)):
        spec = spec.model_copy(update={"data": spec.data.model_copy(update=more)})
    if not are_registered(names):
        return spec  # it was checked when it was stored, and its rules need the code
    settings = spec.search_row.settings
    own = {key: value for key, value in spec.search.given.items() if key in settings.model_fields}
    validated(settings, file, own, at=("search",))
    if broken := joined(_line(file, start, path, message) for path, message in problems(spec)):
        raise HpxferError(broken)
    return spec if start is None else compared(spec, start.recipe)


def _line(file: YamlFile, start: Start | None, path: KeyPath, message: str) -> str:
    """Return a broken rule with its place, which may be in the recipe that the sweep starts from."""
    is_of_recipe = start is not None and any(path[: len(at)] == at for at in start.filled)
    given = f" (in the recipe {file.data['hps']['recipe']['file']})" if is_of_recipe else ""
    return f"{file.where(in_file(file, path))}: {message}{given}"
