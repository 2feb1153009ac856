"""The JSON protocol: `POST` with a target that names the operation, and a document of its own.

Each operation is a route, so metrics, logs, rates, the audit trail and the rules of access know it
as any other. Whose queue is meant is in the document, and so is its project: the account.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, get_type_hints
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from zaqar_lite.api.request import Request, Response, Route
from zaqar_lite.api.routes import route, routes_of
from zaqar_lite.domain.identity import is_project_id
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import is_queue_name
from zaqar_lite.domain.models import QueueRef
from zaqar_lite.sqs.authentication import SignedRequests, claimed_by
from zaqar_lite.sqs.errors import MEDIA_TYPE, SqsError, invalid, missing, translated, unsupported

DEFAULT_ACCOUNT = "000000000000"
"""The project of who names none."""
_TARGET = b"x-amz-target"
_FORM = b"application/x-www-form-urlencoded"
_REFUSED = (b"AmazonSQS.AddPermission", b"AmazonSQS.RemovePermission")
_ESCAPES = 6
"""How many bytes JSON may write for one of a text."""
_REST = 131_072
"""Bytes of a document besides its messages."""
_CROWD = 10_000
"""Strings, or objects, that no document has: to decode 500,000 objects takes 65 ms."""
_LONGEST_PATH = 8_192
"""Characters of a path that are looked at; no account and name have as many."""
_MISSING = re.compile("missing required field `([^`]*)`")
F = TypeVar("F", bound=Struct)


class QueueForm(Struct, rename="pascal"):
    """The document of an operation on a queue."""

    queue_url: str = ""


def operation(access: str, *, hot: bool = False, name: str = "") -> Route:
    """A route to put above the method of an operation; `send_message` is SendMessage.

    `access` is that of Zaqar's route that does the same, `RULE VERB`; the name is the method's
    unless one is given.
    """

    def largest(limits: Limits) -> int:
        sent = limits.max_messages_post_size if access.endswith(" send") else 0
        return _ESCAPES * sent + _REST

    return route("POST /", access, (200, 400, 403), hot=hot, name=name, largest=largest)


class Call(Struct, Generic[F], eq=False):
    """A request of an operation: its document, and the queue that this names.

    The account is the queue's project; its name is empty where none is named.
    """

    request: Request
    form: F
    queue: QueueRef
    is_batch: bool

    def url(self, name: str) -> str:
        """The URL of one of the account's queues, at the host by which the client calls."""
        request = self.request
        is_secure = request.is_secure or request.headers.get(b"x-forwarded-proto") == b"https"
        host = request.headers.get(b"host", b"localhost").decode("latin-1")
        account = quote(self.queue.project, safe="")
        return f"{'https' if is_secure else 'http'}://{host}/{account}/{name}"

    def arn(self, name: str) -> str:
        """The ARN of one of the account's queues."""
        return f"arn:aws:sqs:{claimed_by(self.request.headers)[1]}:{self.queue.project}:{name}"

    def named(self, arn: str) -> QueueRef:
        """The queue of the account that an ARN names.

        Raises:
            SqsError: it is no ARN, or of another account.
        """
        queue = QueueRef(*_arn_parts(arn))
        if queue.project != self.queue.project:
            raise SqsError("AccessDenied", "The queue is of another account.", 403)
        return queue


def done(document: Mapping[str, Any] | None = None, **fields: Any) -> Response:  # noqa: ANN401 - of a response
    """Answer an operation."""
    return Response(200, document or {}, media_type=MEDIA_TYPE, **fields)


