"""The runs of a tracker as the table that `hpxfer judge` reads. One file per tracker, and what all share.

logged      a run as a tracker holds it
choices     which metric is the loss
tabulate    the table, with everything named that was chosen and dropped
wandb, mlflow, tensorboard
"""
