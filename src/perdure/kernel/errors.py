"""All errors of perdure, each with a stable code and the HTTP status of its response.

The first line of the docstring is the default message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class PerdureError(Exception):
    """Internal error; the server's log has the details."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str | None = None) -> None:
        self.message = message or _first_line(type(self).__doc__)
        super().__init__(self.message)

    @property
    def public(self) -> str:
        """Message for callers; `message` is for the log and this process."""
        return self.message


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


class InvalidInput(PerdureError, ValueError):
    """The input does not have the required form."""

    code = "invalid_input"
    http_status = 422


class BadQuery(InvalidInput):
    """The filter, sort order or page does not exist."""

    code = "bad_query"
    http_status = 400


class BadRequest(InvalidInput):
    """Parts of the request contradict each other."""

    code = "bad_request"
    http_status = 400


class BadBody(InvalidInput):
    """A part of the request does not have the required form."""

    code = "bad_body"

    def __init__(
        self, message: str | None = None, location: tuple[str | int, ...] = ("body",), given: object = None
    ) -> None:
        super().__init__(message)
        self.location = location
        self.given = given


class InvalidCron(InvalidInput):
    """Invalid cron expression."""

    code = "invalid_cron"


class InvalidTimezone(InvalidInput):
    """Invalid timezone."""

    code = "invalid_timezone"


class NotFound(PerdureError, ValueError):
    """No such object."""

    code = "not_found"
    http_status = 404


class JobNotFound(NotFound):
    """Job not found."""

    code = "job_not_found"


class SpansEvicted(PerdureError, RuntimeError):
    """The spans of this rollout were deleted: to free memory, or because of their age."""

    code = "spans_evicted"
    http_status = 410


class Conflict(PerdureError):
    """The object is in a state that does not allow this."""

    code = "conflict"
    http_status = 409


class AlreadyRunning(Conflict):
    """Scheduler is already running"""

    code = "already_running"


class NotRunning(Conflict):
    """Scheduler is not running"""

    code = "not_running"


class Fenced(Conflict):
    """Another attempt holds this work now; stop."""

    code = "fenced"


class NestedOperation(PerdureError, RuntimeError):
    """An operation called run; pass its transaction on instead."""

    code = "nested_operation"


class SuspendedOperation(PerdureError, RuntimeError):
    """An operation awaited something other than its transaction."""

    code = "suspended_operation"


class StorageError(PerdureError):
    """The database could not execute the call."""

    code = "storage_error"
    http_status = 503

    def __init__(self, message: str | None = None, *, public: str | None = None) -> None:
        super().__init__(message)
        self._public = public or _first_line(type(self).__doc__)

    @property
    def public(self) -> str:
        """Message without path, host, database name and the engine's text."""
        return self._public


class OutcomeUnknown(StorageError):
    """The database did not answer the commit: the write may or may not have happened."""

    code = "outcome_unknown"


class StorageUnavailable(StorageError):
    """The database cannot be reached."""

    code = "storage_unavailable"


class StorageFull(StorageError):
    """The disk or the database is full; nothing was written."""

    code = "storage_full"
    http_status = 507


class StorageClosed(StorageError):
    """The store is closed."""

    code = "storage_closed"


class DatabaseOwned(StorageError):
    """Another live process owns this database file."""

    code = "database_owned"
    http_status = 409


class NotADatabase(StorageError):
    """The file is not a perdure database, or it is damaged."""

    code = "not_a_database"


class ReadOnlyDatabase(StorageError):
    """The database cannot be written to."""

    code = "read_only_database"


class NewerSchema(StorageError):
    """The database was created by a newer, incompatible release of perdure."""

    code = "newer_schema"


class DeadlineExceeded(StorageError):
    """The database did not answer the call before its deadline; nothing was changed."""

    code = "deadline_exceeded"
    http_status = 504


class Unauthorized(PerdureError):
    """A valid token is required: send it in the header Authorization (Bearer) or x-api-key."""

    code = "unauthorized"
    http_status = 401


class Forbidden(PerdureError):
    """This token does not allow that."""

    code = "forbidden"
    http_status = 403


class UnknownRoute(PerdureError):
    """No route has this path."""

    code = "unknown_route"
    http_status = 404


class MethodNotAllowed(PerdureError):
    """This path does not support that method."""

    code = "method_not_allowed"
    http_status = 405

    def __init__(self, message: str | None = None, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTimeout(PerdureError):
    """The request did not arrive in time; nothing was done."""

    code = "request_timeout"
    http_status = 408


class TooLarge(PerdureError):
    """The request is too large."""

    code = "too_large"
    http_status = 413


class UnsupportedMedia(PerdureError):
    """The content type or encoding of the body is not supported."""

    code = "unsupported_media"
    http_status = 415


class TooManyRequests(PerdureError):
    """Too many requests; try again later."""

    code = "too_many_requests"
    http_status = 429


class NotSupported(PerdureError):
    """This is not supported."""

    code = "not_supported"
    http_status = 501


class AgentUnavailable(PerdureError):
    """No worker answered for this agent."""

    code = "agent_unavailable"
    http_status = 503


class Unreachable(PerdureError, ConnectionError):
    """The server does not answer."""

    code = "unreachable"
    http_status = 502


class StartRefused(PerdureError, RuntimeError):
    """The server cannot start with these settings."""

    code = "start_refused"


MAX_ERROR = 1000
"""Maximum length of a stored error, in characters."""


def error_text(error: BaseException) -> str:
    """Return the text of an error for storage."""
    text = error.public if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
    return storable(text)


def storable(text: str, most: int = MAX_ERROR) -> str:
    """Return the beginning of a text, without characters that databases refuse."""
    return text[:most].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def all_errors() -> Iterator[type[PerdureError]]:
    """Return every class of errors, base classes first."""
    kinds = [PerdureError]
    for kind in kinds:
        yield kind
        kinds += kind.__subclasses__()


def error_named(code: object, message: str) -> PerdureError | None:
    """Return the error with a code, or None."""
    return next((kind(message) for kind in all_errors() if kind.code == code), None)
