"""Parameterizations: tables of monomials and the one evaluator that serves them all."""

from hpxfer.scaling.table import Convention, Row, Table
from hpxfer.scaling.tables import register_parameterization

__all__ = ["Convention", "Row", "Table", "register_parameterization"]
