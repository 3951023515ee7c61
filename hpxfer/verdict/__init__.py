"""The verdict: from measured losses to "does this HP transfer?". Pure; needs numpy, pandas and scipy only."""
