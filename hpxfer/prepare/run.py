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
from hpxfer.data.readers import llmc
from hpxfer.data.readers.ids import file_dataset
from hpxfer.errors import HpxferError
from hpxfer.host.files import locked, reason, remove_half_written
from hpxfer.host.machine import num_cpus
from hpxfer.prepare import SHARD_TOKENS
from hpxfer.prepare.blocks import codec_of
from hpxfer.prepare.engines import in_processes, on_ray
from hpxfer.prepare.source import TextSource, open_source
from hpxfer.prepare.stopped import CHANGED, TOKENIZER_FOLDER, damaged, differences, stored_state
from hpxfer.prepare.tokenize import FILE, Job, Tokenizer, load_tokenizer
from hpxfer.prepare.writer import Write, Writer, content_of
from hpxfer.spec.manifest import (
    MANIFEST_FILE,
    MANIFEST_VERSION,
    PROGRESS_FILE,
    Manifest,
    ShardEntry,
    SourceEntry,
    Split,
    SplitEntry,
    TokenizerEntry,
    read_manifest,
)

# Tokens have about four bytes of text each. Eight times as many documents are offered to validation as it needs by that
# estimate, which columns beside the text make too small. All others need not wait.
_BYTES_PER_TOKEN, _OFFERED = 4, 8
# Nobody but who holds the folder's lock writes these.
_OWNED = ("train-", "val-", PROGRESS_FILE, MANIFEST_FILE)
# What a compressed text grows by.
_INFLATED = 3


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
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpxferError(f"--out: {out}: cannot be a folder: {reason(error)}; name another") from None
    with locked(out, exclusive=True):
        if (out / MANIFEST_FILE).exists():
            found = _known(out, request)
            _remove_state(out)  # of a run that was killed at its very end
            return found
        remove_half_written(out, _OWNED)
        remove_half_written(out / TOKENIZER_FOLDER, tuple(made.files))
        state = stored_state(out, request)
        writer = Writer(out, version, shard_tokens, val_tokens, request)
        if state is not None:
            try:
                writer.restore(state)
            except HpxferError:
                raise
            except (KeyError, TypeError, ValueError):
                raise damaged(out) from None
        else:  # the state comes first: it makes the folder this command's
            writer.write({out / PROGRESS_FILE: content_of(writer.state())})
        _make_folder(out / TOKENIZER_FOLDER)
        writer.write({out / TOKENIZER_FOLDER / name: _bytes(content) for name, content in made.files.items()})
        if not writer.has_ended:
            _tokenize(text, made, writer, val_tokens, workers, address, on_progress)
            writer.finish(text.given)
        return _complete(out, text, made, writer, license_name)


def _tokenize(
    text: TextSource,
    made: Tokenizer,
    writer: Writer,
    val_tokens: int,
    workers: int | None,
    address: str | None,
    on_progress: Callable[[Progress], None],
) -> None:
    job = Job(
        tokenizer_file=str((writer.folder / TOKENIZER_FOLDER / FILE).resolve()),
        tokenizer_digest=made.digest,
        eos_id=made.eos_id,
        token_bytes=made.token_bytes,
        held_out_share=_held_out_share(text, val_tokens),
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
            written = sum(shard.tokens for shard in writer.shards) + writer.train.size + writer.held_out.size
            on_progress(
                Progress(num_bytes=done, total_bytes=text.num_bytes, num_tokens=written, num_shards=len(writer.shards))
            )


def _complete(out: Path, text: TextSource, made: Tokenizer, writer: Writer, license_name: str | None) -> Manifest:
    """Give the last shards their names, then write the manifest, which says that the folder is complete."""
    writer.complete()
    splits: dict[Split, SplitEntry] = {"train": _split(out, writer.shards)}
    if writer.val is not None:
        splits["val"] = _split(out, [writer.val])
    manifest = Manifest(
        hpxfer_data=MANIFEST_VERSION,
        source=SourceEntry(
            given=text.given,
            kind=text.kind,
            field=text.field,
            num_files=len(text.files),
            num_bytes=text.num_bytes,
            license=license_name or text.license,
        ),
        tokenizer=TokenizerEntry(
            given=made.given,
            digest=made.digest,
            vocab_size=made.vocab_size,
            eos=made.eos,
            eos_id=made.eos_id,
        ),
        token_bytes=made.token_bytes,
        empty_documents=writer.num_empty,
        splits=splits,
        request=_lasting(writer.request),
        versions={"hpxfer": hpxfer.__version__, "tokenizers": importlib.metadata.version("tokenizers")},
    )
    writer.write({out / MANIFEST_FILE: content_of(manifest.model_dump(mode="json"))})
    _remove_state(out)
    return manifest


def _remove_state(out: Path) -> None:
    """Remove the state from a folder that is complete, which needs none."""
    with suppress(OSError):
        os.unlink(out / PROGRESS_FILE)


def _split(out: Path, shards: list[ShardEntry]) -> SplitEntry:
    dataset = file_dataset([str(out / shard.file) for shard in shards])
    assert dataset is not None
    return SplitEntry(
        tokens=dataset.num_tokens,
        num_documents=sum(shard.num_documents for shard in shards),
        digest=dataset.digest(),
        shards=tuple(shards),
    )


def _request(text: TextSource, made: Tokenizer, val_tokens: int, shard_tokens: int) -> dict[str, Any]:
    """Return what the bytes of the shards depend on, and when the files were changed."""
    names = [[os.path.basename(path), size] for path, size in text.files]
    return {
        "kind": text.kind,
        "field": text.field,
        "files": _hash(names),
        "tokenizer": made.digest,
        "eos": made.eos,
        "val_tokens": val_tokens,
        "shard_tokens": shard_tokens,
        CHANGED: _hash([os.stat(path).st_mtime_ns for path, _ in text.files]),
    }


def _hash(data: Any) -> str:
    return hashlib.blake2b(json.dumps(data).encode(), digest_size=16).hexdigest()


def _lasting(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request without the times at which files were changed, which a copy of them does not keep."""
    return {key: value for key, value in request.items() if key != CHANGED}


def _known(out: Path, request: dict[str, Any]) -> Manifest:
    """Return the manifest of a folder that was prepared with this request. Raise HpxferError if it was another one."""
    found = read_manifest(out)
    if found is None:
        raise HpxferError(
            f"--out: {out}: must be a folder of its own, got one with another tool's {MANIFEST_FILE}; name another"
        )
    _require_same(out, found.request, _lasting(request))
    return found


def _require_same(out: Path, stored: dict[str, Any], request: dict[str, Any]) -> None:
    if found := differences(stored, request):
        raise HpxferError(
            f"--out: {out}: was prepared with {found}; name another folder, or give what it was prepared from"
        )


def _held_out_share(text: TextSource, val_tokens: int) -> float:
    """Return the share of documents that validation is offered."""
    inflated = text.kind == "parquet" or any(codec_of(path) for path, _ in text.files)
    tokens = max(1, text.num_bytes * (_INFLATED if inflated else 1) / _BYTES_PER_TOKEN)
    return min(1.0, _OFFERED * val_tokens / tokens)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be made: {reason(error)}; name another folder with --out") from None


def _bytes(content: bytes) -> Write:
    return lambda file: file.write(content)