@dataclass(eq=False, repr=False)
class SqsDialect:
    """Find the operation of a request, who sent it, and its queue; render errors in SQS's form.

    `signatures` verifies who sent a request, where somebody authenticates. Behind gateways, a
    request must say of which project it is.
    """

    actions: Sequence[object]
    limits: Limits
    signatures: SignedRequests | None
    behind_gateways: bool
    name: str = "sqs"
    header: str = "X-Amz-Target"
    media_type: str = MEDIA_TYPE.decode()
    forms: dict[str, type[Struct]] = field(default_factory=dict, init=False)
    routes: tuple[Route, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._targets: dict[bytes, Route] = {}
        self._operations: dict[str, tuple[msgspec.json.Decoder[Struct], Any, bool]] = {}
        for found in (one for actions in self.actions for one in routes_of(actions, self.limits)):
            name = "".join(word.capitalize() for word in found.name.split("_"))
            named = replace(found, name=f"sqs_{found.name}", template=f"/#{name}")
            perform: Any = found.action
            form = get_type_hints(perform)["call"].__args__[0]
            self.forms[f"AmazonSQS.{name}"] = form
            self._targets[f"AmazonSQS.{name}".encode()] = named
            decoder = msgspec.json.Decoder(form, strict=False)
            self._operations[named.name] = decoder, perform, name.endswith("Batch")
        self.routes = tuple(self._targets.values())

    def speaks(self, request: Request) -> bool:
        """Tell whether a request is SQS's, by its head."""
        if request.method != "POST" or _TARGET in request.headers:
            return request.method == "POST"
        is_form = request.headers.get(b"content-type", b"").lower().startswith(_FORM)
        return is_form and not request.path.startswith(("/v2", "/ui"))

    def find(self, request: Request) -> Route:
        """The route of a request that is SQS's.

        Raises:
            SqsError: there is no such operation, or it is in the protocol that was before JSON.
        """
        target = request.headers.get(_TARGET)
        if target is None:
            raise unsupported("Use an AWS SDK of 2023-11 or later: Action and XML are not spoken.")
        if target in _REFUSED:
            raise unsupported("Rights are those of keys: queues have no permissions of their own.")
        if (found := self._targets.get(target)) is None:
            shown = ascii(target[:128].decode("latin-1"))
            raise SqsError("InvalidAction", f"Unknown operation {shown}.", 404)
        return found

    def answers_at_once(self, request: Request) -> bool | None:
        """Whether a request is probably answered without waiting; None if it is not SQS's."""
        if request.method != "POST" or _TARGET not in request.headers:
            return None
        found = self._targets.get(request.headers[_TARGET])
        return found is not None and found.hot

    async def admit(self, request: Request) -> None:
        """Find out who sends a request, and what it asks of which queue.

        Raises:
            SqsError: nobody known, or the document or the queue is wrong.
        """
        assert request.route is not None  # noqa: S101 - the check before this one has set it
        decoder, perform, is_batch = self._operations[request.route.name]
        known = request.known or request
        request.client_id = known.client_id = known.client_id or claimed_by(request.headers)[0]
        if self.signatures is not None:
            await self.signatures.admit(request)
        form = _read(decoder, request.document)
        account, name = _named(request, form)
        project = self._own_project(request) or account or DEFAULT_ACCOUNT
        if account not in (None, project):
            raise SqsError("AccessDenied", "The queue is of another account.", 403)
        if not is_project_id(project):
            raise SqsError("InvalidAddress", "The account is no project id.")
        queue = QueueRef(project, name or "")
        request.project = project
        if name is not None:
            request.path_values, request.queue = (name,), queue
        call = Call(request, form, queue, is_batch)

        async def act(request: Request) -> Response:
            return _identified(await perform(call), request)

        request.action = act

    def to_response(self, error: Exception, request: Request) -> Response:
        """Answer an error in the form of the protocol that was spoken."""
        found, is_json = translated(error, request.request_id), _TARGET in request.headers
        return _identified(
            found.as_json() if is_json else found.as_xml(request.request_id), request
        )

    def _own_project(self, request: Request) -> str | None:
        """The project to which a request is bound, if to any."""
        if self.signatures is not None:
            return request.principal.project
        value = request.headers.get(b"x-project-id")
        if not value and self.behind_gateways:
            text = "The gateway did not say of which project this is."
            raise SqsError("AccessDenied", text, 403)
        return None if value is None else value.decode(errors="surrogateescape")


def _identified(response: Response, request: Request) -> Response:
    response.headers = (*response.headers, (b"x-amzn-requestid", request.request_id.encode()))
    return response


def _read(decoder: msgspec.json.Decoder[Struct], document: bytes) -> Struct:
    if len(document) > _REST and _is_crowded(document):
        raise SqsError("SerializationException", "The document has too many parts.")
    try:
        return decoder.decode(document or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        if (found := _MISSING.search(str(exc))) is not None:
            raise missing(found[1]) from None
        raise SqsError("SerializationException", f"The document is wrong: {exc}.") from None


def _is_crowded(document: bytes) -> bool:
    """Tell whether a document has too many parts, without decoding it."""
    plain = document.replace(rb"\\", b"").replace(rb"\"", b"")  # now `"` begins or ends a string
    parts = plain.split(b'"', 2 * _CROWD)
    return len(parts) > 2 * _CROWD or sum(part.count(b"{") for part in parts[::2]) > _CROWD


def _named(request: Request, form: Struct) -> tuple[str | None, str | None]:
    """The account and the queue that a request names: by its document, or else by its path.

    Raises:
        SqsError: it must name a queue and does not, or that is no name of one.
    """
    url, arn = getattr(form, "queue_url", None), getattr(form, "source_arn", None)
    if arn is not None:
        return _arn_parts(arn)
    if url:  # its host does not matter
        path = url.partition("://")[2].partition("/")[2]
    else:
        path = request.raw_path.decode("ascii", "replace")
    rest, _, last = path[-_LONGEST_PATH:].rstrip("/").rpartition("/")
    account: str | None = unquote(rest.rpartition("/")[2])
    name: str | None = unquote(last)
    if url is None:
        account = getattr(form, "queue_owner_account", None) or account or name
        name = getattr(form, "queue_name", None)
    elif not account:
        raise SqsError("InvalidAddress", "The URL names no queue.") if url else missing("QueueUrl")
    if name is not None and not is_queue_name(name):
        raise invalid("A queue's name has 1 to 64 letters, digits, '-', '_' and '.'.")
    return account or None, name


def _arn_parts(arn: str) -> tuple[str, str]:
    parts = arn.split(":", 4)
    account, _, name = parts[-1].rpartition(":")
    if len(parts) < 5 or (parts[0], parts[2]) != ("arn", "sqs") or not is_queue_name(name):
        raise invalid(f"Value {arn[:256]!r} is no ARN of a queue.")
    return account, name


def check_range(name: str, value: int, most: int, *, least: int = 0) -> None:
    """Refuse a parameter that is out of its range.

    Raises:
        SqsError: InvalidParameterValue.
    """
    if not least <= value <= most:
        raise invalid(f"Value {value} for parameter {name} must be between {least} and {most}.")
