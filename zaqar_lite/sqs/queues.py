"""Queues: make, find, list, delete, purge, and their attributes and tags.

An attribute that means something to the product is one of a queue's own (`_default_message_ttl`
and so on). What only SQS has, its tags among it, is kept in the queue's metadata under `_sqs`.
"""

import binascii
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from zaqar_lite.api.request import Response
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import dead_letter_target, is_queue_name
from zaqar_lite.domain.models import HONOUR_DELAYS, QueueRef
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.queues import Queues
from zaqar_lite.sqs.errors import SqsError, invalid, no_queue, unsupported
from zaqar_lite.sqs.protocol import Call, QueueForm, done, operation

OPTIONS = "_sqs"
"""The key of a queue's metadata that keeps what only SQS has."""
MAX_VISIBILITY = 43_200
MAX_WAIT = 20
MAX_RECEIVES = 1_000
MAX_RESULTS = 1_000
MAX_TAGS = 50
_RETENTION = 345_600
"""Seconds that messages of a queue live, of which nothing else is said."""
_MAX_CACHED = 10_000
_LONGEST_VALUE = 4_096
_CREATE = "_default_message_ttl"
_DELAY = "_default_message_delay"
_SIZE = "_max_messages_post_size"
_CLAIMS, _LETTERS = "_max_claim_count", "_dead_letter_queue"
_REDRIVE = "RedrivePolicy"
_KEPT = ("RedriveAllowPolicy", "SqsManagedSseEnabled")
"""Attributes that are kept and shown, and do nothing: clients set them by default."""
_REFUSED = ("Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds")
_FIFO = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
_COUNTS = {
    "ApproximateNumberOfMessages": "ready",
    "ApproximateNumberOfMessagesNotVisible": "claimed",
    "ApproximateNumberOfMessagesDelayed": "delayed",
}


class _Whole(NamedTuple):
    """An attribute that is a number: its bounds, and the key of the metadata that keeps it."""

    least: int
    most: int
    key: str = ""


_WHOLE = {
    "VisibilityTimeout": _Whole(0, MAX_VISIBILITY),
    "ReceiveMessageWaitTimeSeconds": _Whole(0, MAX_WAIT),
    "DelaySeconds": _Whole(0, 900, _DELAY),
    "MessageRetentionPeriod": _Whole(60, 1_209_600, _CREATE),
    "MaximumMessageSize": _Whole(1_024, 1_048_576, _SIZE),
}


class QueueOptions(Struct, omit_defaults=True):
    """What only SQS has of a queue; seconds, and instants in seconds since 1970."""

    visibility: int = 30
    wait: int = 0
    tags: dict[str, str] = {}
    kept: dict[str, str] = {}
    created: int = 0
    modified: int = 0


class _CreateQueue(Struct, rename="pascal"):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}


class _GetQueueUrl(Struct, rename="pascal"):
    queue_name: str
    queue_owner_account: str | None = msgspec.field(default=None, name="QueueOwnerAWSAccountId")


class _ListQueues(Struct, rename="pascal"):
    queue_name_prefix: str = ""
    max_results: int | None = None
    next_token: str | None = None


class _GetQueueAttributes(QueueForm):
    attribute_names: tuple[str, ...] = ()


class _SetQueueAttributes(QueueForm, kw_only=True):
    attributes: dict[str, str]


class _TagQueue(QueueForm, kw_only=True):
    tags: dict[str, str]


class _UntagQueue(QueueForm, kw_only=True):
    tag_keys: list[str]


class _ListSources(QueueForm):
    max_results: int | None = None
    next_token: str | None = None


