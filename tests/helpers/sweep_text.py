"""Legal sweep files, one key a line where an error should point at the line, and edits of them."""

from __future__ import annotations

import re

SWEEP = """\
name: small
model:
  family: gpt
  base: {width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}
  context: 64
data:
  source: builtin:stdlib
training:
  batch_tokens: 512
  steps: 200
  betas: [0.9, 0.95]
  schedule: {decay: constant, warmup: 20}
  validation_tokens: 1024
parameterizations: [completep-moe, sp]
axes:
  width: [32, 64]
hps:
  router_bias_lr: 0.01
grid:
  lr: [0.01]
seeds: 2
"""

# The same of a family that reads samples.
SAMPLES = """\
name: small
model:
  family: mlp
  base: {width: 32, depth: 1, num_experts: 4, num_active: 4, expert_width: 16}
data:
  source: builtin:shapes
training:
  batch_samples: 64
  steps: 200
  optimizer: sgd
  validation_samples: 1024
parameterizations: [mup-i, sp]
axes:
  width: {shapes: [{width: 64, expert_width: 32}]}
grid:
  lr: [0.01]
seeds: 2
"""


def edited(*edits: tuple[str, str], text: str = SWEEP) -> str:
    """Return a sweep with every (old, new) applied; each `old` must stand in it exactly once."""
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    return text


def with_keys(text: str, *edits: str) -> str:
    """Return a sweep with keys set (`training.eps: 1`, `model.base.depth: 3`) or taken out (`-training.eps`).

    What the file has not comes last in its section, or in the braces of its line.
    """
    lines = text.splitlines()
    for edit in edits:
        path, _, value = edit.removeprefix("-").partition(": ")
        section, *inner = path.split(".", 1)
        start = next((at for at, line in enumerate(lines) if line.split(":")[0] == section), len(lines))
        end = next((at for at in range(start + 1, len(lines)) if lines[at][0] != " "), len(lines))
        if not inner:
            lines[start:end] = [] if edit[0] == "-" else [f"{section}: {value}"]
            continue
        found = [at for at in range(start, end) if inner[0] in (name := lines[at].strip().split(":")[0], f"'{name}'")]
        key, _, dim = inner[0].partition(".")
        braces = [at for at in range(start, end) if dim and lines[at].startswith(f"  {key}: {{")]
        if braces:
            lines[braces[0]] = _in_braces(lines[braces[0]], dim, None if edit[0] == "-" else value)
        elif found:
            lines[found[0] : found[0] + 1] = [] if edit[0] == "-" else [f"  {inner[0]}: {value}"]
        else:
            assert edit[0] != "-", edit
            lines[end:end] = [f"{section}:", f"  {inner[0]}: {value}"][start < end :]
    return "\n".join(lines) + "\n"


def _in_braces(line: str, key: str, value: str | None) -> str:
    spelled = "" if value is None else f", {key}: {value}"
    without = re.sub(rf"\b{key}: [^,}}]*(, )?", "", line)
    return re.sub(r"\{, ", "{", re.sub(r"(, )?\}$", f"{spelled}}}", without))
