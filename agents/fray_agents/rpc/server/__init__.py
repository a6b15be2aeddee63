"""The server's half: connections come in, calls are run at most once, replies leave.

Used by `fray.rpc` (actors) and `fray.queue` (queues over HTTP). Reading order: `server`; `acceptor` and `accepted_keys`
(until a connection is authenticated); `connection`; `pickle_protocol` and `json_protocol` (what it speaks);
`call_table` (which calls are known); `executor` (running them); `streams`; `event_loop` and `listeners` serve these.
"""
