"""The caller's half: channels to servers, and the calls that are made on them.

Used by `fray.rpc`, which finds actors. Reading order: `channel` (the interface for callers), `client_calls` (the calls
of a channel), `connect` (opening a connection), `remote_channel` (calls over a connection), `reply_pump` (its
background thread), `loss_report` (its report of lost calls), `local_channel` (calls to a server in this process),
`channel_registry` (one channel for each server).
"""