@dataclass(eq=False, repr=False)
class QueueOperations:
    """The operations on queues as such."""

    queues: Queues
    authorizer: Authorizer
    limits: Limits

    def __post_init__(self) -> None:
        self._options: Cache[QueueRef, tuple[int, QueueOptions]] = Cache(_MAX_CACHED)

    async def options(self, queue: QueueRef) -> QueueOptions:
        """What only SQS has of a queue, kept by the version of the queue's record.

        Raises:
            SqsError: QueueDoesNotExist.
        """
        policy = await self.queues.policies.get(queue)
        if not policy.exists:
            raise no_queue()
        version, known = self._options.get(queue, (None, None))
        if known is not None and version == policy.version:
            return known
        options = options_of(await self._metadata(queue))
        if policy.version is not None:
            self._options[queue] = (policy.version, options)
        return options

    @operation("queues:create manage")
    async def create_queue(self, call: Call[_CreateQueue]) -> Response:
        """Create a queue; one with the same attributes is answered, and stays as it is."""
        form = call.form
        name, given = form.queue_name, form.attributes
        if name.endswith(".fifo") or given.get("FifoQueue") == "true":
            raise unsupported("FIFO queues are not supported: create a standard queue.")
        now = int(time.time())
        metadata = {
            _CREATE: min(_RETENTION, self.limits.max_message_ttl),
            _DELAY: 0,
            HONOUR_DELAYS: True,
        }
        options = QueueOptions(tags=_checked_tags(form.tags), created=now, modified=now)
        changed = await self._changed(call, {**metadata, OPTIONS: _as_document(options)}, given)
        try:
            created = await self.queues.create(call.queue, changed)
        except Invalid as exc:
            raise SqsError("InvalidAttributeValue", str(exc)) from None
        if not created:
            await self._check_same(call, given)
        return done({"QueueUrl": call.url(name)})

    async def _check_same(self, call: Call[_CreateQueue], given: Mapping[str, str]) -> None:
        """Refuse to create a queue that is there with other attributes than the given ones."""
        metadata = await self._metadata(call.queue)
        shown, wanted = self._shown(call, metadata), dict(given)
        if _REDRIVE in wanted:
            target, count = _redrive_policy(call, wanted[_REDRIVE])
            wanted[_REDRIVE] = _written_policy(call, target, count)
        for name, value in wanted.items():
            if value != shown.get(name, ""):
                raise SqsError(
                    "QueueNameExists",
                    "A queue already exists with the same name and a different value for "
                    f"attribute {name}",
                )

    @operation("queues:get read")
    async def get_queue_url(self, call: Call[_GetQueueUrl]) -> Response:
        """Show the URL of a queue."""
        await self._metadata(call.queue)
        return done({"QueueUrl": call.url(call.queue.name)})

    @operation("queues:get_all read")
    async def list_queues(self, call: Call[_ListQueues]) -> Response:
        """List the URLs of an account's queues, by name."""
        form = call.form
        most = _results(form.max_results)
        marker = _marker(form.next_token) or _before(form.queue_name_prefix)
        names: list[str] = []
        size = self.limits.max_queues_per_page
        while len(names) <= most:
            page = await self.queues.list_queues(
                call.account, marker=marker, limit=size, name_contains=None, metadata={}
            )
            found = [record.queue.name for record in page]
            names += [name for name in found if name.startswith(form.queue_name_prefix)]
            if len(found) < size or not found[-1].startswith(form.queue_name_prefix):
                break
            marker = found[-1]
        urls = [call.url(name) for name in names[:most]]
        document: dict[str, object] = {"QueueUrls": urls} if urls else {}
        if len(names) > most and form.max_results is not None:
            document["NextToken"] = _token(names[most - 1])
        return done(document)

    @operation("queues:delete manage")
    async def delete_queue(self, call: Call[QueueForm]) -> Response:
        """Delete a queue with all that it holds."""
        await self._metadata(call.queue)
        await self.queues.delete(call.queue)
        return done()

    @operation("queues:purge manage")
    async def purge_queue(self, call: Call[QueueForm]) -> Response:
        """Delete the messages of a queue."""
        await self._metadata(call.queue)
        await self.queues.purge(call.queue, ["messages"])
        return done()

    @operation("queues:get read")
    async def get_queue_attributes(self, call: Call[_GetQueueAttributes]) -> Response:
        """Show the attributes of a queue that are asked for."""
        names = call.form.attribute_names
        known = {*_WHOLE, *_COUNTS, *_KEPT, *_REFUSED, *_FIFO, _REDRIVE, "All", "QueueArn"}
        for name in names:
            if name not in known and name not in ("CreatedTimestamp", "LastModifiedTimestamp"):
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:256]}.")
        shown = self._shown(call, await self._metadata(call.queue))
        wants_all = "All" in names
        if wants_all or not _COUNTS.keys().isdisjoint(names):
            stats = await self.queues.stats(call.queue)
            shown |= {name: str(getattr(stats, state)) for name, state in _COUNTS.items()}
        found = {name: text for name, text in shown.items() if wants_all or name in names}
        return done({"Attributes": found} if found else {})

    @operation("queues:update manage")
    async def set_queue_attributes(self, call: Call[_SetQueueAttributes]) -> Response:
        """Change attributes of a queue."""
        given = call.form.attributes
        if given.get("FifoQueue") is not None:
            raise unsupported("FIFO queues are not supported.")
        changes = await self._changed(call, {}, given)
        options = changes.pop(OPTIONS, {})

        def change(old: dict[str, Any]) -> dict[str, Any]:
            kept = options_of(old)
            new = msgspec.convert({**_as_document(kept), **options}, QueueOptions)
            new.kept = {**kept.kept, **options.get("kept", {})}
            new.modified = int(time.time())
            return {**old, **changes, OPTIONS: _as_document(new)}

        try:
            await self.queues.change(call.queue, change)
        except Invalid as exc:
            raise SqsError("InvalidAttributeValue", str(exc)) from None
        return done()

    @operation("queues:update manage")
    async def tag_queue(self, call: Call[_TagQueue]) -> Response:
        """Add tags to a queue."""
        given = call.form.tags
        await self._change_tags(call, lambda tags: {**tags, **given})
        return done()

    @operation("queues:update manage")
    async def untag_queue(self, call: Call[_UntagQueue]) -> Response:
        """Take tags off a queue."""
        keys = frozenset(call.form.tag_keys)
        await self._change_tags(
            call, lambda tags: {key: tags[key] for key in tags if key not in keys}
        )
        return done()

    @operation("queues:get read")
    async def list_queue_tags(self, call: Call[QueueForm]) -> Response:
        """Show the tags of a queue."""
        tags = options_of(await self._metadata(call.queue)).tags
        return done({"Tags": tags} if tags else {})

    @operation("queues:get read")
    async def list_dead_letter_source_queues(self, call: Call[_ListSources]) -> Response:
        """List the URLs of the queues whose dead letters come to a queue."""
        form = call.form
        await self._metadata(call.queue)
        most, after = _results(form.max_results), _marker(form.next_token) or ""
        sources = await self.queues.dead_letter_sources(
            call.queue, limit=self.limits.max_queues_per_project
        )
        names = sorted(name for name in sources if name > after)
        document: dict[str, object] = {"queueUrls": [call.url(name) for name in names[:most]]}
        if len(names) > most:
            document["NextToken"] = _token(names[most - 1])
        return done(document)

    async def _metadata(self, queue: QueueRef) -> dict[str, Any]:
        metadata = await self.queues.stored_metadata(queue)
        if metadata is None:
            raise no_queue()
        return metadata

    async def _change_tags(
        self, call: Call[Any], change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        def changed(old: dict[str, Any]) -> dict[str, Any]:
            options = options_of(old)
            options.tags = _checked_tags(change(options.tags))
            return {**old, OPTIONS: _as_document(options)}

        await self.queues.change(call.queue, changed)

    async def _changed(
        self, call: Call[Any], metadata: dict[str, Any], given: Mapping[str, str]
    ) -> dict[str, Any]:
        """The metadata with the given attributes in them, each checked.

        Raises:
            SqsError: an attribute is unknown, refused or wrong, or a dead-letter queue is missing.
            Denied: the sender may not post to that.
        """
        options = dict(metadata.get(OPTIONS, {}))
        for name, text in given.items():
            if len(text) > _LONGEST_VALUE:
                raise _wrong(name, text)
            if (bounds := _WHOLE.get(name)) is not None:
                value = _whole(name, text, bounds)
                if bounds.key:
                    metadata[bounds.key] = value
                else:
                    options["visibility" if name == "VisibilityTimeout" else "wait"] = value
            elif name == _REDRIVE:
                target, count = _redrive_policy(call, text)
                metadata |= {_LETTERS: target, _CLAIMS: count}
            elif name in _KEPT:
                options["kept"] = {**options.get("kept", {}), name: text}
            elif name not in _REFUSED:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:256]}.")
            elif text:
                raise unsupported(f"The attribute {name} is not supported.")
        if options:
            metadata[OPTIONS] = options
        if (target := metadata.get(_LETTERS)) is not None:
            await self._check_letters(QueueRef(call.account, target))
        self.authorizer.check_metadata(call.request.principal, metadata)
        return metadata

    async def _check_letters(self, queue: QueueRef) -> None:
        if await self.queues.stored_metadata(queue) is None:
            raise SqsError(
                "InvalidAttributeValue", f"The dead-letter queue {queue.name} does not exist."
            )

    def _shown(self, call: Call[Any], metadata: Mapping[str, Any]) -> dict[str, str]:
        """All attributes of a queue but its counts."""
        options, limits = options_of(metadata), self.limits
        shown = {
            "QueueArn": call.arn(call.queue.name),
            "VisibilityTimeout": str(options.visibility),
            "ReceiveMessageWaitTimeSeconds": str(options.wait),
            "DelaySeconds": str(metadata.get(_DELAY) or 0),
            "MessageRetentionPeriod": str(metadata.get(_CREATE) or limits.default_message_ttl),
            "MaximumMessageSize": str(metadata.get(_SIZE) or limits.max_messages_post_size),
            "SqsManagedSseEnabled": "false",
            **options.kept,
        }
        if options.created:
            shown["CreatedTimestamp"] = str(options.created)
            shown["LastModifiedTimestamp"] = str(options.modified or options.created)
        target, count = dead_letter_target(metadata), metadata.get(_CLAIMS)
        if target is not None and count:
            shown[_REDRIVE] = _written_policy(call, target, count)
        return {name: text for name, text in shown.items() if text}


