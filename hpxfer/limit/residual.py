"""Placeholder until the residual limit is merged."""
