"""Documents in a window: attention and positions that start again after each end-of-document token.

A token belongs to the document of the token before it, unless that one is the end of a document. The start of a window
starts a document. Rotated positions need nothing here: a rotation turns queries and keys of a document alike, and only
their distance counts.

Letters: K trials, B sequences, S context, N = K*B.
"""

from __future__ import annotations

import torch
from torch import Tensor


def starts_of_documents(inputs_KBS: Tensor, eos_id: int) -> Tensor:
    """Return whether each token is the first one of a document, [K, B, S] bool."""
    first = torch.ones_like(inputs_KBS[..., :1], dtype=torch.bool)
    return torch.cat([first, inputs_KBS[..., :-1] == eos_id], dim=-1)


def positions_in_documents(inputs_KBS: Tensor, eos_id: int) -> Tensor:
    """Return the position of each token in its document, [K, B, S] int64."""
    starts_KBS = starts_of_documents(inputs_KBS, eos_id)
    places_S = torch.arange(inputs_KBS.shape[-1], device=inputs_KBS.device)
    began_KBS = torch.where(starts_KBS, places_S, 0).cummax(-1).values
    return places_S - began_KBS


def document_mask(inputs_KBS: Tensor, eos_id: int, dtype: torch.dtype) -> Tensor:
    """Return what is added to the attention logits, [N, S, S]: 0 for a key of the same document that is not in the
    future, else minus infinity.
    """
    document_NS = starts_of_documents(inputs_KBS, eos_id).cumsum(-1).flatten(0, 1)
    same_NSS = document_NS.unsqueeze(2) == document_NS.unsqueeze(1)
    seen_NSS = same_NSS.tril()
    return torch.zeros_like(seen_NSS, dtype=dtype).masked_fill(~seen_NSS, float("-inf"))
