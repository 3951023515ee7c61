"""From a sweep file, with overrides and plug-ins, to a SweepSpec and back. Errors say where, the rule and the value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from hpxfer.errors import HpxferError, joined, nearest, shown
from hpxfer.host import is_uri
from hpxfer.registry import PluginFile, Registry, load_plugin, read_plugin, registry
from hpxfer.spec.axes import centered
from hpxfer.spec.budget import budget_text
from hpxfer.spec.checks import problems
from hpxfer.spec.data import absolute, from_folder, stated
from hpxfer.spec.data_section import source_kind
from hpxfer.spec.fields import GridValues, Section, Seq, in_file, validated, whole
from hpxfer.spec.sweep import Plugin, PluginSpec, SweepSpec
from hpxfer.spec.trainer_files import in_folder
from hpxfer.spec.yaml_file import KeyPath, YamlFile, parse_yaml, read_yaml, spell, write_yaml


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
    `overrides` change keys first, e.g. `training.steps=100`. A recipe is read by `hpxfer.load_sweep`.
    Raises HpxferError with one line for each broken rule.
    """
    file, folder = with_overrides(read_yaml(path), overrides), Path(path).resolve().parent
    return located(checked(draft(file, folder, plugins, trusted=trusted), file, folder, trusted=trusted), folder)


def parse_sweep(text: str, name: str = "<sweep>", *, plugins: Sequence[str] = (), trusted: bool = True) -> SweepSpec:
    """Return the checked sweep in `text`, as `load_sweep` does. `name` stands for the file in messages."""
    file, folder = parse_yaml(text, name), Path()
    return checked(draft(file, folder, plugins, trusted=trusted), file, folder, trusted=trusted)


def check_edit(text: str, file: YamlFile) -> None:
    """Raise HpxferError unless `text`, an edit of the sweep in `file`, is a legal sweep. The lines are those of `file`.

    A key that the edit adds has the line of the part that it stands in. No plug-in is imported.
    """
    edited = YamlFile(name=file.name, data=parse_yaml(text, file.name).data, lines=file.lines)
    checked(draft(edited, Path(), trusted=False), edited, Path(), trusted=False)


def dump_sweep(spec: SweepSpec) -> str:
    """Return YAML that loads to an equal sweep and spells out every key. Its first line states the budget."""
    budget = f"# {budget_text(spec)}\n" if spec.search.kind in registry("search") else ""
    return budget + write_yaml(spec.model_dump(mode="json", exclude_none=True))


def brief_sweep(spec: SweepSpec) -> str:
    """Return YAML that loads to an equal sweep and leaves out what has its default, as a person would write it."""
    data = spec.model_dump(mode="json", exclude_none=True)
    brief = spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    brief["parameterizations"] = [arm["table"] if [*arm] == ["table"] else arm for arm in brief["parameterizations"]]
    made = parse_sweep(write_yaml(brief), trusted=False).model_dump(mode="json", exclude_none=True)
    # A preset (`like`) has defaults of its own.
    model = {key: value for key, value in data["model"].items() if made["model"].get(key) != value}
    brief["model"] = {**brief["model"], **model}
    text = write_yaml(_with_whole(brief), short=True)
    return text if parse_sweep(text, trusted=False) == spec else dump_sweep(spec)


def _with_whole(data: Any) -> Any:
    """Return data with whole numbers as a person writes them, e.g. 32 for 32.0."""
    if isinstance(data, dict):
        return {key: _with_whole(value) for key, value in data.items()}
    return [_with_whole(value) for value in data] if isinstance(data, list) else whole(data)


def draft(file: YamlFile, folder: Path, plugins: Sequence[str] = (), *, trusted: bool = True) -> SweepSpec:
    """Return the sweep in a file, of which the types and names are checked, and no rule that joins keys."""
    given = plugins_in(file, folder, plugins, trusted=trusted)
    spec = validated(SweepSpec, file, stored=stored_names(given))
    return spec.model_copy(update={"plugins": given or None})


def plugins_in(
    file: YamlFile, folder: Path, plugins: Sequence[str] = (), *, trusted: bool = True
) -> tuple[PluginSpec, ...]:
    """Return the plug-ins that a file names, and of one that is `trusted` more `plugins`, after they are imported."""
    if not isinstance(file.data, dict):
        got = "an empty file" if file.data is None else type(file.data).__name__
        raise HpxferError(f"{file.where(())}: must be a mapping that starts with name:, got {got}")
    given = validated(_Plugins, file).plugins or ()
    if trusted:
        loaded = []
        for index, plugin in enumerate(given):
            try:
                loaded.append(import_plugin(plugin.name, folder))
            except HpxferError as error:
                where = file.where(("plugins", index))
                raise HpxferError(f"{where}: {str(error).removeprefix('plugins: ')}") from error
        loaded += [import_plugin(name, Path()) for name in plugins]
        given = tuple({plugin.name: plugin for plugin in loaded}.values())
    return given


