"""Runs that were trained elsewhere: their table is read, checked and judged as a sweep is.

columns, cells, read     what a table may hold, and how a file or a frame becomes runs
guessed                  what columns of well-known names hold
shapes, bases            the axes, the scales and the shape that is the base
joined, checks           HP values that are one, and what no verdict may rest on
prepare                  all of that
judging, judged, page    the verdicts, by the room `verdict`, and the page on them
imports                  the table of the runs of W&B, MLflow and TensorBoard
"""
