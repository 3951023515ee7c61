"""Adapters: modules for other trainers. An export copies one and fills in the numbers of a recipe.

A copy works where hpxfer is not installed, but for `prepare` of the module for torch.
"""
