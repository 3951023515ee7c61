"""The same tensors get the same numbers, whatever wraps the model, and nothing is attached to them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hf_models import by_hand, logits, mixtral_of_width, tokens
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import hpxfer
from hpxfer.recipe import Recipe
from hpxfer.recipe.wrappers import plain_names, unwrapped

WIDTH = 64


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    """One process that talks to itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    return mixtral_of_width(WIDTH)


def recipe() -> Recipe:
    return by_hand(hpxfer.shape_of(mixtral_of_width(32)), weight_decay=0.1)


as_compiled = partial(torch.compile, backend="eager")


def as_sharded(module: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for layer in module.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def as_compiled_parallel(module: nn.Module) -> nn.Module:
    return as_compiled(DistributedDataParallel(module))


def as_compiled_blocks(module: Any) -> nn.Module:
    for i, layer in enumerate(module.model.layers):
        module.model.layers[i] = as_compiled(layer)
    return module


def as_pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


WRAPPERS = {
    "compiled": as_compiled,
    "compiled blocks": as_compiled_blocks,
    "compiled parallel": as_compiled_parallel,
    "parallel": DistributedDataParallel,
    "sharded": as_sharded,
    "copy": copy.deepcopy,
    "pickled": as_pickled,
}


SLOW = ("compiled blocks", "compiled parallel")  # the compiled model and the parallel one are of the fast tests


def summary(module: nn.Module) -> list[tuple[Any, ...]]:
    """Return all numbers of every group, and the names in it."""
    with recipe().attach(module, hpxfer.shape_of(module)):
        groups = recipe().param_groups(module, hpxfer.roles(module), hpxfer.shape_of(module))
    assert {id(tensor) for group in groups for tensor in group["params"]} == {
        id(tensor) for tensor in module.parameters()
    }
    numbers = ("lr", "weight_decay", "eps", "betas", "names", "roles")
    return [tuple(group[name] for name in numbers) for group in groups]


def draw(module: nn.Module) -> dict[str, torch.Tensor]:
    """Initialize from a fixed seed and return the whole tensors by their plain names."""
    shape = hpxfer.shape_of(module)
    with recipe().attach(module, shape):
        recipe().init_(module, hpxfer.roles(module), shape, generator=torch.Generator().manual_seed(11))
    plain = plain_names(module)
    whole = {plain(name): tensor.detach() for name, tensor in module.named_parameters()}
    return {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in whole.items()}


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize(
    "wrap", [pytest.param(wrap, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, wrap in WRAPPERS.items()]
)
def test_a_wrapped_model_gets_the_numbers_of_the_bare_one(wrap: Any) -> None:
    bare, wrapped = model(), wrap(model())
    assert summary(wrapped) == summary(bare)
    assert str(hpxfer.roles(wrapped)) == str(hpxfer.roles(bare))
    assert recipe().explain(wrapped).to_dict() == recipe().explain(bare).to_dict()
    shape = hpxfer.shape_of(wrapped)
    with pytest.warns(hpxfer.recipe.UnattachedWarning, match="this .*MixtralForCausalLM does not multiply by"):
        recipe().param_groups(wrapped, hpxfer.roles(wrapped), shape)
    expected, drawn = draw(bare), draw(wrapped)
    assert drawn.keys() == expected.keys()
    assert all(torch.equal(drawn[name], tensor) for name, tensor in expected.items())


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("wrap", [pytest.param(as_compiled, marks=pytest.mark.slow), as_sharded, as_pickled])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch.compile's
def test_a_wrapped_model_trains_as_the_bare_one(wrap: Any) -> None:
    """With attached multipliers, two steps of AdamW."""

    def losses(module: Any) -> list[float]:
        draw(module)
        shape, out = hpxfer.shape_of(module), []
        with recipe().attach(module, shape):
            optimizer = torch.optim.AdamW(recipe().param_groups(module, hpxfer.roles(module), shape), foreach=False)
            for _ in range(3):
                loss = nn.functional.cross_entropy(module(tokens()).logits.flatten(0, 1), tokens().flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                out.append(loss.item())
        return out

    expected = losses(model())
    assert losses(wrap(model())) == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0] - 0.01


@pytest.mark.slow
@pytest.mark.usefixtures("_group")
def test_a_compiled_model_may_be_attached_to_before_and_after() -> None:
    bare = model().eval()
    shape = hpxfer.shape_of(bare)
    with recipe().attach(bare, shape):
        expected = logits(bare)
    for wrap in (as_compiled, as_compiled_blocks):
        wrapped = wrap(model()).eval()
        logits(wrapped)  # compiled now
        with recipe().attach(wrapped, shape):
            torch.testing.assert_close(logits(wrapped), expected)


def test_a_state_goes_from_model_to_model() -> None:
    """Nothing hangs on tensors: a state loaded into a fresh model gives the same groups, and the optimizer's fits."""
    first, second = model(), model()
    shape = hpxfer.shape_of(first)
    draw(first)
    second.load_state_dict(first.state_dict())
    assert all(vars(tensor) == {} for tensor in first.parameters())
    assert summary(second) == summary(first)
    for module in (first, second):
        recipe().attach(module, shape)
    optimizers = [
        torch.optim.AdamW(recipe().param_groups(wrapped, hpxfer.roles(wrapped), shape)) for wrapped in (first, second)
    ]
    first(tokens()).logits.square().mean().backward()
    optimizers[0].step()
    state = pickle.loads(pickle.dumps(optimizers[0].state_dict()))
    optimizers[1].load_state_dict(state)
    pairs = zip(optimizers[0].param_groups, optimizers[1].param_groups, strict=True)
    assert all(group["names"] == other["names"] and group["lr"] == other["lr"] for group, other in pairs)


class Module(nn.Module):
    """A model whose own names look like those of wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4, bias=False)
        self.modular = nn.Linear(4, 4, bias=False)
        self.do = nn.ModuleDict({"_orig_model": nn.Linear(4, 4, bias=False)})


@pytest.mark.usefixtures("_group")
def test_names_lose_whole_wrapper_components_and_no_letters_beside_them() -> None:
    """The letters of `module.` and `_orig_mod.` occur in real names; `str.strip` of them would eat into these."""
    names = ["module.weight", "modular.weight", "do._orig_model.weight"]
    for wrap in (lambda module: module, as_compiled, DistributedDataParallel, as_compiled_parallel):
        wrapped = wrap(Module())
        plain = plain_names(wrapped)
        assert [plain(name) for name, _ in wrapped.named_parameters()] == names
        assert type(unwrapped(wrapped)) is Module
