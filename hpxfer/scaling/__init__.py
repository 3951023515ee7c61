"""Parameterizations: tables of monomials and the one evaluator that serves them all."""
