"""Decisions as plain functions: records in, records out. No store, no clock, no random numbers, no waiting.

Services read objects, ask a function here what to write, and write it on condition of what they read. The model tests
(`tests/model`) call the same functions. Every module opens with the invariant it keeps, an unsafe sequence of events
that it closes, and why that cannot happen.

To read: `transitions`, `claiming`, `heartbeat`, `commit`, `failure_detection`, `pending_index`, then the rest.
"""
