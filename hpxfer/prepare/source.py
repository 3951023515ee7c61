"""Source: which files SOURCE names, of what kind, in what order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hpxfer.data import matching_files
from hpxfer.data.readers import arrow
from hpxfer.errors import HpxferError, cut, first_line, shown
from hpxfer.host import folder_at, path_problem, read_text, reason
from hpxfer.prepare.blocks import CODECS, Kind, Segment, blocks_of

HUB = "hf:"
SPLITS = ("train", "test", "validation", "val", "dev")
# How the name of a file says what it holds, without the suffix of a compression.
_SUFFIXES: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
}
_NAMED_ONLY = (".json", ".md")
_NAMES = "NAME.jsonl, .jsonl.gz, .jsonl.zst, .parquet or .txt"


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """The files of a source, in order, with their sizes in bytes."""

    given: str
    kind: Kind
    field: str | None
    files: tuple[tuple[str, int], ...]
    license: str | None = None

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.files)

    def blocks(self) -> list[Segment]:
        """Return the blocks of all files, in order."""
        return [block for path, size in self.files for block in blocks_of(self.kind, path, size, self.field)]


def open_source(given: str, field: str) -> TextSource:
    """Return the files that SOURCE names. Raise HpxferError if it names none, or files of several kinds."""
    if given.startswith(HUB):
        return _of_hub(given, field)
    if (folder := folder_at(given)) is not None and arrow.is_folder(folder):
        return _saved(given, folder, field)
    paths = matching_files(given, "SOURCE") if folder is None else sorted(map(str, _taken(folder)))
    if not paths:
        got = "nothing of that name" if folder is None else "a folder without any"
        raise HpxferError(f"{given}: must {'name' if folder is None else 'hold'} files of text, {_NAMES}, got {got}")
    first = _kind_of(paths[0])
    if first is None:
        raise HpxferError(f"{paths[0]}: must be {_NAMES}, got another name; rename it after what it holds")
    for path in paths:
        if (kind := _kind_of(path)) != first:
            got = f"{kind or 'an unknown one'} after {first} in {paths[0]}"
            raise HpxferError(f"{path}: all files must be of one kind, got {got}")
    return _of_files(given, first, paths, field)


def _taken(folder: str) -> Iterator[Path]:
    """Yield the files below a folder that are read. A tokenizer.json, a README.md or a hidden folder is not.

    Raises HpxferError for a folder that cannot be read: its text would be missing.
    """

    def refuse(error: OSError) -> NoReturn:
        raise HpxferError(path_problem(error) or f"{error.filename}: cannot be read: {reason(error)}")

    for below, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(below, name) for name in names if not name.startswith(".")):
            named_only = path.name.lower().endswith(_NAMED_ONLY)
            if not named_only and _kind_of(path.name) is not None and path.is_file():
                yield path


def _kind_of(path: str) -> Kind | None:
    """Return what a file holds by its name, or None."""
    name = path.lower()
    for suffix in CODECS:
        name = name.removesuffix(suffix)
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def _of_files(given: str, kind: Kind, paths: list[str], field: str, license_name: str | None = None) -> TextSource:
    files = tuple((os.path.abspath(path), os.path.getsize(path)) for path in paths)
    of_field = None if kind == "text" else field
    return TextSource(given=given, kind=kind, field=of_field, files=files, license=license_name)


def _saved(given: str, folder: str, field: str) -> TextSource:
    """Return the source of a folder that `datasets` saved."""
    files = arrow.data_files(folder)
    try:
        stated = json.loads(read_text(Path(folder, "dataset_info.json"))).get("license")
    except (OSError, ValueError, AttributeError):
        stated = None
    return _of_files(given, "datasets", files, field, stated or None)


def _of_hub(given: str, field: str) -> TextSource:
    """Return the source of hf:NAME[:config][:split], of the hub or of a folder that `datasets` saved."""
    name, *parts = given.removeprefix(HUB).split(":")
    if not name or len(parts) > 2:
        raise HpxferError(f"SOURCE: must be hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, got {shown(given)}")
    if os.path.isdir(name) and arrow.is_folder(name):
        return _saved(given, _split_folder(given, name, parts), field)
    config = None if len(parts) < 2 and (not parts or parts[0] in SPLITS) else parts[0]
    split = parts[-1] if len(parts) == 2 or (parts and config is None) else "train"
    try:
        import datasets
    except ImportError:
        raise HpxferError("hf: needs the package datasets: pip install 'hpxfer[hf]'") from None
    try:
        found: Any = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # of the hub, the network, a loader
        why = cut(first_line(error), 400)
        raise HpxferError(f"{given}: cannot be loaded: {why}; correct the name, config or split") from None
    paths = [entry["filename"] for entry in found.cache_files]
    if not paths:
        raise HpxferError(f"{given}: must be a whole split that lies on the disk, got a part of one")
    return _of_files(given, "datasets", paths, field, found.info.license or None)


def _split_folder(given: str, name: str, parts: list[str]) -> str:
    """Return the folder of a split in a folder that `datasets` saved. Raise HpxferError unless it has that split."""
    if len(parts) > 1:
        raise HpxferError(f"{given}: must be hf:FOLDER or hf:FOLDER:SPLIT for a saved folder, which has no config")
    if (names := arrow.split_names(name)) is not None:
        split = parts[0] if parts else "train"
        if split not in names:
            raise HpxferError(f"{given}: must name a split of {name}, {cut(', '.join(names), 300)}, got {shown(split)}")
        return os.path.join(name, split)
    stated = arrow.stated_split(name) or "train"
    if parts and parts[0] not in (stated, stated.partition("[")[0]):
        rule = f"must be one split, as datasets saved it ({stated})"
        raise HpxferError(f"{given}: {rule}, got {shown(parts[0])}; write hf:{name} to read all of it")
    return name