def options_of(metadata: Mapping[str, Any]) -> QueueOptions:
    """What only SQS has of a queue; the defaults where somebody else wrote something there."""
    try:
        return msgspec.convert(metadata.get(OPTIONS) or {}, QueueOptions)
    except msgspec.ValidationError:
        return QueueOptions()


def _as_document(options: QueueOptions) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(options)
    return document


def _whole(name: str, text: str, bounds: _Whole) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise _wrong(name, text)
    if not bounds.least <= (value := int(text)) <= bounds.most:
        raise _wrong(name, text)
    return value


def _wrong(name: str, text: str) -> SqsError:
    return SqsError(
        "InvalidAttributeValue", f"Invalid value {text[:256]!r} for the parameter {name[:256]}."
    )


class _RedrivePolicy(Struct, rename="camel"):
    """The attribute RedrivePolicy, which is JSON in a text."""

    dead_letter_target_arn: str
    max_receive_count: int


def _redrive_policy(call: Call[Any], text: str) -> tuple[str | None, int | None]:
    """The name of the dead-letter queue and the most receives; None and None for no policy."""
    if not text:
        return None, None
    try:
        policy = msgspec.json.decode(text, type=_RedrivePolicy, strict=False)
    except msgspec.DecodeError:
        raise _wrong(_REDRIVE, text) from None
    if not 1 <= policy.max_receive_count <= MAX_RECEIVES:
        raise _wrong(_REDRIVE, text)
    return call.named(policy.dead_letter_target_arn).name, policy.max_receive_count


