"""How many examples are drawn: a few or many, the same each time (`fixed`, `long`), or very many new ones (`fresh`)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

settings.register_profile("fixed", USUAL, derandomize=True, max_examples=60, database=None)
settings.register_profile("long", USUAL, derandomize=True, max_examples=1_000, database=None)
settings.register_profile("fresh", USUAL, max_examples=5_000, print_blob=True)
settings.load_profile("fixed")
