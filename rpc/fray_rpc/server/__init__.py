"""The server's half: it accepts connections, runs calls at most once, and sends replies.

Used by `fray.rpc` (actors) and `fray.queue` (queues over HTTP). The path of a call: `server` listens; `acceptor` and
`accepted_keys` authenticate a connection; `connection` reads its calls, in one of the `protocols`, while `watchdog`
sees to its ends; `call_table` knows each call, with `server_stream` for those that yield; `executor` runs them,
coroutines in an `event_loop`.
"""
