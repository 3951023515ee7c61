"""Plan: what a sweep will do and what it will cost, before anything runs."""
