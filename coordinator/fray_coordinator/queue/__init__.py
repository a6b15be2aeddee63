"""Queues in storage: producers, consumers, and what they share. `fray.queue` is the interface for users.

Decisions are plain functions in `protocol.queue_segments`, `queue_lease` and `queue_scan`; the modules here read and
write. Read `open_queue`, `producer`, `consumer`, `held_segment`, `segment_lease` in this order, then `scanner` and
`claiming` (which segment is next), `collector` (how finished segments are deleted) and `finished_log` (how they are
remembered), `handout` and `receipts` (what makes items one by one quick), and last `poison_isolation` and
`dead_letters` (items that kill their processes).
"""
