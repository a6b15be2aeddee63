"""Good examples of what the fuzzed readers read: records as JSON values, a log, and messages of calls."""

from typing import Any

JOB: dict[str, Any] = {
    "id": "train-1",
    "op": "3",
    "recent_ops": ["2"],
    "created_op": "1",
    "status": "failed",
    "attempt": 2,
    "spec": {
        "name": "train",
        "entrypoint": {"command": ["python", "-m", "trainer"]},
        "resources": {"cpu": 2, "memory": 2**30, "device": {"kind": "gpu", "variant": "h100", "count": 8}},
        "environment": {"env_vars": {"A": "1"}, "secret_env_vars": {"B": "2"}},
        "timeout": 60,
        "priority": -3,
        "namespace": "lab",
        "health_check": {"path": "/live", "port": 8080},
    },
    "lease": {"agent": "host-1", "host": "host", "since": 1.8e9},
    "stop": {"at": 1.8e9, "reason": "asked for"},
    "parent": {"job": "parent-1", "attempt": 1},
    "inbox": {"key": "inbox/train.json", "version": "v"},
    "failures": 1,
    "avoid_hosts": ["other"],
    "not_before": 1.8e9,
    "submitted_at": 1.8e9,
    "started_at": 1.8e9,
    "ended_at": 1.8e9,
    "exit": {"kind": "exited", "code": 1, "usage": {"cpu_seconds": 1.5, "memory_peak": 5}, "log_chunks": 1},
    "result": {"encoding": "json", "value": [1], "size": 3},
    "history": [
        {"attempt": 1, "agent": "a", "host": "h", "started_at": 1.8e9, "ended_at": 1.8e9, "exit": {"kind": "lost"}}
    ],
}
AGENT: dict[str, Any] = {
    "id": "host-1",
    "op": "1",
    "host": "host",
    "pool": "default",
    "beat": 7,
    "interval": 5.0,
    "capacity": {"cpu": 2000, "memory": 2**30},
    "free": {"cpu": 1000},
    "holdings": {"train-1": {"attempt": 2, "phase": "running", "usage": {"memory": 5}}},
    "started_at": 1.8e9,
    "requests": {"writes": 5},
}
MEMBERS = [
    {"agent": "host-1", "bundles": [0], "slice": {"id": "s", "type": "v5litepod-16", "index": 1, "hosts": 2}},
    {"agent": "host-2", "bundles": [1], "ports": {"master": 20000}},
]
GANG: dict[str, Any] = {
    "id": "train-1",
    "status": "gathering",
    "spec": {**JOB["spec"], "replicas": 2, "slices": 1, "ports": ["master"]},
    "placement": {"round": 3, "members": MEMBERS, "refused": ["host-3"]},
    "ancestors": ["top-1", "parent-1"],
}
RESERVATION: dict[str, Any] = {
    "id": "r-1",
    "kind": "group",
    "namespace": "lab",
    "same": "zone",
    "parts": [{"gang": {"count": 2, "slices": 1, "same": "zone"}, "job": "train-1"}, {"gang": {}, "job": "b-1"}],
    "low": 3,
    "state": "held",
    "placement": {"round": 3, "members": MEMBERS},
}
PASS: dict[str, Any] = {
    "holder": "host-1",
    "progress": 3,
    "suspects": {"host-2": {"beat": 1, "age": 5.0, "deferred": True}},
    "pools": {"default": {"agents": 1, "slots": 2}},
    "problems": {"jobs/x.json": "odd"},
    "repaired_at": 1.8e9,
}
ENDPOINT: dict[str, Any] = {
    "namespace": "lab",
    "name": "actor",
    "actor_id": "actor-1",
    "nonce": "n",
    "address": "127.0.0.1:80",
    "metadata": {"shard": 1},
}
SPEC: dict[str, Any] = {**JOB["spec"], "resources": {"cpu": 0.5, "ram": "1GB"}}
LOG = b"2026-01-01T00:00:00.000001Z stdout F hello\n2026-01-01T00:00:00.000002Z stderr P part\n"
REQUEST = b"POST /session HTTP/1.1\r\nhost: actor\r\ncontent-length: 3\r\nfray-key: k\r\n\r\nabc"
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nfray-seal: 00\r\n\r\nabc"

ARCHIVED = {**JOB, "submitted_at": 1e9, "started_at": 1e9, "ended_at": 1e9}
"""A job that may have been archived long ago."""
