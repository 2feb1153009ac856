"""What can go wrong, by meaning; the page of the SDK shows the tree."""

from collections.abc import Mapping
from typing import Any, ClassVar


class ZaqarError(Exception):
    """Anything that this client raises about a request.

    Attributes:
        title: what happened, in the server's few words.
        description: what was wrong and what to do, in the server's sentence.
        status: the HTTP status.
        request_id: the server's id of the request; its log knows more under it.
    """

    def __init__(
        self,
        title: str,
        description: str | None = None,
        *,
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(title, description)
        self.title = title
        self.description = description
        self.status = status
        self.request_id = request_id

    def __str__(self) -> str:
        text = f"{self.title}: {self.description}" if self.description else self.title
        facts = [str(fact) for fact in (self.status, self.request_id) if fact is not None]
        return f"{text} ({', '.join(facts)})" if facts else text


class Unreachable(ZaqarError):
    """No answer came.

    `sent` is False when the request certainly never left, for example when the connection was
    refused; else the server may have done what was asked. `permanent` is True when trying again
    can't help: the address begins with https:// and the server does not speak TLS.
    """

    def __init__(
        self,
        title: str,
        description: str | None = None,
        *,
        sent: bool = True,
        permanent: bool = False,
    ) -> None:
        super().__init__(title, description)
        self.sent = sent
        self.permanent = permanent


class BadAnswer(ZaqarError):
    """The answer is not what Zaqar's protocol says."""


class ServerWarning(ZaqarError, UserWarning):
    """The server did what was asked, and says that something of it has no effect.

    For example, a normal queue ignores a delay. `result` is what the call would have returned: the
    ids of the messages, which are stored. `Client(on_warning=warnings.warn)` prints these instead
    of raising them.
    """

    result: Any = None


class StatusError(ZaqarError):
    """The server answered with an error."""

    # Title and description, where the server's own would not help.
    SAYS: ClassVar[tuple[str, str] | None] = None


class Refused(StatusError):
    """The request is wrong as it stands; sending it again will not help."""


class BadRequest(Refused):
    """The request is malformed or beyond a limit (400, 413, 415 and alike)."""


class Unauthenticated(Refused):
    """No token was sent, or it is not accepted."""


class Forbidden(Refused):
    """This caller may not do that."""


class MessageClaimed(Forbidden):
    """The message is held by a claim, and the request did not bring that claim's id."""


class NotFound(Refused):
    """There is no such thing."""


class QueueNotFound(NotFound):
    """There is no such queue."""


class MessageNotFound(NotFound):
    """There is no such message: never posted here, deleted, or expired."""


class SignatureRefused(NotFound):
    """The pre-signed URL has expired, was revoked, or does not cover this path or method."""


class Unsupported(Refused):
    """This server has no such route: OpenStack's Zaqar cannot settle single messages.

    A pre-signed permission that does not cover the route looks the same.
    """

    SAYS = (
        "This server cannot do that",
        "it settles no single messages, as OpenStack's Zaqar does not",
    )


class Conflict(Refused):
    """The thing is not in a state that allows this."""


class NotDelayed(Conflict):
    """The message can no longer be edited: it is claimable or claimed already."""


class DueChanged(Conflict):
    """The message is due at another instant than `if_due` says: somebody has moved it."""


class NoDeadLetters(Conflict):
    """The message cannot be a dead letter: its queue has no place for them; it is still held."""


class QueueExists(Conflict):
    """The queue to be created is there already, with other options."""


class KeyReused(Conflict):
    """An idempotency key was used for another message in this queue before; nothing was stored.

    `index` is that of the message in its request, from 0; None for the key of the whole request.
    """

    index: int | None = None


class ClaimLost(Refused):
    """The claim has lapsed or was released; its messages may be someone else's by now."""


class Unavailable(StatusError):
    """The server could not do it now."""


class Overloaded(Unavailable):
    """The server asked to come back later (429 or 503), and retries did not help.

    `retry_after` is the server's wish in seconds, None when it gave none.
    """

    retry_after: float | None = None


class ServerFault(Unavailable):
    """The server failed (500): a defect; report it with the request id."""


BY_STATUS: Mapping[int, type[StatusError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: DueChanged,
    429: Overloaded,
    503: Overloaded,
}
