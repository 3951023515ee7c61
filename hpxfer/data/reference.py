"""What planning needs of the data: its identity and its length. Reads blocks, never all of it."""

from __future__ import annotations

from hpxfer.data.digest import digest
from hpxfer.data.sources import find
from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec
from hpxfer.spec.check_shapes import AT_BASE, placed_shapes
from hpxfer.spec.sweep import DataSpec
from hpxfer.spec.vocabulary import vocabulary
from hpxfer.spec.yaml_file import spell
from hpxfer.trial import DataRef


def data_ref(spec: DataSpec) -> DataRef:
    """Return the identity of a sweep's data: digest (see `hpxfer.data.digest`), tokenizer and size of the vocabulary.

    Data that is not on this machine is known by `spec.digest`. Raises HpxferError if neither is there, and if the
    data that is here has another digest.
    """
    tokenizer, vocab_size = vocabulary(spec)
    if spec.digest is None:
        require_here(spec)
    source = find(spec.source)
    found = spec.digest if source is None else digest(source, vocab_size)
    assert found is not None
    if spec.digest not in (None, found):
        raise HpxferError(
            f"data.digest: must be that of the data at {spec.source}, {found}, got {spec.digest}; name the data that "
            f"the digest was taken of, or remove the key to accept this data"
        )
    return DataRef(digest=found, tokenizer=tokenizer, vocab_size=vocab_size)


def require_here(spec: DataSpec) -> None:
    """Raise HpxferError unless the data is on this machine."""
    if find(spec.source) is None:
        raise HpxferError(
            f"data.source: must name data on this machine, got {spec.source}, which no file matches; correct the path "
            f"(a relative one starts at the sweep file's folder), or give data.digest to plan without the data"
        )


def check_length(spec: SweepSpec) -> None:
    """Raise HpxferError if the data is shorter than a run of the sweep; do nothing if it is not on this machine."""
    source = find(spec.data.source)
    if source is None:
        return
    for place, shape in placed_shapes(spec):
        try:
            require_length(
                name=source.name,
                num_tokens=source.num_tokens,
                steps=shape.steps,
                batch_tokens=shape.batch_tokens,
                validation_tokens=spec.training.validation_tokens,
            )
        except HpxferError as error:
            if place == AT_BASE:
                raise
            axis, name, _, index = place
            key, _, rest = str(error).partition(": ")
            raise HpxferError(f"{key}: at {spell((axis, name, index))}: {rest}") from None


def require_length(*, name: str, num_tokens: int, steps: int, batch_tokens: int, validation_tokens: int) -> None:
    """Raise HpxferError unless a run fits in one epoch of `num_tokens`, with the held-out tail kept apart.

    The training region and the tail each need one token more: the last target.
    """
    needed = steps * batch_tokens + 1 + validation_tokens + 1
    if num_tokens >= needed:
        return
    most = max(0, (num_tokens - validation_tokens - 2) // batch_tokens)
    raise HpxferError(
        f"data.source: must hold at least {needed} tokens for {steps} steps of {batch_tokens}, {validation_tokens} "
        f"for validation and 2 last targets, got {num_tokens} at {name}; add data, or lower training.steps "
        f"(at most {most} fit), training.batch_tokens or training.validation_tokens"
    )
