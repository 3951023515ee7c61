"""The study of experts with few tokens under Muon."""

from __future__ import annotations

from muon_load import by_load


def test_an_expert_steps_as_far_with_few_tokens_as_with_many_and_not_at_all_without() -> None:
    found = {row["tokens"]: row["rms_over_lr"] for row in by_load(16, 1)}
    assert found.pop("0 to 0") == 0.0
    assert len(found) >= 3
    assert max(found.values()) < 1.5 * min(found.values())
