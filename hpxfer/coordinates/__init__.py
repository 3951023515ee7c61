"""Coordinate checks: does what a model's features do as it grows follow its parameterization?"""
