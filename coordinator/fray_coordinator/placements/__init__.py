"""Gang scheduling: the reconciler gathers hosts for gangs and reservations, all at once per owner, and starts them.

The decisions are in `protocol.placements`. Read in this order: `scheduler` with its `tables`, `start_gate`,
`pool_plans`; then `reservations`, `launching`.
"""
