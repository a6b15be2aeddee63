"""The server's half: it accepts connections, runs calls at most once, and sends replies.

Used by `fray.rpc` (actors) and `fray.queue` (queues over HTTP). The path of a call: `server` listens; `acceptor`
authenticates a connection, with the keys that the server accepts; `connection` reads its calls, in one of the
`protocols`, and its watchdog frees it from calls that block it; `call_table` knows each call, also those that yield;
`executor` runs them, coroutines in an `event_loop`.
"""
