"""How far a run is: counts, status, the live table, the progress file and who follows it."""
