"""What the sync and the async client have in common: where the server is, and who is asking."""

import math
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from zaqar_lite import __version__
from zaqar_lite.client import serialization
from zaqar_lite.client.arguments import takes
from zaqar_lite.client.auth import Auth, KeyAuth, KeystoneAuth, NoAuth
from zaqar_lite.client.calls import Call, Request, RetryPolicy, exchange
from zaqar_lite.client.endpoints.requests import Parameter, page_of, with_query
from zaqar_lite.client.errors import BadRequest, ServerWarning, StatusError, ZaqarError
from zaqar_lite.client.long_polling import LONGEST, POLL, Connection
from zaqar_lite.client.serialization import Encoder
from zaqar_lite.client.steps import Page, Pages, Sleep, Steps

if TYPE_CHECKING:
    from zaqar_lite.client.tracing import Tracing

DEFAULT_URL = "http://127.0.0.1:8888"
LARGE_PAGE = 200
"""Messages of a page after the first, where the server gives so many: a tenth of the requests."""
I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


class BaseClient:
    """The settings of a client, and the steps that all of its methods take.

    Attributes:
        large_page: messages that a list asks for after its first page, unless the server refused.
        longest_wait: seconds that one request waits for messages at most; a longer wait is several.
        settles: whether the server settles single messages, as far as is known.
        tracing: makes the client's spans; None for none.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        project: str | None = None,
        key: str | None = None,
        client_id: str | uuid.UUID | None = None,
        auth: Auth | None = None,
        retries: RetryPolicy | None = None,
        timeout: float = 60.0,
        page_size: int = 20,
        connections: int = 64,
        ssl_context: ssl.SSLContext | None = None,
        release_on_sigterm: bool = True,
        encoder: Encoder | None = None,
        on_warning: Callable[[ServerWarning], object] | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        """Make a client; it connects when it is first used.

        Args:
            url: the address of the server. None asks the auth plug-in (Keystone's catalogue), or
                means this machine.
            project: the tenant, where no token and no key says it; `default` without.
            key: a key of the server (`zaqar-lite key create`), instead of `auth`.
            client_id: a UUID that says who is asking, a new one by default. One that is kept over
                restarts lets `echo=False` hide the messages that the program itself posted.
            auth: a plug-in that proves who is asking.
            retries: when a request is sent again.
            timeout: seconds to wait for an answer.
            page_size: messages in the first page of a list, or in a bulk delete. More than 20 takes
                a server with large pages (1,000 at most); a list goes on with 200 a page there.
            connections: connections that are kept open.
            ssl_context: for a server whose certificate the system does not know. A login to
                Keystone brings its own (`cacert`, `verify` and `cert` of clouds.yaml).
            release_on_sigterm: whether a claim held by the main thread (or by a task of the main
                thread's loop) is given back before SIGTERM ends the process. A program that
                handles SIGTERM itself is left alone.
            encoder: makes the JSON of bodies, instead of `serialization.dumps`.
            on_warning: is called with each warning of the server, for example `warnings.warn`.
                None raises it. What was asked is done either way.
            tracing: makes OpenTelemetry's spans of what the client does with messages.

        Raises:
            TypeError, ValueError: an argument is not what it must be; the text names it.
        """
        _check(locals())
        self.client_id = str(client_id or uuid.uuid4())
        self.page_size = page_size
        self.large_page = max(page_size, LARGE_PAGE)
        self.release_on_sigterm = release_on_sigterm
        self.encoder = encoder
        self.tracing = tracing
        self.longest_wait = LONGEST
        self.settles = True
        self._warn = on_warning or _raise
        if key is not None and auth is not None:
            message = "give a key or an auth plug-in, not both"
            raise ValueError(message)
        self._auth = auth or (NoAuth() if key is None else KeyAuth(key))
        self._retries = retries or RetryPolicy()
        self._url = None if url is None else base_of(url)
        self._timeout = min(timeout, 1e6)  # a socket takes no more than 24 days
        self._connections = connections
        if ssl_context is None and isinstance(self._auth, KeystoneAuth):
            ssl_context = self._auth.ssl_context
        self._ssl_context = ssl_context
        self._headers = {
            "Accept": "application/json",
            "Client-ID": self.client_id,
            "User-Agent": f"zaqar-lite/{__version__}",
        }
        if project is None and not isinstance(self._auth, KeyAuth):
            project = "default"
        if project is not None:
            self._headers["X-Project-ID"] = project
        self._open()

    def _open(self) -> None:
        """Make the transport."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where the server is.

        Raises:
            ZaqarError: no address was given, and the catalogue has none either.
        """
        if self._url is None:
            found = self._auth.url()
            if found is None and not isinstance(self._auth, NoAuth):
                raise ZaqarError(
                    "No address", "the catalogue has no messaging service here; give url="
                )
            self._url = base_of(found or DEFAULT_URL)
        return self._url

    def encode(self, queue: str, message: object, *, alone: bool = False) -> bytes:
        """Return an entry of a post to a queue; `alone` where its request has no other.

        Raises:
            TypeError, ValueError: it can't be posted, for example because JSON can't hold it.
        """
        if self.tracing is None:
            return serialization.encode_message(message, self.encoder)
        return self.tracing.encode(queue, message, self.encoder, alone=alone)

    def _exchange(self, call: Call[T]) -> Steps[T]:
        """Return the steps of a call, over all its retries."""
        if self.tracing is None:
            return self._untraced(call)
        return self.tracing.exchange(call, self._untraced)

    def _untraced(self, call: Call[T]) -> Steps[T]:
        return exchange(call, self._headers, self._auth, self._retries, self._warn)

    def _pages(
        self,
        path: str,
        key: str,
        read: Callable[[dict[str, Any]], T],
        meanings: Mapping[int, type[StatusError]] | None = None,
        **query: Parameter,
    ) -> Pages[T]:
        """Return the steps to the pages of a list, whose entries stand under `key` of an answer."""

        def page(marker: str | None) -> Steps[Page[T]]:
            request = Request("GET", with_query(path, marker=marker, **query), {})
            return self._exchange(Call(request, page_of(key, read), meanings))

        return page

    def _until_found(
        self,
        make: Callable[..., Call[T]],
        seconds: float,
        *,
        poll: float = POLL,
        connection: Connection | None = None,
    ) -> Steps[T]:
        """Make calls, each told how long to `wait`, until one finds something or time is over.

        A server that does not know `wait` (OpenStack's Zaqar) answers at once that there is
        nothing: then the next call is made about `poll` seconds later.

        Raises:
            TypeError: `seconds` or `poll` is not a number.
            Unreachable: no answer came, or the connection was hung up.
        """
        takes("wait", seconds, Real)
        takes("poll", poll, Real)
        until = time.monotonic() + seconds
        while True:
            asked_at = time.monotonic()
            if connection is not None:
                connection.asked_at = asked_at
            wait = math.ceil(max(0.0, min(self.longest_wait, until - asked_at)))
            try:
                found = yield from self._exchange(make(wait=wait))
            except BadRequest as error:
                if not wait or "'wait'" not in (error.description or ""):
                    raise
                self.longest_wait = wait // 2  # the server may allow less
                continue
            now = time.monotonic()
            if found or now >= until:
                return found
            if not wait or now - asked_at < 0.9 * wait:
                pause = random.uniform(0, 2 * poll)  # noqa: S311 - jitter, not a secret
                yield Sleep(min(until - now, pause), connection)
            if connection is not None and connection.over:
                return found


_KINDS: Sequence[tuple[str, Any, str]] = (
    ("url", str, "the address of the server as a string"),
    ("project", str, ""),
    ("key", str, ""),
    ("client_id", str | uuid.UUID, "a UUID"),
    ("auth", Auth, "a plug-in such as KeyAuth(...); a key alone goes into key="),
    ("retries", RetryPolicy, "a policy, such as RetryPolicy(attempts=3)"),
    ("timeout", Real, "a number of seconds"),
    ("page_size", Integral, ""),
    ("connections", Integral, ""),
    ("ssl_context", ssl.SSLContext, "an ssl.SSLContext"),
    ("release_on_sigterm", bool, ""),
    ("encoder", Callable, ""),
    ("on_warning", Callable, ""),
)


def _check(given: Mapping[str, Any]) -> None:
    """Check the arguments of a client.

    Raises:
        TypeError, ValueError: the text names the argument.
    """
    for name, kind, what in _KINDS:
        takes(name, given[name], kind, what)
    if given["tracing"] is not None and not hasattr(given["tracing"], "exchange"):
        message = "tracing takes zaqar_lite.client.tracing.Tracing(...)"
        raise TypeError(message)
    for name in ("timeout", "page_size", "connections"):
        if given[name] <= 0:
            message = f"{name} must be above 0"
            raise ValueError(message)


def _raise(warning: ServerWarning) -> None:
    raise warning


def base_of(url: str) -> str:
    """Return a server's address without the version, which the paths bring.

    Raises:
        ValueError: it is not an address.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        valid = valid and not parts.query and not parts.fragment
    except ValueError:  # a port that is none
        valid = False
    if not valid:
        message = f"{url!r} is not a server's address, such as {DEFAULT_URL}"
        raise ValueError(message)
    return url.rstrip("/").removesuffix("/v2")


def chunks(items: Iterable[I], size: int) -> Iterator[Sequence[I]]:
    """Cut an iterable into lists of at most `size`."""
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part
