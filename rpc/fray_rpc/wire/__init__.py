"""The wire between callers and servers: values as bytes, calls and replies, and the connections that carry them.

Only `client` and `server` use it. The path of a value: `serialization` makes it bytes, and `buffers` has the memory of
what is received. `messages` are calls and replies. `session` has the keys and seals of a connection, `handshake` opens
it, with `tls` if it is encrypted; `http_connection` carries messages, `sealed_connection` seals them, and
`shared_memory` passes large parts to the same host. `json_codec` serves callers in other languages; `key_cache` and
`idle_watch` are for both sides.
"""
