"""Plug-ins: modules of the user that register rows when they are imported.

A sweep names them under `plugins:`, the command line with `--plugin`. The driver and every worker import them, and
nothing else does: a results folder, a URI or a recipe that names a plug-in never makes hpxfer import it.

The digest of a plug-in is the hash of its one file. It does not cover what that file imports. A plug-in that sets
`version = "..."` at its top replaces the digest by that text, e.g. to fix a typing error without a new identity.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from hpxfer.errors import HpxferError, shown
from hpxfer.host import read_text
from hpxfer.registry.rows import Registry

_FIX = "name a module, such as mypackage.gates, or a file, such as ./gates.py"


@dataclass(frozen=True, kw_only=True)
class PluginFile:
    """A plug-in with the source of its file, which travels to workers that may not have the file."""

    name: str  # as the sweep spells it
    digest: str  # hash of its file, or `version:TEXT` where the file sets a version
    source: str

    @property
    def is_file(self) -> bool:
        return self.name.endswith(".py")

    @property
    def module(self) -> str:
        """The name under which Python knows its module."""
        if not self.is_file:
            return self.name
        return f"hpxfer_plugin_{hashlib.blake2b(self.name.encode(), digest_size=8).hexdigest()}"

    def registers(self, module: str | None) -> bool:
        """Return whether the row that `module` registered comes from this plug-in."""
        return module is not None and (module == self.module or module.startswith(self.module + "."))


def read_plugin(name: str, folder: Path) -> PluginFile:
    """Return a plug-in and its source, without running any of it. A relative file starts at `folder`.

    Raises HpxferError if there is no such module or file, or if it is not Python.
    """
    path = folder / name if name.endswith(".py") else _file_of_module(name)
    try:
        source = read_text(path)
        tree = ast.parse(source)
    except OSError as error:
        raise HpxferError(f"plugins: {name}: cannot be read: {error.strerror}; {_FIX}") from None
    except (SyntaxError, ValueError) as error:
        raise HpxferError(f"plugins: {name}: must be Python, got {error}; mend the file, or name another") from None
    version = _version(tree)
    digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest() if version is None else f"version:{version}"
    return PluginFile(name=name, digest=digest, source=source)


def load_plugin(plugin: PluginFile) -> ModuleType:
    """Import a plug-in, so that it registers its rows; import it once per process.

    Raises HpxferError if the module is another one here than `plugin` says, or if importing it fails.
    """
    if not plugin.is_file and (here := read_plugin(plugin.name, Path()).digest) != plugin.digest:
        rule = f"must be the driver's, {plugin.digest}, got {here} on this machine"
        raise HpxferError(f"plugins: {plugin.name}: {rule}; install the same version on every machine")
    if (loaded := sys.modules.get(plugin.module)) is not None:
        if plugin.is_file and loaded.__dict__.get("__hpxfer_digest__") != plugin.digest:
            changed = "the file changed after this process had imported it; start Python anew"
            raise HpxferError(f"plugins: {plugin.name}: {changed}")
        return loaded
    try:
        return _import_file(plugin) if plugin.is_file else importlib.import_module(plugin.module)
    except (Exception, SystemExit) as error:
        Registry.remove_module(plugin.module)  # half of a plug-in is none
        spec = None if plugin.is_file else importlib.util.find_spec(plugin.name)
        path = plugin.name if plugin.is_file else spec and spec.origin
        lines = [f":{at.lineno}" for at in traceback.extract_tb(error.__traceback__) if at.filename == path]
        cause = f"{error}" if isinstance(error, HpxferError) else f"{type(error).__name__}: {error}"
        where = plugin.name + "".join(lines[-1:])
        raise HpxferError(f"plugins: {where}: importing it failed: {cause}") from error


def _file_of_module(name: str) -> Path:
    if "/" in name:
        raise HpxferError(f"plugins: {name}: a file must end in .py; {_FIX}")
    try:
        found = importlib.util.find_spec(name) if all(part.isidentifier() for part in name.split(".")) else None
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise HpxferError(f"plugins: {shown(name)}: no Python module has this name here; {_FIX}")
    return Path(found.origin)


def _import_file(plugin: PluginFile) -> ModuleType:
    """Run the source that travelled, not the file: every worker then runs what the driver read."""
    module = ModuleType(plugin.module)
    module.__file__ = plugin.name
    module.__dict__["__hpxfer_digest__"] = plugin.digest
    sys.modules[plugin.module] = module
    try:
        exec(compile(plugin.source, plugin.name, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[plugin.module]
        raise
    return module


def _version(tree: ast.Module) -> str | None:
    """Return the text of `version = "..."` at the top of a module."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=names, value=ast.Constant(value=str(text))) if "version" in map(ast.unparse, names):
                return text
    return None
