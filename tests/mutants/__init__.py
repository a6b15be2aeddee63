"""Mutants: each decision and each wiring changed in one place, to see whether a quick test fails (`make mutants`)."""
