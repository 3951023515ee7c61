"""Shares: the parts of a training step's time, from a profile of the step itself.

An operator counts with its own time, without what it calls. Everything inside the optimizer counts as optimizer, and
likewise for attention and for the loss, except for the product with the readout. `routing` is the gathers and sorts
that carry rows to their experts and back, and embeddings. `rest` is Python, autograd and views, and the profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

PARTS = ("products", "attention", "elementwise", "routing", "loss", "optimizer", "rest")
_OPTIMIZER, _STEP = "hpxfer.bench: update", "hpxfer.bench: step"
# Substrings of the names of operators and of their callers, in lower case, and whole names of those that compute none.
_ATTENTION = ("scaled_dot_product", "attention", "_flash_")
_PRODUCTS = ("mm", "matmul", "linear", "einsum", "mkldnn")
_LOSS = ("cross_entropy", "nll_loss", "log_softmax", "logsumexp", "_head")
_ROUTING = ("index", "gather", "scatter", "sort", "bincount", "cumsum", "embedding", "nonzero")
_VIEWS = (
    "select slice narrow view reshape flatten _unsafe_view _reshape_alias as_strided expand t transpose permute unbind "
    "split split_with_sizes chunk unsqueeze squeeze alias item _local_scalar_dense detach lift_fresh empty empty_like "
    "empty_strided resize_"
)


def step_shares(forward_backward: Callable[[], object], update: Callable[[], object], steps: int) -> dict[str, float]:
    """Return part -> its share of a step. The shares add up to 1."""
    # Events are kept although there is only one cycle, because torch 2.11 warns if they are not.
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        for _ in range(steps):
            with record_function(_STEP):
                forward_backward()
                with record_function(_OPTIMIZER):
                    update()
    events = profiled.events()
    spent = dict.fromkeys(PARTS, 0.0)
    for event in events:
        spent[part_of(event)] += event.self_cpu_time_total
    # The profiler's own cost between operators is in no event. It counts as rest, like the time of Python there.
    total = sum(event.cpu_time_total for event in events if event.name == _STEP)
    spent["rest"] += max(0.0, total - sum(spent.values()))
    return {part: seconds / sum(spent.values()) for part, seconds in spent.items()}


def part_of(event: Any) -> str:
    """Return the part of a step that an operator belongs to, by its name and then by the names of its callers."""
    callers = [event.name.lower()]
    while (event := event.cpu_parent) is not None:
        callers.append(event.name.lower())
    own = callers[0].rpartition("::")[2]
    torch_own = callers[0].startswith("aten::")
    if _OPTIMIZER in callers:
        return "optimizer"
    if any(mark in caller for caller in callers for mark in _ATTENTION):
        return "attention"
    if torch_own and any(mark in own for mark in _PRODUCTS):
        return "products"
    if any(mark in caller for caller in callers for mark in _LOSS):
        return "loss"
    if not torch_own or own in _VIEWS.split():
        return "rest"
    return "routing" if any(mark in own for mark in _ROUTING) else "elementwise"


def shares_text(shares: dict[str, float]) -> str:
    """Return the shares as a sentence, the largest first."""
    parts = sorted(shares.items(), key=lambda part: -part[1])
    return "profile: " + ", ".join(f"{part} {share:.0%}" for part, share in parts)
