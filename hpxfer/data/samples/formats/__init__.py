"""Formats: one file per format of files that hold samples. Every reader refuses what it cannot be sure of."""
