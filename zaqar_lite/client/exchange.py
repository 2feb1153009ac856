"""One call from request to result, over all its retries, without I/O.

`exchange` is a generator: it yields what to do next (send this, sleep so long, log in) and is told
the outcome. The sync and the async client drive the same one.
"""

import dataclasses
import random
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeVar

from zaqar_lite.client import arguments, encoding
from zaqar_lite.client.auth import SIGNATURE_HEADER, Auth
from zaqar_lite.client.errors import (
    NotFound,
    ServerWarning,
    SignatureRefused,
    Unreachable,
    ZaqarError,
)
from zaqar_lite.client.refusals import from_response
from zaqar_lite.client.wire import Call, Request, Response

T = TypeVar("T")
WARNING_HEADER = "zaqar-lite-warning"
NO_PATH = "404 Not Found"
"""The title of the answer to a path that the server does not have."""


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
        jitter = self.uniform(0, min(self.cap, self.base * 2 ** (attempt - 1)))
        return (retry_after or 0) + jitter


@dataclasses.dataclass(frozen=True, slots=True)
class Sleep:
    """Wait this many seconds."""

    seconds: float


class Login:
    """Have the auth plug-in fetch a token; it may block."""


LOGIN: Final = Login()
Step = Request | Sleep | Login
Outcome = Response | Unreachable | None


def exchange(
    call: Call[T],
    *,
    headers: Mapping[str, str],
    auth: Auth,
    retries: RetryPolicy,
    warn: Callable[[ServerWarning], object],
) -> Generator[Step, Outcome, T]:
    """Carry out a call; the generator's return value is its result.

    Raises:
        ZaqarError: the server refused it, or did not answer; the subclass says which.
    """
    attempt = 0
    fresh_login = False
    while True:
        credentials = auth.headers()
        if credentials is None:
            yield LOGIN
            fresh_login = True
            credentials = auth.headers() or {}
        wanted = call.request
        all_headers = {**headers, **wanted.headers, **credentials}
        request = dataclasses.replace(wanted, headers=all_headers)
        attempt += 1
        outcome = yield request
        if isinstance(outcome, Response):
            if outcome.status < 300:
                result = _read(call, outcome)
                if (text := outcome.headers.get(WARNING_HEADER)) is not None:
                    warning = ServerWarning(
                        "The server warns",
                        text,
                        status=outcome.status,
                        request_id=outcome.headers.get("x-openstack-request-id"),
                    )
                    warning.result = result
                    warn(warning)
                return result
            if outcome.status == 401 and not fresh_login and auth.forget():
                # The token ran out earlier than it said: one new login, then take no for an answer.
                fresh_login = True
                continue
            failure: ZaqarError = _refusal(call, request, outcome)
            again = outcome.status in {429, 503}
            wait = retries.wait(attempt, outcome.retry_after()) if again else None
        else:
            failure = outcome or Unreachable("The transport gave no outcome")
            may_resend = call.resend if outcome is None else _may_resend(call, outcome)
            wait = retries.wait(attempt) if may_resend and not _over(wanted) else None
        if wait is None:
            raise failure
        if retries.on_retry is not None:
            retries.on_retry(Resend(failure, attempt, retries.attempts, wait))
        yield Sleep(wait)
        if _over(wanted):
            raise failure


def _may_resend(call: Call[T], failure: Unreachable) -> bool:
    """Return whether sending the request again may help, and does nothing twice."""
    return (call.resend or not failure.sent) and not failure.permanent


def _over(request: Request) -> bool:
    """Return whether the request's line was hung up."""
    return request.line is not None and request.line.over


def _refusal(call: Call[T], request: Request, response: Response) -> ZaqarError:
    """Return the error that an answer stands for.

    A missing path looks like a missing queue, and a bad signature like a missing path.
    """
    failure = from_response(response, call.meanings)
    if not isinstance(failure, NotFound) or failure.description is not None:
        return failure
    path = request.path.partition("?")[0]
    facts: dict[str, Any] = {"status": failure.status, "request_id": failure.request_id}
    if SIGNATURE_HEADER in request.headers:
        said = f"it has expired, or does not cover {request.method} {path}"
        return SignatureRefused("The signed permission is refused", said, **facts)
    if failure.title == NO_PATH:
        said = f"the server has no {path}; is its address right, without a path of its own?"
        return NotFound(NO_PATH, said, **facts)
    return failure


def _read(call: Call[T], response: Response) -> T:
    """Read the result; whatever the reader stumbles over is the answer's fault."""
    try:
        return call.read(response)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise encoding.bad_answer(response, f"the answer is not as expected ({error!r})") from error
