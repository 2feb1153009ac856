"""One call of the API, from its request over all retries to its result, without I/O.

`exchange` returns the steps: send this, sleep so long, log in.
"""

import dataclasses
import datetime as dt
import email.utils
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from zaqar_lite.client import arguments
from zaqar_lite.client.auth import Auth
from zaqar_lite.client.errors import (
    BY_STATUS,
    BadAnswer,
    BadRequest,
    Conflict,
    KeyReused,
    NotFound,
    Overloaded,
    ServerFault,
    ServerWarning,
    SignatureRefused,
    StatusError,
    Unreachable,
    ZaqarError,
)
from zaqar_lite.client.long_polling import Connection
from zaqar_lite.client.models import SIGNATURE_HEADER
from zaqar_lite.client.steps import LOGIN, Async, Sleep, Step, Steps, Sync

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
WARNING_HEADER = "zaqar-lite-warning"
NO_PROJECT = "Project-Id Missing"
"""The title of the answer where no token and no key has said which project is meant."""
NO_PATH = "404 Not Found"
"""The title of the answer to a path that the server does not have."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request(Step):
    """One HTTP request; `path` begins with /v2/ and carries the query.

    `wait` is how many seconds the server may take longer than usual, because the request waits for
    messages; `connection` ends that wait from elsewhere. A request
    that `streams` has an answer without an end. As a step its outcome is a `Response`.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None
    wait: int = 0
    connection: Connection | None = None
    streams: bool = False

    def take(self, client: Sync) -> "Response":
        """Send it; raise `Unreachable` when no answer came."""
        answer: Response = client._send(self)
        return answer

    async def take_async(self, client: Async) -> "Response":
        """Send it; raise `Unreachable` when no answer came."""
        answer: Response = await client._send(self)
        return answer


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer; header names are in lower case.

    `stream` is the body of one that goes on, as its transport gives it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    stream: Any = None

    @property
    def request_id(self) -> str | None:
        """The server's id of the request."""
        return self.headers.get("x-openstack-request-id")

    def retry_after(self) -> float | None:
        """Return the seconds that Retry-After asks for (a number or a date), None without one."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal():
            return float(text)
        try:
            at = email.utils.parsedate_to_datetime(text)
        except (TypeError, ValueError, OverflowError):
            return None
        if at.tzinfo is None:
            at = at.replace(tzinfo=dt.UTC)
        return max(0.0, (at - dt.datetime.now(dt.UTC)).total_seconds())


class Operation(NamedTuple):
    """What a call does with messages, for tracing.

    Attributes:
        kind: `send`, `receive` or `settle`: the types of OpenTelemetry's messaging conventions.
        name: our own word for it.
        queue: the queue.
        entries: the encoded messages that are sent.
        ids: the messages that are settled.
    """

    kind: str
    name: str
    queue: str
    entries: Sequence[bytes] = ()
    ids: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One call of an endpoint: the request, and how to read its answer.

    Attributes:
        request: method, path, the endpoint's own headers, body.
        read: makes the result of a 2xx answer.
        meanings: what a status means to this endpoint, where that is more than usual.
        resend: whether it may be sent again after its answer was lost; False only where doing it
            twice would lose something (pop).
        operation: what it does with messages, where it sends, receives or settles some.
    """

    request: Request
    read: Callable[[Response], T_co]
    meanings: Mapping[int, type[StatusError]] | None = None
    resend: bool = True
    operation: Operation | None = None