def checked(spec: SweepSpec, file: YamlFile, folder: Path, *, trusted: bool = True) -> SweepSpec:
    """Return the `draft` of a file with what data on this machine states. Raise HpxferError unless it is legal."""
    spec = centered(spec)
    if trusted and (more := stated(spec.data, folder)):
        spec = spec.model_copy(update={"data": spec.data.model_copy(update=more)})
    if not are_registered(stored_names(spec.plugins or ())):
        return spec  # it was checked when it was stored, and its rules need the code
    settings = spec.search_row.settings
    own = {key: value for key, value in spec.search.given.items() if key in settings.model_fields}
    validated(settings, file, own, at=("search",))
    if broken := joined(f"{file.where(in_file(file, path))}: {message}" for path, message in problems(spec)):
        raise HpxferError(broken)
    return spec


def located(spec: SweepSpec, folder: Path) -> SweepSpec:
    """Return the sweep of a file in `folder` with paths that start at the root."""
    return in_folder(absolute(spec, folder), folder)


# Overrides: `--set training.steps=100` changes one key of a sweep file before the file is checked.
#
# The value is YAML. `null` takes the key out. Below `grid` and `multipliers`, whose keys have dots, the rest of the
# path is one key, `--set hps.multipliers.router.lr_mult=0.5`, but for a last part that is a key of values, such as
# `log2` in `--set 'grid.router.lr_mult.log2=[-4, 0]'`. A relative path to data, to a recipe or to a plug-in starts at
# the current folder, where the command is given, and not at the folder of the sweep file. This holds for paths inside a
# larger value too, as in `--set 'data={source: "text:a.txt"}'`.

OPTION = "--set"
_KEYS_HAVE_DOTS = ("grid", "multipliers")
_FORMS = ("values", "log2", "around")  # of the values of an HP. One that is set replaces the form in the file
_INDEXED = r"((?:\[\d+\])*)"  # indices behind a key


def with_overrides(file: YamlFile, assignments: Sequence[str]) -> YamlFile:
    """Return a sweep file with some keys changed. Raise HpxferError for an assignment that cannot be made."""
    data, paths = file.data, []
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise HpxferError(f"{OPTION}: must be KEY=VALUE, got {shown(text)}; e.g. {OPTION} training.steps=100")
        path = _path(name.strip())
        given = _from_here(path, parse_yaml(value, f"{OPTION} {spell(path)}").data)
        data = _assigned(data, path, given, ())
        paths.append(path)
    return replace(file, data=data, overridden=(*file.overridden, *paths))


def _path(name: str) -> KeyPath:
    """Return the key path that a name such as `axes.width[1]` spells."""
    out: KeyPath = ()
    rest = name
    while rest:
        if out and out[-1] in _KEYS_HAVE_DOTS:
            inner = re.fullmatch(rf"(.+)\.({'|'.join(GridValues.model_fields)}){_INDEXED}", rest)
            return (
                (*out, rest) if inner is None else (*out, inner[1], inner[2], *map(int, re.findall(r"\d+", inner[3])))
            )
        found = re.match(rf"([^.\[\]]+){_INDEXED}(?:\.(?=.)|$)", rest)
        if found is None:
            raise HpxferError(f"{OPTION}: must name a key such as training.steps or seeds[0], got {shown(name)}")
        out = (*out, found[1], *map(int, re.findall(r"\d+", found[2])))
        rest = rest[found.end() :]
    return out


def _from_here(path: KeyPath, value: Any) -> Any:
    """Return a value for a key, with its relative paths to data and files starting at the current folder."""
    if isinstance(value, dict):
        return {key: _from_here((*path, key), one) for key, one in value.items()}
    if isinstance(value, list):
        return [_from_here((*path, index), one) for index, one in enumerate(value)]
    of_point = path[0] == "axes" and (path[-1] == "data" or path[-2:] == ("data", "source"))
    if isinstance(value, str) and (of_point or path in (("data", "source"), ("data", "validation"))):
        return from_folder(value, Path.cwd())
    is_plugin = path[0] == "plugins" and str(value).endswith(".py")  # any other plug-in is a module
    is_file = is_plugin or path in (("hps", "recipe"), ("hps", "recipe", "file"))
    return str(Path.cwd() / value) if isinstance(value, str) and is_file and not is_uri(value) else value


