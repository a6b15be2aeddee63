"""The wire between callers and servers: values as bytes, calls and replies, and the connections that carry them.

Only `client` and `server` use it. Reading order: `serialization` and `buffers` (values), `messages` (calls and
replies), `framing` (HTTP), `session` (keys and seals), `handshake`, `sockets` and `tls`, `sealed_connection`,
`shared_memory` and `zero_copy`; then `json_codec` (callers in other languages) and `key_cache`.
"""
