"""The verdict: from measured losses to "does this HP transfer?". Pure; needs numpy, pandas and scipy only.

The files are a chain, in this order:

    loss_grid, measured, noise         the losses of each cell, and how far seeds differ
    basins, posterior                  joint draws of the basins of all shapes
    optimum, drift, estimate, basin    optima, drift and move, read from the draws
    chances, transfer, regret          the HP that is transferred, and what it costs at each shape
    thresholds, rules, judge           whether it transfers, and why
    hp_values, lacks, what_to_add      what would decide an undecided verdict
    shape_names, bases                 which shape is large enough to tune at
    report, summary, text              the findings as data and as text
"""
