"""`hpxfer data`: from text to token shards, and what a file of data is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hpxfer.cli.options import AsJson, Text, Whole
from hpxfer.cli.output import answer, say, warn
from hpxfer.prepare import SHARD_TOKENS

if TYPE_CHECKING:
    from hpxfer.data import Manifest
    from hpxfer.prepare.run import Progress

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
        Argument(
            metavar="SOURCE",
            help="hf:NAME[:config][:split], a folder that datasets saved, or files, a glob or a folder of JSONL "
            "(also .gz, .zst), Parquet or text.",
        ),
    ],
    tokenizer: Annotated[str, Option(metavar="NAME|FILE", help="A tokenizer.json, its folder, or a name on the hub.")],
    out: Annotated[Path, Option(metavar="DIR", help="The folder to make.")],
    field: Annotated[str, Option(help="The field or column that holds the text.")] = "text",
    val_tokens: Annotated[int, Option(min=0, help="Hold out so many tokens, as a split of their own.")] = 0,
    eos: Annotated[Text, Option(help="The token that ends a document, or none; default: the tokenizer's own.")] = None,
    license_name: Annotated[Text, Option("--license", help="The license of the data, for the record.")] = None,
    workers: Annotated[Whole, Option(min=1, help="Processes; default: one per core.")] = None,
    shard_tokens: Annotated[int, Option(min=1, help="Tokens per shard, at least, but for the last.")] = SHARD_TOKENS,
    address: Annotated[Text, Option(help="Tokenize on this Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")] = None,
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

    from hpxfer.host import Interrupted, interrupts
    from hpxfer.prepare.run import prepare_data

    console = Console(stderr=True)
    last, total = -LINE_S, None

    def show(progress: Progress) -> None:
        nonlocal last, total
        total = progress.total_bytes
        if time.monotonic() - last >= (0.2 if console.is_terminal else LINE_S):
            last = time.monotonic()
            line = _line(progress.num_bytes, total, progress.num_tokens, progress.num_shards)
            console.print(line, end="\r" if console.is_terminal else "\n", highlight=False, soft_wrap=True)

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
    if total is not None:
        splits = manifest.splits.values()
        tokens, shards = sum(split.tokens for split in splits), sum(len(split.shards) for split in splits)
        console.print(_line(total, total, tokens, shards), highlight=False, soft_wrap=True)
    if number := manifest.empty_documents:
        warn([f"{source}: {_counted(number, 'document')} of no tokens {'was' if number == 1 else 'were'} left out"])
    answer(lambda: manifest.model_dump(mode="json"), lambda: _text(out, manifest), as_json=as_json)


@data_app.command()
def info(
    path: Annotated[str, Argument(metavar="PATH", help="A file, a glob, a folder, or a source such as uint16:PATH.")],
    as_json: AsJson = False,
) -> None:
    """Say what a file or folder of data is, and whether a sweep can use it.

    Example: hpxfer data info data/mine
    """
    from hpxfer.prepare.info import info as info_of

    found = info_of(path)
    answer(found.to_dict, found.text, as_json=as_json)


def _line(done: int, total: int, tokens: int, shards: int) -> str:
    share = done / max(1, total)
    size = f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
    return (
        f"{'#' * round(30 * share):.<30} {share:4.0%}  {size}, {_counted(tokens, 'token')}, {_counted(shards, 'shard')}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(out: Path, manifest: Manifest) -> str:
    lines = [f"{out}: complete, from {_counted(manifest.source.num_files, 'file')}"]
    for name, split in manifest.splits.items():
        documents = _counted(split.num_documents, "document")
        lines.append(f"  {name}: {split.tokens} tokens of {documents}, digest {split.digest}")
    lines += ["use it in a sweep:", "  data:", f"    source: tokens:{out}"]
    if "val" in manifest.splits:
        most = manifest.splits["val"].tokens - 1
        lines += ["  training:", f"    validation_tokens: {most}  # at most, a multiple of batch_tokens"]
    return "\n".join(lines)
