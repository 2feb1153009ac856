"""The names of queues for a word that is being completed: `zaqar-lite queue names --line LINE`.

A shell runs this at every press of the Tab key, so that neither argparse nor the SDK is imported:
they take five times as long as the answer. Only a login that the SDK must carry out (`--os-cloud`,
`--signed`) waits for them.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from urllib.parse import quote, urlsplit

from zaqar_lite.commands import contexts, sdk

TYPE_CHECKING = False  # importing typing takes 6 ms
if TYPE_CHECKING:
    from typing import Any

DEFAULT_URL = "http://127.0.0.1:8888"
"""The SDK's own; importing the SDK for it would take too long."""
MOST = 1_000
"""How many names are printed."""
_SECONDS = 2.0
_LARGEST = 4_194_304
_PLAIN = re.compile(r"[\w.:@%+-]+")
"""Names that no shell reads as anything else: a completed word becomes part of a command."""


def complete(words: Sequence[str], options: frozenset[str]) -> int:
    """Print names; `words` are LINE, `--` and the prefix, `options` those of the connection.

    Whatever goes wrong prints nothing: a shell has no place for an error while a word is typed.
    """
    prefix = words[-1] if len(words) > 1 and words[-1] != "--" else ""
    with contextlib.suppress(Exception):
        given = _given(words[0] if words else "", options)
        place = contexts.chosen(given)
        by_sdk = place.signed or (place.os_cloud and not place.key)
        found = _ask_sdk(given, prefix) if by_sdk else _ask(place, prefix)
        plain = (name for name in found if name.startswith(prefix) and _PLAIN.fullmatch(name))
        for name in islice(plain, MOST):
            print(name)
    return 0


def _given(line: str, options: frozenset[str]) -> Mapping[str, str]:
    """Read the options of connection from the line; one with an open quote has none yet."""
    try:
        words = shlex.split(line)
    except ValueError:
        return {}
    given: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in options:
            given[name[2:].replace("-", "_")] = value if equals else following
    return given


def _ask(place: contexts.Place, prefix: str) -> Iterator[str]:
    """Ask for names that contain the prefix, page by page, for two seconds."""
    url = urlsplit(place.url or DEFAULT_URL)
    headers = {
        "Host": url.netloc,
        "Accept": "application/json",
        "Client-ID": place.client_id or os.urandom(16).hex(),
    }
    if place.project or not place.key:
        headers["X-Project-ID"] = place.project or "default"
    if place.key:
        headers["Authorization"] = f"Bearer {place.key}"
    base = url.path.rstrip("/").removesuffix("/v2")
    path = "/v2/queues" + (f"?name={quote(prefix, safe='')}" if prefix else "")
    until = time.monotonic() + _SECONDS
    while path and (left := until - time.monotonic()) > 0:
        with contextlib.closing(_connect(place, url.hostname or "", url.port, left)) as connection:
            page = _get(connection, base + path, headers)
        yield from (queue["name"] for queue in page["queues"])
        path = page["links"][0]["href"] if page["queues"] and page["links"] else ""


def _connect(place: contexts.Place, host: str, port: int | None, timeout: float) -> socket.socket:
    secure = (place.url or "").startswith("https")
    # A name as bytes spares Python the tables of international names, which it loads for texts.
    name: Any = host.encode() if host.isascii() else host
    connection = socket.create_connection((name, port or (443 if secure else 80)), timeout)
    if not secure:
        return connection
    context = place.tls()
    if context is None:
        import ssl  # noqa: PLC0415 - most servers nearby have no TLS

        context = ssl.create_default_context()
    return context.wrap_socket(connection, server_hostname=host)


def _get(connection: socket.socket, path: str, headers: Mapping[str, str]) -> "dict[str, Any]":
    """Send a request of HTTP/1.0, whose answer ends with the connection, and read the answer.

    Raises:
        ValueError: it is not 200 with JSON.
    """
    lines = [f"GET {path} HTTP/1.0", *(f"{name}: {text}" for name, text in headers.items())]
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    answer = bytearray()
    while len(answer) < _LARGEST and (part := connection.recv(65_536)):
        answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1] != b"200":
        raise ValueError(head)
    page: dict[str, Any] = json.loads(body)
    return page


def _ask_sdk(given: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Ask as the SDK does, with a login of a cloud or a signed permission."""
    from argparse import Namespace  # noqa: PLC0415 - the module says why

    from zaqar_lite.commands.base_command import connect  # noqa: PLC0415

    arguments = Namespace(**{**given, "attempts": 1, "timeout": _SECONDS})
    with connect(sdk.Client, arguments) as client:
        yield from (queue.name for queue in client.list_queues(name=prefix or None))
