"""The one tree of errors: what a caller can do about them, not where they came from.

Drivers translate their backend's exceptions into this tree at their edge and nowhere else;
`api/errors.py` alone maps it to HTTP. Any other exception is a bug.
"""


class ZaqarLiteError(Exception):
    """Say what was wrong, where, and what to do; the text is shown to users."""


class Invalid(ZaqarLiteError):
    """The request can never succeed as it is."""


class Forbidden(ZaqarLiteError):
    """Somebody else holds what was asked for."""


class Unauthenticated(ZaqarLiteError):
    """No credential, or one that is wrong, expired or revoked; the text is for the log alone."""


class Denied(ZaqarLiteError):
    """Who is asking may not do this; the text is for the log alone."""


class NotFound(ZaqarLiteError):
    """The queue, message or claim does not exist, or does no longer."""


class Conflict(ZaqarLiteError):
    """It exists, in a state that excludes the request."""


class DueChanged(Conflict):
    """A delayed message is not due when its editor believes; nothing was changed."""

    def __init__(self, *message_ids: str) -> None:
        named = f"Message {message_ids[0]} is" if len(message_ids) == 1 else "The messages are"
        super().__init__(f"{named} due at another instant by now: read again, and decide anew.")


class QueueChanged(Conflict):
    """The queue's record is not at the version that the caller decided by.

    Raised before anything was changed. The service reads the record again, decides anew and
    repeats the call, so that no store and no process ever acts on metadata that is out of date.
    """


class RecordChanged(Conflict):
    """A record is not at the version that its writer has seen; nothing was written."""


class KeyReused(Conflict):
    """A known idempotency key came with another message; nothing was stored.

    `index` is that of the message in its post; None for the key of the whole post.
    """

    def __init__(self, index: int | None) -> None:
        where = "The Idempotency-Key header" if index is None else f"Message {index}: the key"
        what = "other messages" if index is None else "another message"
        super().__init__(
            f"{where} was used for {what} in this queue before, so nothing was stored: "
            "repeat a post as it was, or give what is new a key of its own."
        )
        self.index = index


class TooMany(ZaqarLiteError):
    """The client asks for too much at once; it may try again in `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(ZaqarLiteError):
    """The store cannot serve now; the same request may succeed after `retry_after` seconds.

    When it is raised by an operation that writes, the write may or may not have happened.
    `detail` is for who runs the server - addresses, paths, another program's words: it is in the
    text that is logged, and not in `shown`, which is what clients get.
    """

    def __init__(self, message: str, *, retry_after: int = 1, detail: str | None = None) -> None:
        super().__init__(message if detail is None else f"{message} ({detail})")
        self.retry_after = retry_after
        self.shown = message


class RecordDamaged(Unavailable):
    """A sealed record is not what was stored, and no key opens it: it can only be deleted."""


class LimitReached(Unavailable):
    """A limit on what a client may pile up; nothing was stored."""


class QuotaReached(LimitReached):
    """The project has as much as its quota allows; nothing was stored.

    Waiting does not help who asked, but the background treats it as any limit: it goes on later.
    `quota` says how much that is, and `way_out` what makes room.
    """

    def __init__(self, quota: str, way_out: str) -> None:
        super().__init__(
            f"The project's quota is {quota}: {way_out}, or ask the operator of this server for "
            "more."
        )


class Unsupported(ZaqarLiteError):
    """The store does not have the capability that the request needs."""


class ConfigurationError(ZaqarLiteError):
    """The server cannot start as it was told to; the text names the setting and the way out."""
