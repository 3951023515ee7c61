"""A judged loss says its unit, in texts and in names of columns."""

from __future__ import annotations

from hpxfer.verdict.loss import NATS, JudgedLoss

SQUARED = JudgedLoss(unit="squared error")


def test_a_loss_is_written_in_its_unit() -> None:
    assert (NATS.level(3.14159), NATS.amount(0.0171)) == ("3.1416 nats", "0.017 nats")
    assert (SQUARED.level(0.5), SQUARED.amount(0.0171)) == ("0.5000 squared error", "0.017 squared error")


def test_columns_of_data_name_the_unit() -> None:
    assert (NATS.column("mean_nats"), SQUARED.column("mean_nats")) == ("mean_nats", "mean_squared_error")
    assert SQUARED.column("log2_lr") == "log2_lr"
