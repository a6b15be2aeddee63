"""Hosts that are held for one owner at once: the pass gathers them for gangs and reservations, and starts these.

What is decided is in `protocol.placements`. To read: `scheduler`, `owner_table`, `agent_table`, `start_gate`,
`pool_plans`; then `reservations`, `held_reservations`, `launching`, `routing`.
"""
