"""What planning needs to know about the data: its identity and its length. It never reads all of the data."""

from __future__ import annotations

from hpxfer.data.digest import digest
from hpxfer.data.sources import open_dataset, source_of
from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec
from hpxfer.spec.check_shapes import AT_BASE, keyed_shapes
from hpxfer.spec.sweep import DataSpec
from hpxfer.spec.vocabulary import vocabulary
from hpxfer.spec.yaml_file import spell
from hpxfer.trial import DataRef


def data_ref(spec: DataSpec) -> DataRef:
    """Return the identity of a sweep's data: digest (see `hpxfer.data.digest`), tokenizer and size of the vocabulary.

    Where the data is not on this machine, `spec.digest` is taken. Raise HpxferError if there is neither data nor
    digest, or if the data has another digest.
    """
    tokenizer, vocab_size = vocabulary(spec)
    if spec.digest is None:
        require_data(spec)
    dataset = open_dataset(spec.source)
    checked = vocab_size if source_of(spec.source).holds_ids else None
    found = spec.digest if dataset is None else digest(dataset, checked)
    assert found is not None
    if spec.digest not in (None, found):
        raise HpxferError(
            f"data.digest: must be the digest of the data at {spec.source}, {found}, got {spec.digest}; name the data "
            f"that has this digest, or remove the key to accept this data"
        )
    return DataRef(digest=found, tokenizer=tokenizer, vocab_size=vocab_size)


def require_data(spec: DataSpec) -> None:
    """Raise HpxferError unless the data is on this machine."""
    if open_dataset(spec.source) is None:
        raise HpxferError(
            f"data.source: must name data on this machine, got {spec.source}, which no file matches; correct the path "
            f"(a relative one starts at the sweep file's folder), or give data.digest to plan without the data"
        )


def check_length(spec: SweepSpec) -> None:
    """Raise HpxferError if the data is shorter than a run of the sweep. Do nothing if it is not on this machine."""
    dataset = open_dataset(spec.data.source)
    if dataset is None:
        return
    for at, shape in keyed_shapes(spec):
        try:
            require_length(
                name=spec.data.source,
                num_tokens=dataset.num_tokens,
                steps=shape.steps,
                batch_tokens=shape.batch_tokens,
                validation_tokens=spec.training.validation_tokens,
            )
        except HpxferError as error:
            if at == AT_BASE:
                raise
            axis, name, _, index = at
            key, _, rest = str(error).partition(": ")
            raise HpxferError(f"{key}: at {spell((axis, name, index))}: {rest}") from None


def require_length(*, name: str, num_tokens: int, steps: int, batch_tokens: int, validation_tokens: int) -> None:
    """Raise HpxferError unless a run fits in one epoch of `num_tokens`, without the held-out tail.

    The training region and the tail each need one more token, the last target.
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
