"""Decisions as plain functions: records in, records out. No store, no clock, no chance, no waiting.

Services read objects, ask a function here what to write, and write it on condition of what they read. Every module
opens with the invariant it keeps, the unsafe sequence it closes, and why that cannot happen.
"""
