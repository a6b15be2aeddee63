"""The environment of a job's processes: variables, code, packages, image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from fray.call_forms import says_form
from fray_layouts.errors import InvalidInput


@says_form(
    'EnvironmentConfig(env_vars={"NAME": "value"}, pip_packages=["numpy"])',
    {
        **dict.fromkeys(("env", "envs", "variables"), "it is env_vars={...}"),
        **dict.fromkeys(("pip", "packages", "requirements"), "it is pip_packages=[...]"),
        **dict.fromkeys(("working_dir", "workdir"), "it is workspace, a folder"),
        "image": "it is docker_image",
    },
)
@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment of a job's processes. A private cluster uses only the variables.

    Attributes:
        extras: extras of the project in the workspace; they are installed with its packages.
        groups: dependency groups of the project (`[dependency-groups]`), such as "dev"; they are installed too.
        pip_packages: requirements that are installed in addition, such as "numpy>=2".
        env_vars: environment variables; they override the host's own.
        workspace: the folder of code that the job brings; the job starts in a copy of it. "auto": the project of the
            module of the callable, else of the current directory; an error if there is none. "": no folder. None:
            "auto", or no folder if there is no project.
        docker_image: the container image that the job runs in. None: it runs on the host.
        secret_env_vars: variables whose values no command ever shows. They are stored in the job's record.
        secrets: in the constructor, the same as `secret_env_vars`.

    The children of a job use the job's workspace and packages, except for those that their own environment names.

    Raises:
        InvalidInput: a field has a value of a wrong type, or both `secrets` and `secret_env_vars` are given.
    """

    extras: Sequence[str] = ()
    pip_packages: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    workspace: str | None = None
    docker_image: str | None = None
    secret_env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    groups: Sequence[str] = ()
    secrets: InitVar[Mapping[str, str] | None] = None

    def __post_init__(self, secrets: Mapping[str, str] | None) -> None:
        if secrets and self.secret_env_vars:
            raise InvalidInput("environment.secrets", "...", "it is the same as secret_env_vars; give one of them")
        if secrets:
            vars(self).update(secret_env_vars=secrets)
        for name in ("extras", "groups", "pip_packages"):
            if isinstance(getattr(self, name), (str, Mapping)):
                raise InvalidInput(f"environment.{name}", "...", "give a list of strings; variables are env_vars=")
        for name in ("env_vars", "secret_env_vars"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidInput(f"environment.{name}", "...", "give a dict of variables and their values")

    @classmethod
    def create(
        cls,
        extras: Sequence[str] | None = None,
        pip_packages: Sequence[str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        workspace: str | None = None,
        docker_image: str | None = None,
        secret_env_vars: Mapping[str, str] | None = None,
        groups: Sequence[str] | None = None,
    ) -> EnvironmentConfig:
        """Make a config from arguments of which None means "not given". They are named as the attributes."""
        packages, variables = (extras or (), pip_packages or ()), env_vars or {}
        return cls(*packages, variables, workspace, docker_image, secret_env_vars or {}, groups or ())


_TRAINING_DEFAULTS = {"HF_DATASETS_TRUST_REMOTE_CODE": "1", "TOKENIZERS_PARALLELISM": "false"}
_FORWARDED_SECRETS = ("HF_TOKEN", "WANDB_API_KEY")


def create_environment(
    workspace: str | None = None,
    docker_image: str | None = None,
    pip_packages: Sequence[str] | None = None,
    env_vars: Mapping[str, str] | None = None,
    extras: Sequence[str] | None = None,
    secret_env_vars: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> EnvironmentConfig:
    """Make an `EnvironmentConfig` that also has the variables that training programs expect.

    It sets HF_DATASETS_TRUST_REMOTE_CODE to 1 and TOKENIZERS_PARALLELISM to false, and forwards HF_TOKEN and
    WANDB_API_KEY from this process as secrets if they are set. `env_vars` and `secret_env_vars` override all four.

    Args:
        secrets: the same as `secret_env_vars`. The others are as the attributes of `EnvironmentConfig`.

    Raises:
        InvalidInput: as `EnvironmentConfig`.
    """
    asked = EnvironmentConfig(secret_env_vars=secret_env_vars or {}, secrets=secrets).secret_env_vars
    shown = {**_TRAINING_DEFAULTS, **(env_vars or {})}
    forwarded = {name: os.environ[name] for name in _FORWARDED_SECRETS if name in os.environ and name not in shown}
    return EnvironmentConfig.create(extras, pip_packages, shown, workspace, docker_image, {**forwarded, **asked})
