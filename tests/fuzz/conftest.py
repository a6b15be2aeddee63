"""How many examples are drawn: a few fixed ones, more of them (`long`), or very many new ones (`fresh`)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("fixed", derandomize=True, max_examples=60, deadline=None, database=None)
settings.register_profile("long", derandomize=True, max_examples=1_000, deadline=None, database=None)
settings.register_profile(
    "fresh", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fixed")
