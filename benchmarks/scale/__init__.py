"""Simulates a large fleet in virtual time: real agents, passes and submitters, and a store with the documented limits,
latencies and prices of GCS or S3. `python -m benchmarks.scale` prints the figures."""
