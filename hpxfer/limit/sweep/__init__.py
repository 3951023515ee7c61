"""A sweep beside its limits: do its networks approach them, and which width is large enough?

Here alone the room knows of sweeps. What a limit is solved from is read off the stored trials, by their numbers.
"""
