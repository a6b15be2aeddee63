"""Decides which machines a pool should have, and what becomes of each."""
