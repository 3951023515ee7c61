"""The machine that hpxfer runs on: files, processes, memory, signals."""
