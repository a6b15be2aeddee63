"""The server's half: it accepts connections, runs calls at most once, and sends replies.

Used by `fray.rpc` (actors) and `fray.queue` (queues over HTTP). Reading order: `server`; `acceptor` and `accepted_keys`
(until a connection is authenticated), with `listening`; `connection` with `watchdog`; `protocols` (of connections);
`call_table` (the known calls) with `server_stream`; `executor` (runs calls), with `event_loop` for coroutines.
"""
