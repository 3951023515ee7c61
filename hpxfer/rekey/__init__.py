"""Rekey: give stored results today's ids. `hpxfer.store.legacy` defines both kinds of ids."""

from hpxfer.rekey.write import Rekeyed, holds_legacy_ids, how_to_rekey, refuse_legacy_ids, rekey

__all__ = ["Rekeyed", "holds_legacy_ids", "how_to_rekey", "refuse_legacy_ids", "rekey"]
