"""Errors of the store and of the services; each docstring says what the caller should do."""

from fray_layouts.errors import FrayError, Permanent, Temporary


class StoreError(FrayError):
    """The object store did not do what it was asked.

    A process that has joined a cluster retries both kinds: rights, credentials and quotas return just as a server does.
    """


class StoreUnavailable(StoreError, Temporary, RuntimeError):
    """The object store did not answer within the retry time; try again when it is back.

    A write that ends with this error is unresolved: it was applied, or was not, or will be applied later.

    Attributes:
        others_answered: the store answered other requests of this kind in the meantime. So there is no outage: only
            this object fails.
    """

    others_answered = False


class StoreRefused(StoreError, Permanent):
    """The object store refuses this request; check the credentials and the rights on the root.

    A write that ends with this error was not applied and will not be.
    """


class RootMismatch(Permanent):
    """This root is not one that this version of Fray can use; give another root, or upgrade Fray."""


class JobNotFound(Permanent):
    """There is no such job under this root; `fray ps --all` lists those that exist."""


class AgentNotFound(Permanent):
    """There is no such live agent under this root; `fray agents` lists those that exist."""


class ReservationNotFound(Permanent):
    """There is no such reservation under this root; `fray reservations` lists those that exist."""


class JobGone(Permanent):
    """Retention removed the job's record while somebody waited for it; its outcome is no longer known."""


REMOVE_HINT = "; look at it, then remove it"
"""The end of a `BadRecord`'s message."""


class BadRecord(Permanent):
    """An object under this root is not what its name promises, or cannot be read at all; `fray fsck` says which.

    Other objects are not affected.
    """


class MisplacedRecord(BadRecord):
    """A record lies under the wrong key; it belongs under `own`. `fray fsck` lists such records."""

    def __init__(self, message: str, own: str) -> None:
        super().__init__(message)
        self.own = own


class ParentNotRunning(Permanent):
    """The parent that a spec names is not running; a child needs a running parent."""


class ParentWaits(Temporary):
    """The parent that a dropped file names does not run now, but may run again; the file waits for it."""


class NameTaken(Permanent, ValueError):
    """Somebody else has this name; choose another, ask for the present holder, or remove that first."""


class StaleAttempt(Permanent):
    """A later incarnation or attempt has replaced this one; this process should end."""


class Fenced(Permanent):
    """A later attempt of this actor continues from its checkpoints; this process should end and send no replies."""


MAX_ERROR_CHARACTERS = 500
"""Characters of an error that records and logs keep: a few lines of a screen, even if the error quotes a whole page."""


def is_outage(error: Exception) -> bool:
    """Whether the error means that the store answers nobody; False if only one object fails."""
    return isinstance(error, StoreUnavailable) and not error.others_answered


def describe_error(error: Exception) -> str:
    """A short text of an error for people: the message of Fray's own errors, type and message of any other."""
    text = str(error) if isinstance(error, FrayError) else f"{type(error).__name__}: {error}"
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[: MAX_ERROR_CHARACTERS - 3]}..."
