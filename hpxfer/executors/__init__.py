"""Executors: who trains the stacks, and where. (Not `hpxfer/run/`: `hpxfer.run` is the function that users call.)"""
