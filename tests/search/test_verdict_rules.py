"""What a sweep is judged by: the rules, and the loss with its unit."""

from __future__ import annotations

import pytest

from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import parse_sweep

OWN = """\
name: own
trainer:
  command: [python, train.py]
  version: "1"
  arms: {scaled: {}, plain: {}}
  loss: LOSS
model: {family: user, own: {d: 8}}
training: {steps: 100, final_window_steps: 10}
axes: {d: [16]}
grid: {lr: [0.01]}
judge: {loss: validation}
"""


@pytest.mark.parametrize("unit", ["nats", "bits per byte", "squared error"])
def test_the_losses_of_a_trainer_have_its_unit(unit: str) -> None:
    spec = parse_sweep(OWN.replace("LOSS", f"{{unit: {unit}}}"))
    for name in ("validation", "final_window"):
        judged = judged_by(spec, name)
        assert (judged.name, judged.unit) == (name, unit)
        assert judged.column("mean_nats") == f"mean_{unit.replace(' ', '_')}"


def test_the_name_is_that_of_the_judged_loss_alone() -> None:
    spec = parse_sweep(OWN.replace("LOSS", "{name: held-out loss}"))
    assert judged_by(spec).words == "held-out loss"
    assert judged_by(spec, "final_window").words == "training loss over the last steps"
    assert judged_by(parse_sweep(OWN.replace("LOSS", "{unit: nats}"))).words == "validation loss"
