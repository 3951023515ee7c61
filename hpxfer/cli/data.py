"""`hpxfer data`: from text to token shards, and what a file of data is."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson
from hpxfer.cli.output import say, warn
from hpxfer.prepare import SHARD_TOKENS

if TYPE_CHECKING:
    from hpxfer.prepare.run import Progress
    from hpxfer.spec.manifest import Manifest

LINE_S = 10.0

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@data_app.callback()
def data() -> None:
    """Prepare token shards, and say what data is.

    \b
    Examples:
      hpxfer data info corpus/
      hpxfer data prepare corpus/ --tokenizer tokenizer.json --out data/mine
    """


@data_app.command()
def prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="hf:NAME[:config][:split], a folder that datasets saved, or files, a glob or a folder of JSONL (also "
            ".gz, .zst), Parquet or text.",
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option("--tokenizer", metavar="NAME|FILE", help="A tokenizer.json, its folder, or a name on the hub."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to make.")],
    field: Annotated[str, typer.Option("--field", help="The field or column that holds the text.")] = "text",
    val_tokens: Annotated[
        int,
        typer.Option("--val-tokens", min=0, help="Hold out so many tokens for validation, as a split of their own."),
    ] = 0,
    eos: Annotated[
        str | None,
        typer.Option("--eos", help="The token that ends a document, or none; default: the tokenizer's own."),
    ] = None,
    license_name: Annotated[
        str | None, typer.Option("--license", help="The license of the data, for the record.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default: one per core.")] = None,
    shard_tokens: Annotated[
        int, typer.Option("--shard-tokens", min=1, help="Tokens per shard, at least; the last one may have fewer.")
    ] = SHARD_TOKENS,
    address: Annotated[
        str | None, typer.Option(help="Tokenize with Ray Data on this cluster: auto, HOST:PORT or ray://HOST:PORT.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize text into a folder of token shards that `data.source: tokens:DIR` reads.

    A run that was stopped goes on where it was if the same command is given again. The same source and tokenizer give
    the same bytes with any number of workers.

    \b
    Examples:
      hpxfer data prepare corpus/ --tokenizer tokenizer.json --out data/mine --val-tokens 1000000
      hpxfer data prepare hf:HuggingFaceFW/fineweb-edu:sample-10BT:train --tokenizer gpt2 --out data/fineweb
    """
    from rich.console import Console

    from hpxfer.host.interrupts import Interrupted, interrupts
    from hpxfer.prepare.run import prepare_data

    console = Console(stderr=True)
    last, latest = -LINE_S, None

    def show(progress: Progress) -> None:
        nonlocal last, latest
        latest = progress
        pause = 0.2 if console.is_terminal else LINE_S
        if time.monotonic() - last >= pause:
            last = time.monotonic()
            console.print(_line(progress), end="\r" if console.is_terminal else "\n", highlight=False, soft_wrap=True)

    try:
        with interrupts():
            manifest = prepare_data(
                source,
                tokenizer=tokenizer,
                out=out,
                field=field,
                val_tokens=val_tokens,
                eos=eos,
                license_name=license_name,
                workers=workers,
                shard_tokens=shard_tokens,
                address=address,
                on_progress=show,
            )
    except Interrupted as end:
        say(f"\n{out}: stopped; the same command goes on from the last complete shard", err=True)
        raise typer.Exit(128 + end.signal_number) from None
    if latest is not None:
        console.print(_line(_ended(latest, manifest)), highlight=False, soft_wrap=True)
    if number := manifest.empty_documents:
        warn([f"{source}: {_counted(number, 'document')} of no tokens {'was' if number == 1 else 'were'} left out"])
    if as_json:
        say(manifest.model_dump_json())
    else:
        say(_text(out, manifest))


@data_app.command(name="info")
def data_info(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A file, a glob, a folder, or a source such as uint16:PATH.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say what a file or folder of data is, and whether a sweep can use it.

    Example: hpxfer data info data/mine
    """
    from hpxfer.data.info import info
    from hpxfer.prepare.source import open_source

    found = info(path, open_source)
    say(json.dumps(found.to_dict()) if as_json else found.text())


def _line(progress: Progress) -> str:
    share = progress.num_bytes / max(1, progress.total_bytes)
    bar = "#" * round(30 * share)
    return (
        f"{bar:.<30} {share:4.0%}  {progress.num_bytes / 1e6:,.1f} of {progress.total_bytes / 1e6:,.1f} MB, "
        f"{_counted(progress.num_tokens, 'token')}, {_counted(progress.num_shards, 'shard')}"
    )


def _ended(latest: Progress, manifest: Manifest) -> Progress:
    """Return the progress of a preparation that is complete."""
    splits = manifest.splits.values()
    return replace(
        latest,
        num_bytes=latest.total_bytes,
        num_tokens=sum(split.tokens for split in splits),
        num_shards=sum(len(split.shards) for split in splits),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(out: Path, manifest: Manifest) -> str:
    lines = [f"{out}: complete, from {_counted(manifest.source.num_files, 'file')}"]
    for name, split in manifest.splits.items():
        lines.append(
            f"  {name}: {split.tokens} tokens of {_counted(split.num_documents, 'document')}, digest {split.digest}"
        )
    lines.append("use it in a sweep:")
    lines += ["  data:", f"    source: tokens:{out}"]
    if "val" in manifest.splits:
        most = manifest.splits["val"].tokens - 1
        lines += ["  training:", f"    validation_tokens: {most}  # at most, a multiple of batch_tokens"]
    return "\n".join(lines)


DATA = Command(name="data", run=data_app)
