"""The real agents, passes and submitters at the size of a large fleet, in virtual time, against a store with the
documented limits, latencies and prices of GCS or S3. `python -m benchmarks.scale` prints the figures."""
