"""Probe: what small modules of a model compute, found by calling copies of them on a few numbers.

The model stays as it is. A copy shares the code and the settings of the module, has numbers of its own on the CPU, and
calls no hooks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.modules import class_of

if TYPE_CHECKING:
    import torch

# What models that scale the output of a plain embedding call the factor.
SCALES = ("embed_scale", "embedding_multiplier", "scale_emb", "embedding_scale", "emb_scale", "embed_multiplier")
# Models of transformers 4 that multiply by sqrt(width) in their forward pass, without an attribute that says so.
SCALED_BY_SQRT_WIDTH = ("GemmaModel", "Gemma2Model", "RecurrentGemmaModel")
# What an embedding must show, and the attribute that shows it too.
FACTOR = ("the factor on its rows", "a number scalar_embed_scale beside the embedding")
FEW = 1e-3  # numbers of a probe that differ by less are equal


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a norm does with its gain w: it multiplies by w + offset, after it took the mean away or not."""

    offset: float
    centered: bool


def gain_of(module: torch.nn.Module, name: str) -> Gain | None:
    """Return what a norm does with its parameter `name`, or None if that cannot be found out.

    A gain of the kind 1 + w (Gemma, Qwen3-Next) has the offset 1. Raises HpxferError if a buffer has no memory.
    """
    import torch

    if isinstance(known := getattr(module, "zero_centered_gamma", None), bool):  # of Transformer Engine, on GPUs only
        return Gain(offset=float(known), centered="LayerNorm" in type(module).__name__)
    weight = module._parameters.get(name)
    if weight is None or weight.ndim != 1 or not _is_small(module, name):
        return None
    _require_memory(module, "whether its gain is w or 1 + w", "an attribute zero_centered_gamma")
    (size,) = weight.shape
    x = _features(size)

    def normed(by: float, shift: float = 0.0) -> torch.Tensor | None:
        return _called(module, {name: torch.full((size,), by)}, x + shift)

    zero, one, two, shifted = normed(0.0), normed(1.0), normed(2.0), normed(1.0, 1.0)
    if zero is None or one is None or two is None or shifted is None:
        return None
    step = one - zero
    if not torch.allclose(two - one, step, atol=10 * FEW):
        return None  # no multiple of w + offset, such as exp(w)
    at = int(step.abs().argmax())
    if not float(step.flatten()[at].abs()) > FEW:
        return None
    offset = float(zero.flatten()[at] / step.flatten()[at])
    return Gain(offset=round(offset, 3), centered=bool(torch.allclose(one, shifted, atol=10 * FEW)))


def plain_norm(module: torch.nn.Module, size: int) -> bool | None:
    """Return whether a norm without numbers of its own takes the mean of `size` features away.

    None: it is no such norm, or cannot be called alone.
    """
    import torch

    if module._modules or any(tensor is not None for tensor in module._parameters.values()):
        return None
    x = _features(size)
    plain, doubled, shifted = (_called(module, {}, y) for y in (x, 2 * x, x + 1.0))
    if plain is None or doubled is None or shifted is None or plain.shape != x.shape:
        return None
    if torch.allclose(plain, x, atol=10 * FEW) or not torch.allclose(plain, doubled, atol=10 * FEW):
        return None
    return bool(torch.allclose(plain, shifted, atol=10 * FEW))


def _features(size: int) -> torch.Tensor:
    """Return [1, 1, size]: numbers whose mean is not zero."""
    import torch

    return torch.linspace(-1.0, 2.0, size)[None, None] ** 2 + torch.linspace(0.0, 0.5, size)


def embedding_scale(module: torch.nn.Module, name: str, owner: torch.nn.Module | None, width: int) -> float:
    """Return the factor on the rows of an embedding, which `module` has as its parameter `name`.

    The factor is the module's own, or that of the module around it, `owner`. A factor that stands as a bare number in
    the forward pass of a whole model is not seen. Raises HpxferError if the factor may lie in a buffer without memory.
    """
    called = _rows_times(module, name, width) if _is_small(module, name) else None
    if called is None:
        if own := _number(module, ("scalar_embed_scale", *SCALES)):
            return own
        _require_memory(module, *FACTOR)
    if called is not None and not math.isclose(called, 1.0, rel_tol=FEW):
        return called
    if owner is None or owner is module:
        return 1.0
    path = next((key for key, child in owner._modules.items() if child is module), None)
    if path and len(list(owner.named_parameters(remove_duplicate=False))) == 1:
        around = _rows_times(owner, f"{path}.{name}", width)
        if around is not None:
            return around
        _require_memory(owner, *FACTOR)
    if stated := _number(owner, SCALES) or _number(getattr(owner, "config", None), SCALES):
        return stated
    return math.sqrt(width) if class_of(owner).__name__ in SCALED_BY_SQRT_WIDTH and _is_plain(module) else 1.0


