"""The flat storage: views, sums and gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from tiny_trials import BASE, SETTING

from hpxfer.model.flat import FlatLayout, gradients
from hpxfer.model.gpt.layout import gpt_parameters

SMALL = replace(SETTING, norm_gains=True, biases=True)


def layout(num_trials: int) -> FlatLayout:
    return FlatLayout(parameters=gpt_parameters(BASE, SMALL), num_trials=num_trials)


def test_views_cover_the_vector_once_and_in_order() -> None:
    flat = torch.arange(float(layout(2).numel))
    views = layout(2).weights(flat)
    joined = torch.cat([copy.flatten() for copies in views.values() for copy in copies])
    assert torch.equal(joined, flat)
    for tensor in layout(2).parameters:
        assert [copy.shape for copy in views[tensor.name]] == [(2, *tensor.size)] * tensor.layers


def test_leaves_show_what_is_written_to_the_vector() -> None:
    flat = torch.zeros(layout(2).numel)
    leaves = layout(2).leaves(flat)
    flat.fill_(3.0)
    for copies in leaves.values():
        assert all(copy.is_leaf and copy.requires_grad and bool((copy == 3.0).all()) for copy in copies)


def test_gradients_are_contiguous_and_named_as_the_weights() -> None:
    flat = torch.ones(layout(2).numel)
    leaves = layout(2).leaves(flat)
    # A transposed use gives autograd gradients with other strides.
    turned = [copy.transpose(0, -1) for copies in leaves.values() for copy in copies]
    losses = torch.stack([sum(view[..., k].square().sum() for view in turned) for k in (0, 1)])
    found = gradients(losses, leaves, torch.tensor([1.0, 3.0]))
    for name, copies in leaves.items():
        for copy, grad in zip(copies, found[name], strict=True):
            assert grad.is_contiguous()
            assert grad.shape == copy.shape
            assert bool((grad[0] == 2.0).all())
            assert bool((grad[1] == 6.0).all())