def _assigned(data: Any, path: KeyPath, value: Any, above: KeyPath) -> Any:
    """Return data with a value at a key path, or without the key if the value is None. The data itself stays."""
    key, *rest = path
    here = spell((*above, key))
    if isinstance(key, int):
        if not isinstance(data, list) or key >= len(data):
            got = f"a list of {len(data)}" if isinstance(data, list) else shown(data)
            raise HpxferError(f"{OPTION} {here}: must be an entry of a list that the file has, got {got}")
        changed = value if not rest else _assigned(data[key], tuple(rest), value, (*above, key))
        return [*data[:key], *([] if changed is None and not rest else [changed]), *data[key + 1 :]]
    if key in _FORMS and not rest and value is not None and above[:1] not in ((), ("axes",)):
        data = {name: each for name, each in data.items() if name not in _FORMS} if isinstance(data, dict) else {}
    if data is not None and not isinstance(data, dict):
        raise HpxferError(f"{OPTION} {here}: must be a key of a mapping, got {shown(data)} in the file; set that whole")
    out = dict(data or {})
    if rest:
        out[key] = _assigned(out.get(key), tuple(rest), value, (*above, key))
    elif value is None:
        if key not in out:
            fix = nearest(str(key), out) if out else "nothing stands there"
            raise HpxferError(f"{OPTION} {here}: must be a key that the file has, because null takes it out; {fix}")
        del out[key]
    else:
        out[key] = value
    return out


class _Generate(GenerateJsonSchema):
    """pydantic's generator without the titles that it makes up from the names of the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: Any, mode: Any = "validation") -> JsonSchemaValue:
        return {"$schema": self.schema_dialect, **super().generate(schema, mode)}


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a sweep file."""
    schema = TypeAdapter(SweepSpec).json_schema(schema_generator=_Generate)
    for member in schema["properties"]["model"]["anyOf"]:
        model = schema["$defs"][member["$ref"].rpartition("/")[2]]
        model["required"] = [key for key in model["required"] if key not in ("family", "base", "own")]
    for key in ("data", "parameterizations"):
        schema["required"].remove(key)
    # A recipe says the family, the base and the table, and a preset the family. A user's own trainer has neither a base
    # nor data of ours, and arms of its own may stand in the place of tables.
    trainer = {"required": ["trainer"]}
    recipe = {"properties": {"hps": {"required": ["recipe"]}}, "required": ["hps"]}
    family = {"anyOf": [{"required": ["family"]}, {"required": ["like"]}], "required": ["base"]}
    ours = {"required": ["parameterizations", "data"], "properties": {"model": family}}
    schema["anyOf"] = [trainer, {**recipe, "required": ["hps", "data"]}, ours]
    return schema


# Plug-ins of a sweep: they are imported before the sweep's names are checked, and remembered with what they register.
#
# A loaded sweep holds each plug-in as `{name, digest, registers}`, and so does the sweep.yaml of its results. Reading
# results imports nothing: the stored entry says which names the plug-in registered.

Names = dict[str, set[str]]  # kind -> the names of its rows
# The kinds of rows that a sweep file names.
NAMED = ("parameterization", "family", "gate", "data source", "sample source", "search", "logger")


def import_plugin(name: str, folder: Path) -> PluginSpec:
    """Import a plug-in and return it with what it registers. A relative file starts at `folder`."""
    if "\0" in name:
        raise HpxferError(f"plugins: must be a file or a module, got {shown(name)} with a zero byte; take it out")
    is_file = name.endswith(".py")
    file = read_plugin(os.path.realpath(folder / name) if is_file else name, folder)
    load_plugin(file)
    registers = {kind: tuple(names) for kind, names in Registry.registered_by(file.registers).items()}
    return PluginSpec(name=file.name, digest=file.digest, registers=registers)


def plugin_files(spec: SweepSpec) -> tuple[PluginFile, ...]:
    """Return the plug-ins of a loaded sweep with their source, which workers need."""
    return tuple(read_plugin(plugin.name, Path()) for plugin in spec.plugins or ())


def stored_names(plugins: Iterable[PluginSpec]) -> Names:
    """Return the names that plug-ins register, as a stored sweep says."""
    out: Names = {}
    for plugin in plugins:
        for kind, names in (plugin.registers or {}).items():
            out.setdefault(kind, set()).update(names)
    return out


def are_registered(names: Names) -> bool:
    """Return whether this process knows a row of each of these names, for the kinds that a sweep file names."""
    return all(name in registry(kind) for kind in NAMED for name in names.get(kind, ()))


def used_rows(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the registered rows that determine the numbers of the sweep's trials."""
    for choice in spec.parameterizations:
        yield "parameterization", choice.table
    yield "family", spec.model.family
    yield "gate", spec.model.gate


def digests_used(spec: SweepSpec) -> dict[str, str]:
    """Return `kind:name` -> digest of its plug-in, for the plug-ins' rows that determine the trials' numbers."""
    used = set(used_rows(spec))
    return {
        f"{kind}:{name}": plugin.digest
        for plugin in spec.plugins or ()
        for kind, names in (plugin.registers or {}).items()
        for name in names
        if (kind, name) in used and plugin.digest is not None
    }


def rows_without_plugin(spec: SweepSpec) -> list[str]:
    """Return `kind name` of the rows that this process registered by itself, so that no worker could import them."""
    listed = stored_names(spec.plugins or ())
    return [
        f"{kind} {name}"
        for kind, name in (*used_rows(spec), (source_kind(spec.data.source), spec.data.source.partition(":")[0]))
        if registry(kind).module(name) is not None and name not in listed.get(kind, ())
    ]
