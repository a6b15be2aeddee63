"""The server's half: connections come in, calls are run at most once, replies leave.

Used by `fray.rpc` (actors) and `fray.queue` (queues over HTTP). Reading order: `server`; `acceptor` and `accepted_keys`
(until a connection is authenticated), with `listening`; `connection` with `watchdog`; `protocols` (what it speaks);
`call_table` (which calls are known) with `server_stream`; `executor` (running them), with `event_loop` for coroutines.
"""
