"""Runs that were trained elsewhere: their table is read, checked and judged as a sweep is."""
