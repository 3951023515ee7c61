"""Conformance suites: what plug-in authors test their own rows with."""