def bad_answer(response: Response, what: str) -> BadAnswer:
    """Make the error for an answer that is not the protocol's."""
    return BadAnswer(
        "Not Zaqar's protocol",
        f"{what}; is this address a Zaqar server, or a proxy's page?",
        status=response.status,
        request_id=response.request_id,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Resend:
    """A request that is about to be sent again: why, after which try of how many, and when."""

    failure: ZaqarError
    attempt: int
    attempts: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to send a request again, and after how long.

    Requests without an answer, and answers of 429 and 503, are tried again; other refusals never
    are, nor is a pop whose answer was lost. Before try n the client waits a random time between 0
    and `base` * 2^(n-1) seconds, at most `cap` (full jitter, so that clients that failed together
    do not come back together), added to what Retry-After asks for.

    Attributes:
        attempts: how often a request is sent at most; 1 switches retries off.
        base: seconds.
        cap: seconds.
        patience: a Retry-After beyond this many seconds is not waited for, but raised.
        on_retry: is called before each wait, possibly by several threads at the same time.
    """

    attempts: int = 8
    base: float = 0.1
    cap: float = 10.0
    patience: float = 60.0
    uniform: Callable[[float, float], float] = random.uniform
    on_retry: Callable[[Resend], object] | None = None

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a field that holds what it does not take."""
        arguments.check_fields(self)
        if self.attempts < 1:
            message = "attempts must be at least 1, which switches retries off"
            raise ValueError(message)

    def wait(self, attempt: int, retry_after: float | None = None) -> float | None:
        """Return the seconds before the next try after `attempt` tries, None to give up."""
        if attempt >= self.attempts or (retry_after or 0) > self.patience:
            return None
        jitter = self.uniform(0, min(self.cap, self.base * 2 ** min(attempt - 1, 60)))
        return (retry_after or 0) + jitter


def exchange(
    call: Call[T],
    headers: Mapping[str, str],
    auth: Auth,
    retries: RetryPolicy,
    warn: Callable[[ServerWarning], object],
) -> Steps[T]:
    """Carry out a call; the generator's return value is its result.

    Raises:
        ZaqarError: the server refused it, or did not answer; the subclass says which.
    """
    attempt = 0
    fresh_login = was_replaced = False
    lost: Unreachable | None = None
    while True:
        attempt += 1
        wanted = call.request
        failure: ZaqarError
        try:
            credentials = auth.headers()
            if credentials is None:
                yield LOGIN
                fresh_login = True
                credentials = auth.headers() or {}
            request = dataclasses.replace(
                wanted, headers={**headers, **wanted.headers, **credentials}
            )
            answer: Response = yield request
        except Unreachable as error:
            failure = error
            lost = error if error.sent else lost
            may_resend = (call.resend or not error.sent) and not error.permanent
            wait = retries.wait(attempt) if may_resend and not _over(wanted) else None
        else:
            if answer.status < 300:
                return _result(call, answer, warn)
            if answer.status == 401 and not fresh_login:
                # The token ran out earlier than it said: one new login, which another request may
                # have made already, then take no for an answer.
                if not was_replaced and auth.headers() != credentials:
                    was_replaced = True
                    continue
                if auth.forget():
                    fresh_login = True
                    continue
            failure = _refusal(call, request, answer)
            if lost and isinstance(failure, Conflict) and not isinstance(failure, KeyReused):
                # It may conflict with what the try whose answer was lost has done.
                lost.description = f"{lost.description}; sent again it was refused: {failure}"
                failure = lost
            again = answer.status in {429, 503}
            wait = retries.wait(attempt, answer.retry_after()) if again else None
        if wait is None:
            raise failure
        if retries.on_retry is not None:
            retries.on_retry(Resend(failure, attempt, retries.attempts, wait))
        yield Sleep(wait, wanted.connection)
        if _over(wanted):
            raise failure


def _result(call: Call[T], answer: Response, warn: Callable[[ServerWarning], object]) -> T:
    """Read the result; whatever the reader stumbles over is the answer's fault."""
    try:
        result = call.read(answer)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise bad_answer(answer, f"the answer is not as expected ({error!r})") from error
    if (text := answer.headers.get(WARNING_HEADER)) is not None:
        warning = ServerWarning(
            "The server warns", text, status=answer.status, request_id=answer.request_id
        )
        warning.result = result
        warn(warning)
    return result


def _over(request: Request) -> bool:
    """Return whether the request's wait was ended from elsewhere."""
    return request.connection is not None and request.connection.over


def _refusal(call: Call[T], request: Request, response: Response) -> ZaqarError:
    """Return the error that an answer stands for.

    A missing path looks like a missing queue, a bad signature like a missing path, and a key
    that nobody reads like a missing project.
    """
    if 300 <= response.status < 400:
        where = response.headers.get("location", "elsewhere")
        return bad_answer(response, f"it sends requests on to {where}, which is not followed")
    failure = from_response(response, call.meanings)
    facts: dict[str, Any] = {"status": failure.status, "request_id": failure.request_id}
    if failure.title == NO_PROJECT and "Authorization" in request.headers:
        said = (
            "name the project (--project), which the key does not tell: it is an operator's, "
            "or this server reads no keys"
        )
        return BadRequest(NO_PROJECT, said, **facts)
    if not isinstance(failure, NotFound) or failure.description is not None:
        return failure
    path = request.path.partition("?")[0]
    if SIGNATURE_HEADER in request.headers:
        said = f"it has expired, was revoked, or does not cover {request.method} {path}"
        return SignatureRefused("The signed permission is refused", said, **facts)
    if failure.title == NO_PATH:
        said = f"the server has no {path}; is its address right, without a path of its own?"
        return NotFound(NO_PATH, said, **facts)
    return failure


def from_response(
    response: Response, meanings: Mapping[int, type[StatusError]] | None = None
) -> StatusError:
    """Make the error that an answer stands for.

    `meanings` says what a status means to the endpoint that was called, where that is more than
    the status says by itself.
    """
    status = response.status
    known = {**BY_STATUS, **(meanings or {})}
    kind = known.get(status, BadRequest if 400 <= status < 500 else ServerFault)
    title, description, more = _explanation(response)
    title, description = kind.SAYS or (title, description)
    error = kind(title, description, status=status, request_id=response.request_id)
    if isinstance(error, Overloaded):
        error.retry_after = response.retry_after()
    elif isinstance(error, KeyReused):
        error.index = more.get("index")
    return error


def _explanation(response: Response) -> tuple[str, str | None, Mapping[str, Any]]:
    """Return title, description and all fields of an error's body, whoever wrote it."""
    try:
        document = json.loads(response.body)
        if isinstance(document.get("error"), dict):  # Keystone's form, of 401
            document = document["error"]
            document["description"] = document.get("message")
        title, description = document["title"], document.get("description")
    except (ValueError, KeyError, TypeError, AttributeError):
        # Not the server's words: a proxy's page, or nothing at all. Quote what it shows first.
        text = re.sub(r"<[A-Za-z/!][^>]*>?", " ", response.body[:500].decode("utf-8", "replace"))
        text = " ".join(text.split())[:200]
        return f"HTTP {response.status}", text or None, {}
    return str(title), None if description is None else str(description), document
