"""Decisions about machines: which machines a pool should have, and what happens to each of them."""
