"""Queues in storage: producers, consumers, and what they share. `fray.queue` is the interface for users.

Decisions are plain functions in `protocol.queue_segments` and `queue_lease`; the modules here read and
write. Read `open_queue`, `producer`, `consumer`, `held_segment` (claims, too), `segment_lease` in this order, then
`scanner` (which segment is next), `collector` (how finished segments are deleted), `receipts` (how they are
remembered) and `handout` (what makes items one by one quick), and last
`dead_letters` (items that kill their processes).
"""
