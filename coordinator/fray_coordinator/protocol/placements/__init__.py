"""Decisions about placements: which agents an owner gets, all at once, and how the owner starts and ends.

An owner is a gang (a job of several replicas), a reservation or a launch group. This is a two-phase commit: the pass
proposes members by a write of the owner's record, each agent votes by a line in its heartbeat, and one more write of
the same record commits. `docs/protocol.md` says what goes wrong without each rule.

Read `owners`, `families`, `hosts`, `assignment`, `rounds`, `votes`, `gang_end`, `reservations`, `launching`, in this
order.
"""
