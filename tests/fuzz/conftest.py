"""How many examples are drawn: a few, the same each time (`fixed`), many new ones (`long`), or very many (`fresh`)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

settings.register_profile("fixed", USUAL, derandomize=True, max_examples=60, database=None)
settings.register_profile("long", USUAL, max_examples=1_000, print_blob=True)
settings.register_profile("fresh", USUAL, max_examples=5_000, print_blob=True)
settings.load_profile("fixed")
