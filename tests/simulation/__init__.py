"""Thousands of simulated clusters under every fault; the real code, virtual time (docs/simulation.md)."""
