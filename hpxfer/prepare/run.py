"""Run: prepare a folder of token shards, or go on with one that was stopped."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpxfer
from hpxfer.data import (
    MANIFEST_FILE,
    MANIFEST_VERSION,
    PROGRESS_FILE,
    Manifest,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    SplitName,
    read_manifest,
)
from hpxfer.data.readers import llmc
from hpxfer.data.readers.ids import file_dataset
from hpxfer.errors import HpxferError, cut, shown
from hpxfer.host import locked, num_cpus, read_text, remove_half_written
from hpxfer.prepare import SHARD_TOKENS
from hpxfer.prepare.blocks import codec_of
from hpxfer.prepare.engines import in_processes, on_ray
from hpxfer.prepare.source import TextSource, open_source
from hpxfer.prepare.tokenize import FILE, MORE_FILES, Job, Tokenizer, load_tokenizer
from hpxfer.prepare.writer import State, Writer, at_disk, bytes_writer, json_writer

TOKENIZER_FOLDER = "tokenizer"
# Tokens have about four bytes of text each, and a compressed text grows threefold. Eight times as many documents are
# offered to validation as it needs by that estimate, which columns beside the text make too small. All others need not
# wait.
_BYTES_PER_TOKEN, _INFLATED, _OFFERED = 4, 3, 8
# Nobody but who holds the folder's lock writes these.
_OWNED = ("train-", "val-", PROGRESS_FILE, MANIFEST_FILE)
# A key of the request that is not kept when the data is complete: a copy of the files has other times.
CHANGED = "times of change"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a preparation is."""

    num_bytes: int
    total_bytes: int
    num_tokens: int
    num_shards: int


