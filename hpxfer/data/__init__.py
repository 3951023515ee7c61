"""Data: from the `data` section of a sweep to the batches of token ids or samples that a trainer reads."""

from hpxfer.data.batches import Data, SampleData, TokenData
from hpxfer.data.cautions import data_cautions
from hpxfer.data.reference import check_length, data_ref, is_here, open_data, point_keys, require_data

__all__ = [
    "Data",
    "SampleData",
    "TokenData",
    "check_length",
    "data_cautions",
    "data_ref",
    "is_here",
    "open_data",
    "point_keys",
    "require_data",
]
