"""The decisions of the protocol as plain functions: records in, records out.

They use no store, no clock and no random numbers, and they never wait. A service reads objects, asks a function here
what to write, and writes the answer on condition of what it read. The model tests (`tests/model`) call the same
functions. Every module that has a rule opens with the invariant that it keeps, an unsafe sequence of events that would
break it, and the reason why that sequence cannot happen.

Read `transitions`, `claiming`, `heartbeat`, `commit`, and `failure_detection` first, then the rest.
"""
