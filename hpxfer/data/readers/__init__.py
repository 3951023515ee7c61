"""Readers: one file per format of tokens or samples."""
