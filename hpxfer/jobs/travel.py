"""Code that travels with a submitted sweep: files of plug-ins and of the user's own trainer. None of them is a pickle.

On the cluster the same files always get the same folder, so that a sweep that is submitted again is the same sweep.
The sweep holds their digests, and every file is compared with its digest where it arrives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from hpxfer.errors import HpxferError, shown
from hpxfer.host import cache_folder, parse_root, read_bytes, write_files
from hpxfer.registry import read_plugin
from hpxfer.spec import PluginSpec, SweepSpec, digested, dump_sweep, parse_sweep, plugin_files
from hpxfer.trainer import SENT, commit_of

# The first parts of names: of the files of plug-ins, and of the trainer's own. Then the name in the sweep follows.
PLUGIN, TRAINER = "plugin:", "trainer.files: "


def files_of(spec: SweepSpec) -> dict[str, bytes]:
    """Return the files that travel with a sweep. A plug-in that is a module is empty: every node must have it.

    With the files of a trainer goes what git says of them. Raise HpxferError if a trainer declares none.
    """
    found = {PLUGIN + file.name: file.source.encode() * file.is_file for file in plugin_files(spec)}
    if (trainer := spec.trainer) is None:
        return found
    if not trainer.files or not trainer.digests:
        raise HpxferError(
            "trainer.files: must name the files that a job takes along, got none; name what the cluster lacks, e.g. "
            "[train.py, src/**/*.py]"
        )
    folder = Path(trainer.folder or ".")
    own = {name: read_bytes(folder / name) for name in trainer.digests}
    own[SENT] = json.dumps(commit_of(trainer.folder)).encode()
    return {**found, **{TRAINER + name: content for name, content in own.items()}}


def arrived(text: str, files: Mapping[str, bytes], root: str) -> str:
    """Return the sweep with the files that travelled with it, which are written to this machine.

    `root` holds the results folder of the sweep, below which a trainer's files are written. If it is a URI, they are
    written to this machine's cache, as plug-ins are. Raise HpxferError if a name leads out of it, or a file is not the
    one that was submitted.
    """
    spec = parse_sweep(text, "the sweep of the job", trusted=False)
    plugins = tuple(_plugin_here(plugin, files.get(PLUGIN + plugin.name)) for plugin in spec.plugins or ())
    spec = spec.model_copy(update={"plugins": plugins}) if plugins else spec
    own = {name.removeprefix(TRAINER): content for name, content in files.items() if name.startswith(TRAINER)}
    return dump_sweep(_with_trainer(spec, own, root) if own else spec)


def _plugin_here(plugin: PluginSpec, source: bytes | None) -> PluginSpec:
    name = plugin.name
    if source:  # a version is any text, so its hash and not the text names the folder
        path = cache_folder("plugins") / _hash(str(plugin.digest)) / Path(name).name
        _put(path, source)
        name = str(path)
    digest = read_plugin(name, Path()).digest
    if digest != plugin.digest:
        raise HpxferError(
            f"plugins: {plugin.name}: must be the one that was submitted, {plugin.digest}, got {digest} here; "
            "install the same version on every machine"
        )
    return plugin.model_copy(update={"name": name})


def _with_trainer(spec: SweepSpec, files: Mapping[str, bytes], root: str) -> SweepSpec:
    digests = (spec.trainer.digests if spec.trainer else None) or {}
    if spec.trainer is None or files.keys() != {*digests, SENT}:
        raise HpxferError(f"trainer.files: must be the files of the sweep, got {shown(sorted(files))}")
    above = found / spec.name if isinstance(found := parse_root(root), Path) else cache_folder("jobs")
    folder = above / "trainer" / _hash(json.dumps(digests))
    for path, content in [(checked_name(each), content) for each, content in files.items()]:
        _put(folder / path, content)
    trainer = spec.trainer.model_copy(update={"folder": str(folder)})
    here = digested(spec.model_copy(update={"trainer": trainer}))
    now = (here.trainer.digests if here.trainer else None) or {}
    if now != digests:
        name = min(name for name, _ in digests.items() ^ now.items())
        raise HpxferError(f"trainer.files: {name}: must be the file that was submitted, got another in {folder}")
    return here


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
