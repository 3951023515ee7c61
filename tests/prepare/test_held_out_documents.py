"""The documents of validation: those with the smallest hashes, however they stream by."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpxfer.prepare.held_out import HeldOut, key_of

DOCUMENTS = st.lists(st.integers(1, 40), min_size=0, max_size=60)  # a document by its length: equal ones are copies


def document(length: int) -> NDArray[np.uint16]:
    return np.full(length, length, np.uint16)


def smallest(lengths: list[int], wanted: int) -> list[int]:
    """Return what is to be held out: whole groups of copies in the order of their hashes, while there is room."""
    ranked = sorted((key_of(document(each)), each) for each in lengths if each <= wanted)
    kept, size = set(), 0
    for (_, each), group in groupby(ranked):
        size += each * len(list(group))
        if size > wanted:
            break
        kept.add(each)
    return [each for each in lengths if each in kept]


@given(lengths=DOCUMENTS, wanted=st.integers(1, 200), cut=st.integers(0, 60))
def test_the_smallest_hashes_are_held_out_and_nothing_is_lost(lengths: list[int], wanted: int, cut: int) -> None:
    held_out, trained = HeldOut(wanted), []
    for number, each in enumerate(lengths):
        if number == cut:  # stopped, and restored from what was stored
            stored, held_out = held_out, HeldOut(wanted, held_out.limit)
            for ids in stored.documents():
                assert not list(held_out.add(ids, key_of(ids)))
        ids = document(each)
        if held_out.takes(ids, key_of(ids)):
            trained += [len(back) for back in held_out.add(ids, key_of(ids))]
        else:
            trained.append(each)
    trained += [len(back) for back in held_out.surplus()]
    found = [len(ids) for ids in held_out.documents()]
    assert found == smallest(lengths, wanted)
    assert held_out.size == sum(found) <= wanted
    assert sorted(trained + found) == sorted(lengths)


def test_without_validation_nothing_is_held_out() -> None:
    assert not HeldOut(0).takes(document(1), 0)
