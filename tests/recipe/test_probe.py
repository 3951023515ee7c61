"""What a probe finds where modules of one's own scale an embedding or a norm."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hf_models import make
from torch import nn

from hpxfer.errors import HpxferError
from hpxfer.recipe.probe import Gain, embedding_scale, gain_of

WIDTH = 32
SCALE = math.sqrt(WIDTH)


class Scaled(nn.Module):
    """An embedding, and around it whatever scales its output."""

    def __init__(self, by: Any, *, buffer: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Embedding(48, WIDTH)
        self.dropout = nn.Dropout(dropout)
        if buffer:
            self.register_buffer("by", torch.tensor(by))
        else:
            self.by = by

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dropout(self.inner(ids) * self.by)
        return out


class Counted(nn.Module):
    """An embedding in a module that counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Embedding(48, WIDTH)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.inner(ids) * SCALE
        return out


class Holder(nn.Module):
    """A model that holds an embedding and a head. Its forward pass does not matter."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.inner = nn.Embedding(48, WIDTH)
        self.head = nn.Linear(WIDTH, 48, bias=False)
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_module_around_an_embedding_may_scale_it_under_any_name(buffer: bool, dropout: float) -> None:
    around = Scaled(SCALE, buffer=buffer, dropout=dropout)
    assert embedding_scale(around.inner, "weight", around, WIDTH) == pytest.approx(SCALE)
    assert embedding_scale(around.inner, "weight", Scaled(1.0), WIDTH) == 1.0


def test_probing_a_module_around_an_embedding_calls_no_hook_and_leaves_it() -> None:
    around = Scaled(SCALE, dropout=0.5)
    called: list[object] = []
    for module in around.modules():
        module.register_forward_hook(lambda *args: called.append(args))
        module.register_forward_pre_hook(lambda *args: called.append(args))
    before, state = around.inner.weight.detach().clone(), torch.get_rng_state()
    embedding_scale(around.inner, "weight", around, WIDTH)
    assert not called
    assert around.training
    assert around.dropout.training
    assert torch.equal(around.inner.weight, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_buffer_that_a_forward_pass_changes_stays_as_it_is() -> None:
    around = Counted()
    assert embedding_scale(around.inner, "weight", around, WIDTH) == pytest.approx(SCALE)
    assert around.calls.item() == 0


@pytest.mark.parametrize(
    "attributes",
    [
        {"embed_scale": SCALE},
        {"embed_scale": torch.tensor(SCALE)},
        {"embedding_multiplier": torch.full((1,), SCALE)},
        {"config": SimpleNamespace(scale_emb=SCALE)},
    ],
)
def test_a_factor_of_the_model_is_read_as_number_tensor_or_entry_of_its_config(attributes: dict[str, Any]) -> None:
    around = Holder(**attributes)
    assert embedding_scale(around.inner, "weight", around, WIDTH) == pytest.approx(SCALE)


def test_what_scales_nothing_is_not_taken_for_a_factor() -> None:
    class Positions(nn.Module):
        """Adds numbers of its own, so that its output shows no factor."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Embedding(48, WIDTH)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(ids) + torch.arange(WIDTH)
            return out

    class OneMatrix(nn.Module):
        """A whole model with one matrix, whose logits are sums over the width."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Embedding(48, WIDTH)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(ids) @ self.inner.weight.T

    for around in (
        Positions(),
        OneMatrix(),
        Holder(embed_scale=None, scale_emb=True),
        Holder(embed_scale=torch.ones(3)),
    ):
        assert embedding_scale(around.inner, "weight", around, WIDTH) == 1.0


@pytest.mark.parametrize("kind", ["gemma", "gemma3"])
def test_a_model_without_memory_shows_the_factor_as_a_number(kind: str) -> None:
    with torch.device("meta"):
        model: Any = make(kind)
    assert embedding_scale(model.model.embed_tokens, "weight", model.model, WIDTH) == pytest.approx(SCALE)


def test_what_a_tensor_without_memory_may_hide_is_refused_and_not_taken_as_absent() -> None:
    class Embedding(nn.Embedding):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(48, WIDTH)
            self.register_buffer("by", torch.tensor(SCALE))
            self.__dict__.update(attributes)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = super().forward(ids) * self.by
            return out

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8))
            self.register_buffer("tiny", torch.tensor(1e-6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (x.pow(2).mean(-1, keepdim=True) + self.tiny).rsqrt() * (1 + self.weight)

    owner = Holder()
    assert embedding_scale(Embedding(), "weight", owner, WIDTH) == pytest.approx(SCALE)
    assert gain_of(Norm(), "weight") == Gain(offset=1.0, centered=False)
    with torch.device("meta"):
        within, around, stated = Embedding(), Scaled(SCALE, buffer=True), Holder(embed_scale=torch.tensor(SCALE))
        shown, plain, norm = Embedding(scalar_embed_scale=SCALE), Holder(), Norm()
    assert embedding_scale(shown, "weight", owner, WIDTH) == SCALE
    assert embedding_scale(plain.inner, "weight", plain, WIDTH) == 1.0
    rule = r"must show the factor on its rows, got its tensor (by|embed_scale) without"
    for module, of in ((within, owner), (around.inner, around), (stated.inner, stated)):
        with pytest.raises(HpxferError, match=rule):
            embedding_scale(module, "weight", of, WIDTH)
    with pytest.raises(
        HpxferError, match=r"Norm must show whether its gain is w or 1 \+ w, got its tensor tiny without"
    ):
        gain_of(norm, "weight")


def test_a_parameter_of_the_model_itself_may_be_the_embedding() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(48, WIDTH))
            self.position = nn.Parameter(torch.zeros(8, WIDTH))
            self.embed_scale = SCALE

    module, around = Bare(), Holder()
    assert embedding_scale(module, "table", around, WIDTH) == pytest.approx(SCALE)


def test_a_gain_that_is_no_straight_line_of_its_parameter_is_not_known() -> None:
    class Exponential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.rms_norm(x, (WIDTH,)) * self.weight.exp()

    assert gain_of(Exponential(), "weight") is None
