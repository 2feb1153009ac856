"""The checks that every request passes, in upstream's exact order (zaqar-behaviour 1.2)."""

import ipaddress
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

from zaqar_lite.api.request import NAMING, SIGNATURE, TOPICS, Check, Refused, Request, Route
from zaqar_lite.domain.identity import INTERNAL_PROJECTS, SIGNED, How
from zaqar_lite.domain.limits import MAX_PROJECT_ID
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.domain.topics import topic_ref
from zaqar_lite.service.presigned_urls import PresignedUrls

_HEX_ID = re.compile(rb"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_REFUSED = re.compile(r"q=0(?:\.0*)?")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")
_MAX_HEADER = 16_384
EVENT_STREAM = b"text/event-stream"
_INVALID_HEADER = "Invalid header value"
_JSON_RANGES = ("application/json", "application/*", "*/*")
"""The media ranges that admit JSON; the first of them that a header names decides."""

_ALL_JSON = (b"*/*", b"application/json")
_ENCODINGS = (b"gzip", b"identity")
_SINGLE = frozenset(
    (
        b"host",
        *(b"client-id", b"x-project-id", b"x-tenant-id", b"idempotency-key", b"content-type"),
        *(b"authorization", b"x-auth-token", b"x-service-token", b"transfer-encoding"),
        *(SIGNATURE, b"url-paths", b"url-methods", b"url-expires"),
    )
)

_ACCEPT_LINK = {
    "text": "Accept header field definition",
    "href": "https://www.rfc-editor.org/rfc/rfc9110#name-accept",
    "rel": "help",
}
_NOT_FOUND = "404 Not Found"
_IN_A_PROJECT = ("/v2/queues", "/v2/topics", "/v2/schedules", "/v2/data-keys", "/v2/quota")
"""What the paths begin with of what lies in a project, but for /v2/quotas/, which names its own."""
_KEY = How.KEY  # an attribute of an enumeration is found slowly


class Checks:
    """Fill in who a request is from, or refuse it.

    `hosts` are the names that Host may say beside those of loopback; None means any. With
    `any_client_id` a Client-ID is checked by its length alone, else it is a UUID.
    """

    def __init__(
        self, *, any_client_id: bool, presigned_urls: PresignedUrls, hosts: frozenset[str] | None
    ) -> None:
        self._any_client_id = any_client_id
        self._known_client = lru_cache(maxsize=1_024)(self._client_id)  # few send most requests
        self._presigned_urls = presigned_urls
        self._is_our_name = None if hosts is None else _our_names(hosts)

    def check_headers(self, request: Request) -> None:
        """Refuse headers that are too large, or sent twice where the two could say two things.

        A gateway that looks at the first of two project ids while the last one counts would let
        everybody in everywhere. Nothing else was looked at, but whom the client believes to call.

        Raises:
            Refused: 431 or 400.
        """
        headers = request.headers
        if request.repeated:
            _check_repeated(request.repeated)
        if headers and max(map(len, headers.values())) > _MAX_HEADER:
            _refuse_largest(headers)
        host = headers.get(b"host")
        if host is not None and self._is_our_name is not None and not self._is_our_name(host):
            raise Refused(
                400,
                _INVALID_HEADER,
                "The Host header is no name of this server, which is for this machine only: use "
                "127.0.0.1 or localhost, or add the name to its setting allowed_hosts.",
            )

    def of(self, template: str, route: Route | None) -> tuple[Check, ...]:
        """What a request to a path must pass, in upstream's order; `route` answers it, if any does.

        A plain route needs no Client-ID, and takes any Accept; one that streams may be asked for
        events alone.
        """
        found: list[Check] = [self._check_signature, _check_content]
        names_queue = template.startswith(NAMING)
        if route is not None and route.plain:
            return (*found, _set_project, _check_queue) if names_queue else tuple(found)
        streams = route is not None and route.streams
        found += [_check_stream_accept if streams else _check_accept, self._set_client]
        is_in_one = template.startswith(_IN_A_PROJECT) and not template.startswith("/v2/quotas/")
        found.append(_set_project if is_in_one else _set_project_if_any)
        return (*found, _check_queue) if names_queue else tuple(found)

    async def check_revoked(self, request: Request) -> None:
        """Refuse a signature that fits and was revoked; it is behind those of `of`.

        Raises:
            Refused: 404, as for any signature that does not admit.
        """
        if request.is_signed:
            signature = request.headers[SIGNATURE].decode("latin-1")
            if not await self._presigned_urls.admits(request.queue, signature):
                raise Refused(404, _NOT_FOUND)

    def _set_client(self, request: Request) -> None:
        request.client_id = self._known_client(request.headers.get(b"client-id"))

    def _check_signature(self, request: Request) -> None:
        """Refuse a signature that does not fit; what else the headers name counts for nothing."""

        def header(name: bytes) -> str:
            return request.headers.get(name, b"").decode("latin-1")

        if not request.is_signed:
            return
        if not self._presigned_urls.verify(
            path=request.path,
            method=request.method,
            project=_text(request.headers.get(b"x-project-id", b"")),
            signature=header(SIGNATURE),
            paths=header(b"url-paths"),
            methods=header(b"url-methods"),
            expires=header(b"url-expires"),
        ):
            raise Refused(404, _NOT_FOUND)
        request.principal = SIGNED

    def _client_id(self, value: bytes | None) -> str:
        if value is None:
            raise Refused(400, "Missing header value", 'The "Client-Id" header is required.')
        if not self._any_client_id:
            if _HEX_ID.fullmatch(value):
                return value.decode().replace("-", "").lower()
            try:
                return uuid.UUID(value.decode("ascii")).hex
            except (ValueError, UnicodeDecodeError):
                raise Refused(400, "Wrong UUID value", "Malformed hexadecimal UUID.") from None
        text = _text(value)
        if not 10 <= len(text) <= 36:
            raise Refused(400, "Length of client id must be at least 10 and no greater than 36.")
        return text


