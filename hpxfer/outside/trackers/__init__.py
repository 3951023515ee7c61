"""The runs of a tracker as the table that `hpxfer judge` reads: one file per tracker, and the table of all."""
