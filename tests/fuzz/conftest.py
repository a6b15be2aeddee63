"""How many examples are drawn: a few fixed ones, or with `--hypothesis-profile=fresh` many new ones."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("fixed", derandomize=True, max_examples=60, deadline=None, database=None)
settings.register_profile(
    "fresh", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fixed")
