"""Write the generated parts of README.md and docs/ anew: `make docs`.

A part stands between the lines `<!-- NAME:begin -->` and `<!-- NAME:end -->`. `FILES` says which file has which parts.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import docs_commands as commands
import docs_papers
import docs_parts as parts
import docs_sweep_file as sweep_file
from compile_facts import facts_markdown
from docs_parts import Part

from hpxfer.errors import HpxferError

ROOT = Path(__file__).resolve().parents[2]
FILES: Mapping[str, Mapping[str, Part]] = {
    "README.md": {
        "verdict": parts.verdict_text,
        "quickstart": parts.quickstart_yaml,
    },
    "docs/quickstart.md": {"quickstart": parts.quickstart_yaml, "verdict": parts.verdict_full_text},
    "docs/sweep-file.md": {"quickstart": parts.quickstart_yaml, "keys": sweep_file.sweep_file_markdown},
    "docs/models.md": {"presets": parts.presets_markdown, "homes": parts.homes_markdown},
    "docs/commands.md": {"overview": commands.overview_markdown, "commands": commands.reference_markdown},
    "docs/verdict.md": {
        "error_summary": parts.error_summary_markdown,
        "seed_subsets": parts.seed_subsets_markdown,
        "thresholds": parts.thresholds_markdown,
    },
    "docs/error-rates.md": {"error_rates": parts.error_rates_markdown},
    "docs/papers.md": {"papers": docs_papers.papers_markdown},
    "docs/predict.md": {"prediction": parts.prediction_text, "predict_rates": parts.predict_rates_markdown},
    "docs/results.md": {"columns": parts.columns_markdown},
    "docs/parameterizations.md": {
        "tables": parts.tables_markdown,
        "conventions": parts.conventions_markdown,
        "rules": parts.rules_markdown,
    },
    "docs/extend.md": {"kinds": parts.kinds_markdown},
    "docs/design.md": {"rooms": parts.rooms_markdown},
    "docs/benchmarks.md": {"bench": parts.bench_markdown, "roofline": parts.roofline_markdown},
    "kernels/README.md": {"compiled": facts_markdown},
}
# Copied, because a site holds only what lies in docs/.
COPIES = {"docs/images/quickstart.png": "results/published/quickstart/transfer.png"}


def with_part(text: str, name: str, part: str) -> str:
    """Return `text` with `part` between the markers of `name`. Raise HpxferError unless they stand once, in order."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise HpxferError(f"must hold the line {begin} and, below it, the line {end}, each once; add them")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{part}\n\n{end}{after}"


def generated(root: Path, file: str) -> str:
    """Return the text of a file with every part made anew. Raise HpxferError where a marker is missing."""
    text = (root / file).read_text(encoding="utf-8")
    for name, make in FILES[file].items():
        try:
            text = with_part(text, name, make(root))
        except HpxferError as error:
            raise HpxferError(f"{file}: {error}") from None
    return text


def stale(root: Path) -> list[str]:
    """Return the files whose generated parts differ from what code and committed results say."""
    texts = [file for file in FILES if (root / file).read_text(encoding="utf-8") != generated(root, file)]
    return texts + [
        file
        for file, source in COPIES.items()
        if not (root / file).exists() or (root / file).read_bytes() != (root / source).read_bytes()
    ]


def main(arguments: Sequence[str]) -> int:
    """Rewrite every file. With `--check` rewrite nothing and return 1 if a file is stale."""
    try:
        if arguments == ["--check"]:
            found = stale(ROOT)
            sys.stdout.write("".join(f"{file}: stale; run `make docs`\n" for file in found))
            return 1 if found else 0
        for file in FILES:
            (ROOT / file).write_text(generated(ROOT, file), encoding="utf-8")
        for file, source in COPIES.items():
            shutil.copyfile(ROOT / source, ROOT / file)
    except (HpxferError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.path += [str(ROOT / "tests" / folder) for folder in ("bench", "studies")]
    sys.exit(main(sys.argv[1:]))