def prepare_data(
    source: str,
    *,
    tokenizer: str,
    out: Path,
    field: str = "text",
    val_tokens: int = 0,
    eos: str | None = None,
    license_name: str | None = None,
    workers: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    address: str | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Manifest:
    """Tokenize `source` into the folder `out` and return its manifest.

    The same source, tokenizer and options give the same bytes, whatever `workers`, and however often the run was
    stopped. A folder that is complete with these options is left as it is. Raises HpxferError for one with others.
    """
    text, made = open_source(source, field), load_tokenizer(tokenizer, eos)
    version = llmc.UINT16 if made.token_bytes == 2 else llmc.UINT32
    if shard_tokens > llmc.MOST_TOKENS - 2**28:
        raise HpxferError(f"--shard-tokens: must be at most {llmc.MOST_TOKENS - 2**28}, got {shard_tokens}")
    request = _request(text, made, val_tokens, shard_tokens)
    copies = out / TOKENIZER_FOLDER
    with at_disk(out):
        out.mkdir(parents=True, exist_ok=True)
    with locked(out, exclusive=True):
        if (out / MANIFEST_FILE).exists():
            return _known(out, request)
        remove_half_written(out, _OWNED)
        remove_half_written(copies, tuple(made.files))
        state = _stored_state(out, request)
        writer = Writer(out, version, state or State(request=request))
        if state is None:  # the state comes first: it makes the folder this command's
            writer.store({})
        with at_disk(copies):
            copies.mkdir(exist_ok=True)
        writer.write({f"{TOKENIZER_FOLDER}/{name}": bytes_writer(content) for name, content in made.files.items()})
        if not writer.has_ended:
            _tokenize(text, made, writer, workers, address, on_progress)
            writer.finish(text.given)
        writer.remove_others()
        manifest = _manifest(text, made, writer, license_name)
        writer.write({MANIFEST_FILE: json_writer(manifest)})
        _remove_state(out)
        return manifest


def _tokenize(
    text: TextSource,
    made: Tokenizer,
    writer: Writer,
    workers: int | None,
    address: str | None,
    on_progress: Callable[[Progress], None],
) -> None:
    inflated = text.kind == "parquet" or any(codec_of(path) for path, _ in text.files)
    expected = max(1, text.num_bytes * (_INFLATED if inflated else 1) / _BYTES_PER_TOKEN)
    job = Job(
        tokenizer_file=str((writer.folder / TOKENIZER_FOLDER / FILE).resolve()),
        tokenizer_digest=made.entry.digest,
        eos_id=made.entry.eos_id,
        token_bytes=made.token_bytes,
        held_out_share=min(1.0, _OFFERED * writer.request["val_tokens"] / expected),
    )
    blocks = text.blocks()
    done = sum(block.num_bytes for block in blocks[: writer.next[0]])
    if address is None:
        found = in_processes(blocks, job, workers=workers or num_cpus(), start=writer.next)
    else:
        found = on_ray(blocks, job, address=address, workers=workers, start=writer.next)
    with closing(found):
        for (block, segment), tokens in found:
            is_over = tokens.num_bytes > 0 or blocks[block].codec is None
            writer.add(tokens, (block + 1, 0) if is_over else (block, segment + 1))
            done += tokens.num_bytes
            sizes = {"num_bytes": done, "total_bytes": text.num_bytes, "num_tokens": writer.size}
            on_progress(Progress(num_shards=len(writer.shards), **sizes))


def _manifest(text: TextSource, made: Tokenizer, writer: Writer, license_name: str | None) -> Manifest:
    def split(shards: list[ShardEntry]) -> SplitEntry:
        dataset = file_dataset([str(writer.folder / shard.file) for shard in shards])
        assert dataset is not None
        return SplitEntry(
            tokens=dataset.num_tokens,
            num_documents=sum(shard.num_documents for shard in shards),
            digest=dataset.digest(),
            shards=tuple(shards),
        )

    splits: dict[SplitName, SplitEntry] = {"train": split(writer.shards)}
    if writer.val is not None:
        splits["val"] = split([writer.val])
    return Manifest(
        hpxfer_data=MANIFEST_VERSION,
        source=SourceEntry(
            given=text.given,
            kind=text.kind,
            field=text.field,
            num_files=len(text.files),
            num_bytes=text.num_bytes,
            license=license_name or text.license,
        ),
        tokenizer=made.entry,
        token_bytes=made.token_bytes,
        empty_documents=writer.num_empty,
        splits=splits,
        request=_lasting(writer.request),
        versions={"hpxfer": hpxfer.__version__, "tokenizers": importlib.metadata.version("tokenizers")},
    )


def _remove_state(out: Path) -> None:
    """Remove the state from a folder that is complete, which needs none."""
    with suppress(OSError):
        os.unlink(out / PROGRESS_FILE)


def _request(text: TextSource, made: Tokenizer, val_tokens: int, shard_tokens: int) -> dict[str, Any]:
    """Return what the bytes of the shards depend on, and when the files were changed."""

    def hashed(data: Any) -> str:
        return hashlib.blake2b(json.dumps(data).encode(), digest_size=16).hexdigest()

    return {
        "kind": text.kind,
        "field": text.field,
        "files": hashed([[os.path.basename(path), size] for path, size in text.files]),
        "tokenizer": made.entry.digest,
        "eos": made.entry.eos,
        "val_tokens": val_tokens,
        "shard_tokens": shard_tokens,
        CHANGED: hashed([os.stat(path).st_mtime_ns for path, _ in text.files]),
    }


def _lasting(request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != CHANGED}


def _differences(stored: dict[str, Any], request: dict[str, Any]) -> str:
    """Return in words how a stored request differs from this one, or nothing if it does not."""
    differing = (key for key, value in request.items() if stored.get(key) != value)
    return ", ".join(f"{key} {shown(stored.get(key))} (now {shown(request[key])})" for key in differing)


def _known(out: Path, request: dict[str, Any]) -> Manifest:
    """Return the manifest of a folder that was prepared with this request. Raise HpxferError if it was another one."""
    found = read_manifest(out)
    if found is None:
        rule = f"must be a folder of its own, got one with another tool's {MANIFEST_FILE}"
        raise HpxferError(f"--out: {out}: {rule}")
    if different := _differences(found.request, _lasting(request)):
        raise HpxferError(f"--out: {out}: was prepared with another {different}; name another folder")
    _remove_state(out)  # of a run that was killed at its very end
    return found


def _stored_state(out: Path, request: dict[str, Any]) -> State | None:
    """Return the state of a stopped run from which this request goes on, or None if it begins.

    A run of another request is begun anew if it had completed no shard. Raises HpxferError if it had, or if the folder
    is none that this command made.
    """
    path = out / PROGRESS_FILE
    if not path.exists():
        if others := sorted(entry.name for entry in out.iterdir()):
            rule = "must be an empty folder, or one that this command made"
            raise HpxferError(f"--out: {out}: {rule}, got {cut(', '.join(others), 200)}")
        return None
    try:
        state = State.model_validate_json(read_text(path))
    except (OSError, ValueError):
        raise HpxferError(f"{path}: must be the state of a stopped run, got a damaged file") from None
    if not (found := _differences(state.request, request)):
        return state
    if state.shards:
        raise HpxferError(
            f"--out: {out}: must be of the same command, got a preparation that was stopped, with another {found}; "
            "remove the folder, which holds no finished data, or name another one"
        )
    with at_disk(out / TOKENIZER_FOLDER):
        for name in (FILE, *MORE_FILES):
            (out / TOKENIZER_FOLDER / name).unlink(missing_ok=True)
    return None
