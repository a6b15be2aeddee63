"""Fields of other tools' files (SkyPilot, Kubernetes, Ray, Slurm, compose files), each with what it is in Fray."""

from __future__ import annotations

from collections.abc import Mapping

_COMMAND = 'a program and its arguments are "entrypoint": {"command": [...]}'
_DEVICE = "device: {kind: gpu, variant: h100, count: 8}"
_MACHINES = "what machines there are is said by the agents or by the pools of fray.yaml, and a job names its pool"
_NO_MOUNTS = "Fray has no mounts yet: programs read and write the bucket, and outputs are kept by `outputs`"

OF_JOBS: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(
            ("run", "script", "cmd", "commands"),
            'a line for a shell is "entrypoint": {"command": ["sh", "-c", "..."]}',
        ),
        **dict.fromkeys(("args", "arguments", "program"), _COMMAND),
        "setup": "packages come from the project or environment.pip_packages; other steps are part of the command: "
        '["sh", "-c", "STEP && PROGRAM"]',
        **dict.fromkeys(
            ("schedule", "cron", "crontab"), "Fray has no schedules yet: let cron run `fray submit` with this file"
        ),
        **dict.fromkeys(
            ("depends_on", "needs", "dependencies", "dependency", "after"),
            "Fray has no order between jobs of files yet: a job may launch the others and wait for each "
            "(cluster.launch, cluster.wait)",
        ),
        **dict.fromkeys(
            ("num_nodes", "nodes", "num_replicas", "instances", "parallelism", "completions", "world_size"),
            "replicas is the number of processes, which run as one gang",
        ),
        "array": "Fray has no arrays yet: write a list of jobs, or use cluster.launch_many in Python",
        **dict.fromkeys(("jobs", "tasks", "job"), "several jobs are a list, or documents divided by a line ---"),
        **dict.fromkeys(("image", "container", "image_id"), "it is environment.docker_image"),
        **dict.fromkeys(("env", "envs", "variables", "env_file"), "variables are environment.env_vars: {NAME: value}"),
        "secrets": "variables whose values are never shown are environment.secret_env_vars: {NAME: value}",
        **dict.fromkeys(("accelerators", "accelerator", "gpus", "gpu", "tpu", "tpus"), f"it is resources.{_DEVICE}"),
        **dict.fromkeys(
            ("workdir", "working_dir", "cwd", "code"),
            "environment.workspace is the folder that the job gets a copy of, relative to this file",
        ),
        **dict.fromkeys(("file_mounts", "mounts", "volumes", "storage"), _NO_MOUNTS),
        **dict.fromkeys(
            ("retries", "max_retries", "backoffLimit", "restart", "max_restarts", "max_restarts_on_errors"),
            "max_retries_failure is the number of further attempts after the job's own failures",
        ),
        **dict.fromkeys(("queue", "partition", "cluster"), "pool is the name of the pool of agents that may run it"),
        **dict.fromkeys(
            ("time", "time_limit", "walltime", "max_runtime", "activeDeadlineSeconds"),
            "timeout is the time that an attempt may run, such as 10m",
        ),
        **dict.fromkeys(
            ("apiVersion", "kind", "metadata", "spec", "containers"),
            "this is an object of Kubernetes; a job of Fray is at least {name: NAME, entrypoint: {command: [...]}}",
        ),
        **dict.fromkeys(("service", "services"), "create_actor() in Python starts what serves calls"),
    },
    "entrypoint": {**dict.fromkeys(("args", "arguments", "program", "run", "cmd", "shell"), _COMMAND)},
    "resources": {
        **dict.fromkeys(("accelerators", "accelerator", "gpus", "gpu", "num_gpus", "tpu", "tpus"), f"it is {_DEVICE}"),
        **dict.fromkeys(("vcpus", "vcpu", "num_cpus", "cores"), "cpu is the number of cores"),
        **dict.fromkeys(("mem", "memory_mb", "memory_gb"), "it is memory, such as 16GB"),
        **dict.fromkeys(("disk_size", "ephemeral-storage", "storage"), "it is disk, such as 100GB"),
        **dict.fromkeys(("cloud", "infra", "instance_type", "instance", "machine_type", "disk_tier"), _MACHINES),
        **dict.fromkeys(("use_spot", "spot"), "preemptible: false keeps the job off spot machines"),
        **dict.fromkeys(("limits", "requests"), "what a job asks for is its limit too: write cpu and memory here"),
        **dict.fromkeys(("any_of", "ordered"), "device_alternatives has other variants that will do"),
        "job_recovery": "max_retries_preemption, beside resources, says how often the job is tried again",
        "image_id": "it is environment.docker_image",
    },
    "environment": {
        **dict.fromkeys(("env", "envs", "variables"), "it is env_vars: {NAME: value}"),
        **dict.fromkeys(("secrets", "secret"), "it is secret_env_vars: {NAME: value}"),
        **dict.fromkeys(("image", "container"), "it is docker_image"),
        **dict.fromkeys(("pip", "packages", "requirements", "dependencies"), "it is pip_packages: [NAME, ...]"),
        **dict.fromkeys(("working_dir", "workdir", "cwd"), "it is workspace, a folder relative to this file"),
        "conda": "Fray has no conda environments: it is pip_packages, or a docker_image",
    },
}
"""By part of a job's file and by the tool's word: what it is here."""

OF_POOLS: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(("instance_type", "type", "node_type", "vm_type"), "it is machine_type"),
        **dict.fromkeys(("min_workers", "min_nodes", "min_replicas", "minimum"), "it is min"),
        **dict.fromkeys(("max_workers", "max_nodes", "max_replicas", "count", "size", "nodes"), "it is max"),
        **dict.fromkeys(("idle_timeout", "idle", "autostop"), "it is idle_seconds, such as 300 or 5m"),
        "idle_timeout_minutes": "it is idle_seconds: write 5m for five minutes",
        **dict.fromkeys(("use_spot", "preemptible"), "it is spot: true"),
        **dict.fromkeys(("zone", "region", "regions", "availability_zone"), "it is zones: [ZONE, ...]"),
        **dict.fromkeys(("resources", "cpus", "gpus"), "it is capacity: {cpu: 8, memory: 32GB, device: {...}}"),
        "cloud": "it is provider",
    },
}
"""By part of a pool of fray.yaml and by the tool's word: what it is here."""
