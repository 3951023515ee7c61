"""`hpxfer weights`: the weights of a trained trial, as a model of transformers or as a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from hpxfer.cli.options import AsJson, Folder, Plugins, Text
from hpxfer.cli.output import answer, say, warn, written


def weights(
    results: Folder,
    out: Annotated[Path, Option(help="A new folder for the files.")],
    trial: Annotated[Text, Option(help="The trial's id, or how it begins.")] = None,
    best: Annotated[bool, Option("--best", help="The trial of lowest judged loss, over all shapes.")] = False,
    form: Annotated[
        Literal["transformers", "safetensors"] | None,
        Option(
            "--format",
            help="transformers: AutoModelForCausalLM loads it. safetensors: any model, our names; default: "
            "transformers, or safetensors where the family reads no tokens.",
        ),
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a trial that has finished. A sweep keeps them if it says `resources: {keep: last}`.

    \b
    Examples:
      hpxfer weights results/mixtral --best --out mixtral-toy
      hpxfer weights results/mixtral --trial 3f2a --out w --format safetensors
    """
    from hpxfer.errors import HpxferError
    from hpxfer.host import parse_root
    from hpxfer.registry import rows_of
    from hpxfer.results import load_results
    from hpxfer.search import judged_by
    from hpxfer.weights.files import BYTES, write_folder
    from hpxfer.weights.kept import FOLDER, chosen_trial, weights_from

    outcome = load_results(results)
    warn(outcome.problems)
    found, row = chosen_trial(outcome, trial, best=best)
    rows = rows_of("family")
    if found.setting.family not in rows:
        fix = "name the plug-in of its sweep with --plugin"
        raise HpxferError(f"{results}: weights of the family {found.setting.family} need its code; {fix}")
    form = form or rows.get(found.setting.family).weights
    files = write_folder(weights_from(parse_root(results) / FOLDER, found, row), out, form)
    judged = judged_by(outcome.spec, "validation")
    loss = f"{judged.words} {judged.level(row['validation_loss_nats'])}"
    data = {"trial": found.id, "files": [str(path) for path in files]}
    text = f"trial {found.id}: {found.shape.label()}, {loss}\n{written(files)}"
    answer(lambda: data, lambda: text, as_json=as_json)
    if not as_json and form == "transformers" and found.setting.tokenizer not in BYTES:
        say(
            f"no tokenizer is among them: the data holds ids of {found.setting.tokenizer}, and not the tokenizer; give "
            "it where the model is used",
            err=True,
        )
