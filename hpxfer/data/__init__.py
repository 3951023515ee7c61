"""Data: from the `data` section of a sweep to the batches of token ids that a trainer reads. It needs numpy only."""

from hpxfer.data.batches import TokenData, open_data
from hpxfer.data.cautions import data_cautions
from hpxfer.data.reference import check_length, data_ref, point_keys, require_data

__all__ = ["TokenData", "check_length", "data_cautions", "data_ref", "open_data", "point_keys", "require_data"]
