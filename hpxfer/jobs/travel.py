"""Code that travels with a submitted sweep: files of plug-ins and of the user's own trainer. None of them is a pickle.

On the cluster the same files always get the same folder, so that a sweep that is submitted again is the same sweep.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import cache_folder, read_bytes, write_files
from hpxfer.registry import read_plugin
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.load import plugin_files
from hpxfer.spec.sweep import PluginSpec
from hpxfer.spec.trainer_files import digested
from hpxfer.storage.uri import parse_root
from hpxfer.trainer.own_code import SENT, commit_of

FOLDER = "trainer"  # below the results folder of the sweep


def plugin_sources(spec: SweepSpec) -> dict[str, str]:
    """Return name -> source of every plug-in. The source of a module is empty: it must be installed on every node."""
    return {file.plugin.name: file.source if file.plugin.is_file else "" for file in plugin_files(spec)}


def with_plugins(text: str, files: Mapping[str, str]) -> str:
    """Return the sweep with the plug-in files that travelled with it, which are written to this machine's cache.

    Raises HpxferError if a plug-in is not the one that the sweep was submitted with.
    """
    spec = parse_sweep(text, "the sweep of the job", trusted=False)
    local = tuple(_local(plugin, files.get(plugin.name)) for plugin in spec.plugins or ())
    return dump_sweep(spec.model_copy(update={"plugins": local}))


def _local(plugin: PluginSpec, source: str | None) -> PluginSpec:
    name = plugin.name
    if source:  # a version is any text, so its hash and not the text names the folder
        path = cache_folder("plugins") / _hash(str(plugin.digest)) / Path(name).name
        _put(path, source.encode())
        name = str(path)
    digest = read_plugin(name, Path()).plugin.digest
    if digest != plugin.digest:
        raise HpxferError(
            f"plugins: {plugin.name}: must be the one that was submitted, {plugin.digest}, got {digest} here; "
            "install the same version on every machine"
        )
    return plugin.model_copy(update={"name": name})


def trainer_files(spec: SweepSpec) -> dict[str, str]:
    """Return name -> content (Latin-1 for bytes) of the files of a sweep's own trainer, and what git says of them.

    The spec has their digests. Without a trainer of its own a sweep has no files. Raise HpxferError if a trainer
    declares none.
    """
    trainer = spec.trainer
    if trainer is None:
        return {}
    if not trainer.files or not trainer.digests:
        raise HpxferError(
            "trainer.files: must name the files that a job takes along, got none; name what the cluster lacks, e.g. "
            "[train.py, src/**/*.py]"
        )
    folder = Path(trainer.folder or ".")
    found = {name: read_bytes(folder / name).decode("latin-1") for name in trainer.digests}
    return {**found, SENT: json.dumps(commit_of(trainer.folder))}


def with_trainer_files(text: str, files: Mapping[str, str], root: str, name: str) -> str:
    """Return the sweep with the files of its trainer on this machine, below the results folder of the sweep.

    `root` holds that folder. If it is a URI, the files are written to this machine's cache. Raise HpxferError if a name
    leads out of it, or a file is not the one that was submitted.
    """
    spec = parse_sweep(text, "the sweep of the job", trusted=False)
    if spec.trainer is None:
        return text
    digests = spec.trainer.digests or {}
    if files.keys() != {*digests, SENT}:
        raise HpxferError(f"trainer.files: must be the files of the sweep, got {shown(sorted(files))}")
    above = found / name if isinstance(found := parse_root(root), Path) else cache_folder("jobs")
    folder = above / FOLDER / _hash(json.dumps(digests))
    for path, content in [(checked_name(each), content) for each, content in files.items()]:
        _put(folder / path, content.encode("latin-1"))
    here = digested(spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"folder": str(folder)})}))
    assert here.trainer is not None
    if here.trainer.digests != digests:
        differ = sorted(set(digests.items()) ^ set((here.trainer.digests or {}).items()))
        raise HpxferError(
            f"trainer.files: {differ[0][0]}: must be the file that was submitted, got another in {folder}"
        )
    return dump_sweep(here)


def checked_name(name: str) -> PurePosixPath:
    """Return the name of a file as a path below a folder. Raise HpxferError if it leads anywhere else."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or ":" in name:
        raise HpxferError(f"trainer.files: must be relative paths below one folder, got {shown(name)}")
    return path


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_files({path: lambda file: file.write(content)})
