"""Fuzz: damaged and absurd input for every command that trains nothing, and what no command may do with it.

python -m hpxfer.testing.fuzz --cases 2000 --seed 0 --keep fuzz-failures
"""