def _written_policy(call: Call[Any], target: str | None, count: int | None) -> str:
    if target is None:
        return ""
    policy = {"deadLetterTargetArn": call.arn(target), "maxReceiveCount": count}
    return msgspec.json.encode(policy).decode()


def _checked_tags(tags: dict[str, str]) -> dict[str, str]:
    """Refuse more tags than a queue may have, or longer ones."""
    if len(tags) > MAX_TAGS:
        raise invalid(f"A queue has at most {MAX_TAGS} tags.")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise invalid("A tag has a key of 1 to 128 characters, and a value of up to 256.")
    return tags


def _results(asked: int | None) -> int:
    if asked is not None and not 1 <= asked <= MAX_RESULTS:
        raise invalid(f"MaxResults must be between 1 and {MAX_RESULTS}.")
    return asked or MAX_RESULTS


def _before(prefix: str) -> str | None:
    """A marker right before all names with this prefix: no name has a `~`, which sorts last."""
    return prefix[:-1] + chr(ord(prefix[-1]) - 1) + "~" if prefix.strip("\0") else None


def _token(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode()


def _marker(token: str | None) -> str | None:
    if not token:
        return None
    try:
        name = urlsafe_b64decode(token[:1_024]).decode()
    except (binascii.Error, ValueError):
        raise invalid("Invalid or expired next token.") from None
    if not is_queue_name(name):
        raise invalid("Invalid or expired next token.")
    return name
