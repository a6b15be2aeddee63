"""Errors of the store and of the services on it; the docstring says what the caller should do."""

from fray_layouts.errors import FrayError, Permanent, Temporary


class StoreError(FrayError):
    """The object store did not do what it was asked.

    Whoever has joined a cluster goes on through both kinds: rights, credentials and quotas come back as a server does.
    """


class StoreUnavailable(StoreError, Temporary, RuntimeError):
    """The object store did not answer within the retry time; try again when it is back.

    A write that ends this way is unresolved: it was applied, or not, or will be applied later.

    Attributes:
        others_answered: the store answered other requests of the kind meanwhile, so that this is no outage: the failure
            is this object's own.
    """

    others_answered = False


class StoreRefused(StoreError, Permanent):
    """The object store refuses this request; check the credentials and the rights on the root.

    A write that ends this way was not applied, and will not be.
    """


class RootMismatch(Permanent):
    """This root is not one that this version of Fray can use; give another root, or upgrade Fray."""


class JobNotFound(Permanent):
    """There is no such job under this root; `fray ps --all` lists those that exist."""


class AgentNotFound(Permanent):
    """There is no such live agent under this root; `fray agents` lists those there are."""


class ReservationNotFound(Permanent):
    """There is no such reservation under this root; `fray reservations` lists those that exist."""


class JobGone(Permanent):
    """The job's record was removed by retention while it was waited for; its outcome is no longer known."""


REMOVE_HINT = "; look at it, then remove it"
"""How the message of a `BadRecord` ends."""


class BadRecord(Permanent):
    """An object under this root is not what its name promises, or cannot be read at all; `fray fsck` says which.

    Nothing follows from it for any other object.
    """


class MisplacedRecord(BadRecord):
    """The record here belongs under another name, `own`; `fray fsck` says which."""

    def __init__(self, message: str, own: str) -> None:
        super().__init__(message)
        self.own = own


class ParentNotRunning(Permanent):
    """The parent that a spec names does not run; a child needs a running parent."""


class NameTaken(Permanent, ValueError):
    """Somebody has this name; choose another, ask for the one that has it, or remove that first."""


class StaleAttempt(Permanent):
    """A later incarnation or attempt has taken this one's place; this process should end."""


class Fenced(Permanent):
    """A later attempt of this actor goes on from its checkpoints; this process should end and send no more replies."""


MAX_ERROR_CHARACTERS = 500
"""Characters of an error that records and logs keep: some lines of a screen, however long a page in it is."""


def is_outage(error: Exception) -> bool:
    """Whether the error means that the store answers nobody, and not that one object fails."""
    return isinstance(error, StoreUnavailable) and not error.others_answered


def describe_error(error: Exception) -> str:
    """A short text of an error for people: Fray's own speak for themselves, any other is given with its type."""
    text = str(error) if isinstance(error, FrayError) else f"{type(error).__name__}: {error}"
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[: MAX_ERROR_CHARACTERS - 3]}..."
