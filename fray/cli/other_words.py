"""What is typed instead of Fray's commands: words of Ray, Modal, SkyPilot, Slurm and kubectl, and misspellings.

Each word of another system gets what does the same here, or that nothing does, and then what comes nearest.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

_RUN = "`fray run -- COMMAND` runs a command and follows it"
_DETACHED = "`fray run --detach -- COMMAND` submits a command and returns"
_SUBMIT = "`fray submit FILE` submits the jobs of a file"
_STOP = "`fray stop JOB` stops a job"
_JOBS = "`fray ps` lists the jobs"
_AGENTS = "`fray agents` lists the agents, the machines that run jobs"
_STATUS = "`fray status JOB` describes a job"
_LOGS = "`fray logs -f JOB` follows its output"
_ENDED = "`fray ps --all` lists jobs that have ended too"
_AGENT = "`fray agent` makes this machine run jobs"
_NONE = "Fray has no such command; "

OF_OTHERS = {
    **dict.fromkeys(("launch", "srun", "job"), _RUN),
    **dict.fromkeys(("sbatch", "spawn"), _DETACHED),
    **dict.fromkeys(("apply", "create"), f"{_SUBMIT}, and `fray up` creates the pools of fray.yaml"),
    **dict.fromkeys(("cancel", "kill", "scancel", "terminate", "abort"), _STOP),
    **dict.fromkeys(
        ("rm", "delete", "remove"),
        f"{_NONE}{_STOP}, and the records of jobs that have ended are removed by themselves",
    ),
    **dict.fromkeys(("list", "jobs", "top", "squeue"), _JOBS),
    "get": f"{_JOBS}, {_AGENTS}, and {_STATUS}",
    **dict.fromkeys(("describe", "show", "inspect", "info"), _STATUS),
    **dict.fromkeys(("log", "tail", "follow"), _LOGS),
    **dict.fromkeys(("history", "sacct"), f"{_ENDED}, and `fray cost` estimates what all of it costs"),
    **dict.fromkeys(("billing", "usage", "cost-report"), "`fray cost` estimates what requests and machines cost"),
    **dict.fromkeys(("nodes", "node", "workers", "sinfo"), _AGENTS),
    "cluster": f"{_AGENTS}, and `fray pool ls` the pools",
    **dict.fromkeys(("start", "restart"), f"there is no cluster to start: {_AGENT}, and {_RUN}"),
    **dict.fromkeys(("worker", "join"), _AGENT),
    **dict.fromkeys(("leave", "cordon", "decommission"), "`fray drain AGENT` lets an agent finish its jobs and leave"),
    **dict.fromkeys(("requeue", "rerun", "resubmit"), "`fray retry JOB` submits jobs again that have ended"),
    **dict.fromkeys(("check", "hello", "health-check"), "`fray doctor ROOT` checks whether a root can hold a cluster"),
    "pools": "`fray pool ls` lists the pools of machines",
    "salloc": "`fray reserve` holds hosts for the jobs of a namespace",
    "scontrol": f"{_STATUS}, {_STOP}, and `fray drain AGENT` empties an agent",
    "wait": f"{_LOGS} until the job ends",
    **dict.fromkeys(("download", "sync"), "`fray pull JOB` fetches the output files of a job"),
    **dict.fromkeys(
        ("exec", "attach", "shell", "ssh", "debug"),
        f"{_NONE}nobody enters a job that runs: {_STATUS} and what it uses, and {_LOGS}",
    ),
    **dict.fromkeys(
        ("scp", "rsync"), "`fray cp` copies a job's files to a folder or a URL; the job itself gets the project's files"
    ),
    **dict.fromkeys(
        ("port-forward", "forward", "endpoints"), f"{_NONE}`fray actors` shows at which address each actor serves"
    ),
    **dict.fromkeys(
        ("serve", "deploy"), f"{_NONE}create_actor() in Python starts what serves calls, and `fray actors` lists it"
    ),
    **dict.fromkeys(
        ("dashboard", "ui", "timeline"), f"{_NONE}there is no page to look at: `fray ps --watch` shows the jobs"
    ),
    **dict.fromkeys(("schedule", "cron"), f"{_NONE}let cron run `fray submit FILE`"),
    "autostop": f"{_NONE}idle_seconds in fray.yaml says when a pool's idle machines are removed",
    "scale-up": "`fray scale` makes and removes the machines of pools",
    **dict.fromkeys(("volume", "volumes", "storage"), f"{_NONE}programs read and write the bucket themselves"),
    **dict.fromkeys(
        ("secret", "secrets"), f"{_NONE}`fray run --secret NAME -- COMMAND` gives a job a secret of this shell"
    ),
    **dict.fromkeys(
        ("login", "setup", "token", "config", "configure"),
        f"{_NONE}whoever may read and write the bucket may use the cluster: set FRAY_CLUSTER_SPEC to its root",
    ),
    "version": "`fray --version` prints the version",
    "help": "`fray --help` lists all commands",
}
"""By word of another system: what it is here."""

_SIMILARITY = 0.7
"""Ratio of `difflib` from which a word counts as misspelled: by 0.6, "frobnicate" is near "rotate"."""


def meaning(word: str, commands: Collection[str], group: str = "") -> str:
    """What to type instead of a word that is no command of `fray`, or of one of its groups, such as "pool"."""
    others = {} if group else OF_OTHERS
    if word in others:
        return others[word]
    near = next(iter(difflib.get_close_matches(word, [*commands, *others], n=1, cutoff=_SIMILARITY)), "")
    if near in others:
        return f"there is no {near!r} either; {others[near]}"
    if near:
        return f"did you mean `{' '.join(filter(None, ('fray', group, near)))}`?"
    return f"the commands of `fray {group}` are {', '.join(commands)}" if group else "`fray --help` lists all commands"
