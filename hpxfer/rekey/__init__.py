"""Rekey: stored results get today's ids, see `hpxfer.store.legacy`."""

from hpxfer.rekey.write import Rekeyed, holds_legacy_ids, how_to_rekey, refuse_legacy_ids, rekey

__all__ = ["Rekeyed", "holds_legacy_ids", "how_to_rekey", "refuse_legacy_ids", "rekey"]