def _refuse_largest(headers: Mapping[bytes, bytes]) -> NoReturn:
    name = max(headers, key=lambda name: len(headers[name]))
    raise Refused(
        431,
        "Request header too large",
        f"The header {name.decode('latin-1')!r} has {len(headers[name])} bytes; {_MAX_HEADER} are "
        "allowed.",
    )


def _our_names(allowed: frozenset[str]) -> Callable[[bytes], bool]:
    """A test of Host headers: loopback's names and the allowed ones, with any port."""

    @lru_cache(maxsize=64)
    def is_ours(host: bytes) -> bool:
        found = _HOST.fullmatch(host.decode("latin-1").lower())
        if found is None:
            return False
        name = found["name"].removesuffix(".").strip("[]")
        return name in allowed or name == "localhost" or _is_loopback(name)

    return is_ours


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _check_repeated(names: Sequence[bytes]) -> None:
    for name in names:
        if name in _SINGLE:
            raise Refused(
                400, _INVALID_HEADER, f"The header {name.decode()!r} may be sent only once."
            )


def _check_content(request: Request) -> None:
    headers = request.headers
    length = headers.get(b"content-length")
    if length is not None:
        if not length.isdigit() or len(length) > 18:
            raise Refused(400, _INVALID_HEADER, "Content-Length must be a number.")
        content_type = headers.get(b"content-type", b"")
        if request.size and content_type.lower() == b"application/x-www-form-urlencoded":
            raise Refused(
                400, "Invalid Content-Type", "Endpoint does not accept URL-encoded bodies."
            )
    elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        raise Refused(
            400, "Invalid request body", "No Transfer-Encoding but chunked is understood."
        )
    if request.size and headers.get(b"content-encoding", b"identity") not in _ENCODINGS:
        raise Refused(
            400, "Invalid request body", "No Content-Encoding of a body but gzip is understood."
        )


def _check_stream_accept(request: Request) -> None:
    if EVENT_STREAM not in request.headers.get(b"accept", b"").lower():
        _check_accept(request)


def _check_accept(request: Request) -> None:
    accept = request.headers.get(b"accept")
    if not accept or accept in _ALL_JSON:
        return
    admits: dict[str, bool] = {}
    for entry in accept.decode("latin-1").split(","):
        media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
        refused = any(_REFUSED.fullmatch(parameter) for parameter in parameters)
        admits[media_type] = not refused or admits.get(media_type, False)
    if next((admits[one] for one in _JSON_RANGES if one in admits), False):
        return
    raise Refused(
        406,
        "406 Not Acceptable",
        "The server answers in application/json only, which the Accept header excludes.",
        link=_ACCEPT_LINK,
    )


def _set_project(request: Request) -> None:
    """Take the project; X-Tenant-Id counts only where there is no X-Project-ID, as upstream has it.

    Raises:
        Refused: 400, it is missing, empty, no UTF-8, or the server's own.
    """
    value = request.headers.get(b"x-project-id", request.headers.get(b"x-tenant-id"))
    if value is None:
        text = "The header X-PROJECT-ID was missing from the request."
        if request.principal.how is How.KEYSTONE:
            text = "The token belongs to no project: ask Keystone for one of a project."
        raise Refused(400, "Project-Id Missing", text)
    try:
        project = value.decode()
    except UnicodeDecodeError:
        raise Refused(400, _INVALID_HEADER, "X-Project-ID must be UTF-8.") from None
    if not project:
        raise Refused(
            400,
            "Empty project header not allowed",
            "X-PROJECT-ID cannot be an empty string. Specify the right header X-PROJECT-ID.",
        )
    if project in INTERNAL_PROJECTS:
        raise Refused(400, _INVALID_HEADER, f"X-Project-ID: {project} is the server's own project.")
    request.project = project


def _set_project_if_any(request: Request) -> None:
    """Take the project where a path needs none; a client with a key may belong to none."""
    if request.principal.how is not _KEY or b"x-project-id" in request.headers:
        _set_project(request)


def _check_queue(request: Request) -> None:
    """Check the name of a queue or a topic; it is the request's from then on.

    Raises:
        Refused: 400, that is no name, or the project's is too long.
    """
    name, is_topic = request.path_values[0], request.path.startswith(TOPICS)
    kind = "topic" if is_topic else "queue"
    if not is_queue_name(name):
        raise Refused(
            400,
            f"Invalid {kind} identification",
            f"A {kind}'s name has 1 to 64 characters: letters, digits, '_', '-' and '.'; it is not "
            "'.' or '..'.",
        )
    if len(request.project) > MAX_PROJECT_ID:
        raise Refused(
            400,
            f"Invalid {kind} identification",
            f"A project id has at most {MAX_PROJECT_ID} characters.",
        )
    request.queue = (
        topic_ref(request.project, name) if is_topic else QueueRef(request.project, name)
    )


def _text(value: bytes) -> str:
    """A header's text: UTF-8 where it is that, else one character a byte."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