def _rows_times(module: torch.nn.Module, path: str, width: int) -> float | None:
    """Return the factor by which a module returns the rows of its embedding `path`, or None if that does not show."""
    import torch

    if module.get_parameter(path).ndim != 2:
        return None
    rows = torch.ones(1, 1).expand(module.get_parameter(path).shape)
    out = _called(module, {path: rows}, torch.zeros(1, 1, dtype=torch.long))
    if out is None or tuple(out.shape) != (1, 1, width):
        return None
    (low, high) = map(float, out.aminmax())
    return low if math.isclose(low, high, rel_tol=FEW) else None


def _number(holder: Any, attributes: Iterable[str]) -> float | None:
    """Return the first of these attributes that is a number, or a tensor of one number."""
    import torch

    for attribute in attributes:
        value = getattr(holder, attribute, None)
        if isinstance(value, torch.Tensor) and value.ndim <= 1 and value.numel() == 1:
            if value.is_meta:
                raise HpxferError(_without_memory(holder, attribute, *FACTOR))
            value = value.item()
        if isinstance(value, int | float) and value is not True:
            return float(value)
    return None


def _require_memory(module: torch.nn.Module, what: str, instead: str) -> None:
    """Raise HpxferError if a buffer without memory may hide what a module computes."""
    if hidden := [name for name, buffer in module.named_buffers() if buffer.is_meta]:
        raise HpxferError(_without_memory(module, hidden[0], what, instead))


def _without_memory(module: Any, name: str, what: str, instead: str) -> str:
    rule = f"{type(module).__name__} must show {what}, got its tensor {name} without memory (device meta)"
    return f"{rule}; make the model with memory, or give it {instead}"


def _is_plain(module: torch.nn.Module) -> bool:
    return class_of(module).__module__.startswith("torch.nn.")


def _is_small(module: torch.nn.Module, name: str) -> bool:
    """Return whether a module has no modules in it, and no parameter but `name` and a bias."""
    rest = {other for other, tensor in module._parameters.items() if tensor is not None} - {name, "bias"}
    return name in module._parameters and not module._modules and not rest


def _called(module: torch.nn.Module, parameters: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
    """Return what the forward pass gives with these parameters, or None if it cannot be called with one or two inputs.

    All other parameters are zero, such as a bias. The second input is that of norms with a gate.
    """
    import torch

    if any(buffer.is_meta for buffer in module.buffers()):
        return None
    twin = _twin(module, parameters)
    for inputs in ((x,), (x, x)):
        try:
            with torch.no_grad():
                out = twin.forward(*inputs)
        except Exception:  # the module is the user's: whatever it raises, it cannot be probed
            continue
        out = out[0] if isinstance(out, tuple) else out
        if isinstance(out, torch.Tensor) and out.isfinite().all():
            return out.float()
    return None


def _twin(module: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> Any:
    """Return a copy that evaluates, has no hooks, and has these parameters, by dotted name, and zeros as all others."""
    import torch

    twin: Any = object.__new__(type(module))
    zeros = {key: None if tensor is None else torch.zeros(tensor.shape) for key, tensor in module._parameters.items()}
    # A forward pass may change a buffer in place, which must not reach the module's own.
    buffers = {key: None if of is None else of.detach().cpu().clone() for key, of in module._buffers.items()}
    parts = {
        key: None
        if child is None
        else _twin(child, {name.removeprefix(f"{key}."): of for name, of in parameters.items()})
        for key, child in module._modules.items()
    }
    twin.__dict__.update(
        {**module.__dict__, **{name: {} for name in module.__dict__ if name.endswith("_hooks")}},
        _parameters={key: parameters.get(key, tensor) for key, tensor in zeros.items()},
        _buffers=buffers,
        _modules=parts,
        _compiled_call_impl=None,
        training=False,
    )
    return twin
