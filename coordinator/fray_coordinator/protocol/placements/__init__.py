"""Decides about placements: which agents are held for one owner at once, and what becomes of the owner.

An owner is a gang (a job of several replicas), a reservation or a launch group. The proposal is a write of the owner's
record, a vote is a line in an agent's heartbeat, the commit is one more write of the same record. `docs/protocol.md`
says what goes wrong without each rule. To read: `owners`, `hosts`, `packing`, `assignment`, `rounds`, `votes`,
`gang_end`, `reservations`, `private_pools`, `launching`.
"""
