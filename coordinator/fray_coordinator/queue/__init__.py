"""Queues: producers, consumers and what they share. Decisions are in `protocol.queue_*`."""
