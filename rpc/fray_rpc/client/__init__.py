"""The caller's half: channels to servers, and the calls that are made on them.

Used by `fray.rpc`, which finds actors. The path of a call: `channel_registry` has one channel for each server
(`channel`, which also calls servers of this process). `connect` opens the connection of a `remote_channel`, and
`client_calls` keeps its calls until they are answered.
"""
