"""The rules of pieces, lanes and micro-batches."""

from __future__ import annotations

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec.load import parse_sweep
from hpxfer.trial import setting_of
from hpxfer.trial.setting import DataRef

DATA = DataRef(digest="abc", tokenizer="ascii", vocab_size=128)


def text(training: str = "", resources: str = "", *edits: tuple[str, str]) -> str:
    more = "seeds: 2" + (f"\nresources: {{{resources}}}" if resources else "")
    return edited(("  steps: 200", f"  steps: 200\n{training}"), ("seeds: 2", more), *edits)


LEGAL = "  accumulation_tokens: 128\n  accumulation_lanes: 2"


def test_pieces_and_lanes_become_the_trials_setting() -> None:
    spec = parse_sweep(text(LEGAL, "micro_batch_tokens: 256, recompute: blocks"))
    setting = setting_of(spec, DATA)
    assert (setting.num_pieces, setting.piece_tokens, setting.pieces_per_lane) == (4, 128, 2)


def test_a_batch_of_one_piece_has_the_identity_of_before() -> None:
    plain = setting_of(parse_sweep(text()), DATA)
    for tokens in (512, 1024):
        assert setting_of(parse_sweep(text(f"  accumulation_tokens: {tokens}")), DATA) == plain
    assert setting_of(parse_sweep(text("  accumulation_tokens: 256")), DATA) != plain


@pytest.mark.parametrize(
    ("training", "resources", "message"),
    [
        ("  accumulation_tokens: 100", "", "must be a multiple of 64: of 32 and of the context 64, got 100"),
        ("  accumulation_tokens: 192", "", "must divide the batch of 512 tokens, got 192"),
        ("  accumulation_lanes: 2", "", "must divide the pieces of a batch of 512 tokens, which are 1, got 2"),
        ("  accumulation_tokens: 128\n  accumulation_lanes: 3", "", "which are 4, got 3"),
        (
            "  accumulation_tokens: 128\n  accumulation_lanes: 8",
            "",
            "must divide the pieces of a batch of 512 tokens, which are 4",
        ),
        (LEGAL, "micro_batch_tokens: 192", "must be a multiple of training.accumulation_tokens, which is 128, got 192"),
        ("", "micro_batch_tokens: 256", "needs training.accumulation_tokens"),
        ("  accumulation_tokens: 0", "", "must be greater than or equal to 1, got 0"),
        ("  accumulation_tokens: yes", "", "must be a valid integer, got 'yes'"),
        ("", "recompute: some", "got 'some'"),
    ],
)
def test_what_does_not_divide_is_refused_with_what_does(training: str, resources: str, message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text(training, resources))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ("gpus_per_stack: 4", "must divide training.accumulation_lanes, which is 2, or be a share, got 4; legal: 1, 2"),
        ("gpus_per_stack: 1.5", "a share of a GPU up to 1, or a whole number of GPUs, got 1.5"),
        ("gpus_per_stack: 0", "must be greater than or equal to 0.0001, got 0"),
        ("rank_timeout_s: 0", "must be greater than 0, got 0"),
    ],
)
def test_ranks_that_lanes_do_not_allow_are_refused(resources: str, message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text(LEGAL, resources))
    assert message in str(caught.value)


def test_ranks_are_whole_gpus_and_a_share_is_one_process() -> None:
    for asked, ranks, share in (("auto", 1, None), ("0.5", 1, 0.5), ("1", 1, 1.0), ("2", 2, 1.0)):
        resources = parse_sweep(text(LEGAL, f"gpus_per_stack: {asked}")).resources
        assert (resources.ranks, resources.gpu_share) == (ranks, share)


def test_trials_of_several_ranks_do_not_stop_early() -> None:
    with pytest.raises(HpxferError, match=r"gpus_per_stack: must be at most 1 with early_stopping"):
        parse_sweep(
            text(LEGAL, "gpus_per_stack: 2", ("seeds: 2", "early_stopping: {asha: {grace_steps: 20}}\nseeds: 2"))
        )


def test_every_batch_of_an_axis_is_whole_pieces() -> None:
    batches = ("  width: [32, 64]", "  batch: [512, 1024, 1280]")
    validation = ("validation_tokens: 1024", "validation_tokens: 10240")
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text("  accumulation_tokens: 512", "", batches, validation))
    assert "accumulation_tokens must divide the batch of 1280 tokens, got 512" in str(caught.value)
    assert "batch of 1024" not in str(caught.value)
