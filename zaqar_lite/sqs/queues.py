"""Queues: make, find, list, delete, purge, and their attributes and tags.

An attribute that means something to the product is one of a queue's own (`_default_message_ttl`
and so on). What only SQS has, its tags among it, is kept in the queue's metadata under `_sqs`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from zaqar_lite.api.request import Response
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.metadata import dead_letter_target, is_queue_name
from zaqar_lite.domain.models import HONOUR_DELAYS, QueueRef
from zaqar_lite.service.caching import Cache
from zaqar_lite.service.identity.authorization import Authorizer
from zaqar_lite.service.queues import Queues
from zaqar_lite.sqs.errors import SqsError, invalid, no_queue, unsupported
from zaqar_lite.sqs.protocol import Call, QueueForm, check_range, done, operation

OPTIONS = "_sqs"
"""The key of a queue's metadata that keeps what only SQS has."""
MAX_VISIBILITY = 43_200
MAX_WAIT = 20
VISIBILITY = 30
"""Seconds for which a received message is hidden where nobody says anything else."""
MAX_RESULTS = 1_000
MAX_TAGS = 50
_MAX_CACHED = 10_000
_LETTERS, _CLAIMS = "_dead_letter_queue", "_max_claim_count"
_REDRIVE = "RedrivePolicy"
_PRODUCT = {
    "DelaySeconds": "_default_message_delay",
    "MaximumMessageSize": "_max_messages_post_size",
    "MessageRetentionPeriod": "_default_message_ttl",
}
"""The attributes that are the product's own, and its keys of them."""
_RETENTION = 345_600
"""Seconds that messages live of a queue that says nothing else."""
_REFUSED = ("Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds")
_COUNTS = {
    "ApproximateNumberOfMessages": "ready",
    "ApproximateNumberOfMessagesNotVisible": "claimed",
    "ApproximateNumberOfMessagesDelayed": "delayed",
}
_Text = Annotated[str, Meta(max_length=4_096)]


class QueueAttributes(Struct, rename="pascal", omit_defaults=True):
    """The attributes of a queue that can be set; None where nothing is said of one.

    The last two do nothing: clients set them by default.
    """

    visibility_timeout: Annotated[int, Meta(ge=0, le=MAX_VISIBILITY)] | None = None
    receive_message_wait_time_seconds: Annotated[int, Meta(ge=0, le=MAX_WAIT)] | None = None
    delay_seconds: Annotated[int, Meta(ge=0, le=900)] | None = None
    maximum_message_size: Annotated[int, Meta(ge=1_024, le=1_048_576)] | None = None
    message_retention_period: Annotated[int, Meta(ge=60, le=1_209_600)] | None = None
    redrive_policy: _Text | None = None
    redrive_allow_policy: _Text | None = None
    sqs_managed_sse_enabled: _Text | None = None


_SHOWN = ("All", "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", "FifoQueue")
_KNOWN = frozenset((*QueueAttributes.__struct_encode_fields__, *_COUNTS, *_REFUSED, *_SHOWN))


class _Kept(QueueAttributes):
    """What is kept of a queue under `_sqs`; instants in seconds since 1970."""

    created_timestamp: int | None = None
    last_modified_timestamp: int | None = None
    tags: dict[str, str] = {}


class _RedrivePolicy(Struct, rename="camel"):
    """The attribute RedrivePolicy, which is JSON in a text."""

    dead_letter_target_arn: str
    max_receive_count: Annotated[int, Meta(ge=1, le=1_000)]


class _CreateQueue(Struct, rename="pascal"):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(default_factory=dict, name="tags")


class _GetQueueUrl(Struct, rename="pascal"):
    queue_name: str
    queue_owner_account: str | None = field(default=None, name="QueueOwnerAWSAccountId")


class _ListQueues(Struct, rename="pascal"):
    queue_name_prefix: str = ""
    max_results: int | None = None
    next_token: str | None = None


class _AboutQueue(QueueForm):
    """What is asked, or is to be changed, of a queue."""

    attribute_names: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    tag_keys: frozenset[str] = frozenset()
    max_results: int | None = None
    next_token: str | None = None


@dataclass(eq=False, repr=False)
class QueueOperations:
    """The operations on queues as such."""

    queues: Queues
    authorizer: Authorizer
    limits: Limits

    def __post_init__(self) -> None:
        self._kept: Cache[tuple[QueueRef, int | None], QueueAttributes] = Cache(_MAX_CACHED)

    async def attributes(self, queue: QueueRef) -> QueueAttributes:
        """What only SQS has of a queue, cached by the version of the queue's record.

        Raises:
            SqsError: QueueDoesNotExist.
        """
        policy = await self.queues.policies.get(queue)
        if not policy.exists:
            raise no_queue()
        if (known := self._kept.get((queue, policy.version))) is None:
            known = _kept(await self._metadata(queue))
            if policy.version is not None:
                self._kept[queue, policy.version] = known
        return known

    @operation("queues:create manage")
    async def create_queue(self, call: Call[_CreateQueue]) -> Response:
        """Create a queue; one with the same attributes is answered, and stays as it is."""
        form, now = call.form, int(time.time())
        if form.queue_name.endswith(".fifo"):
            raise unsupported("FIFO queues are not supported: create a standard queue.")
        changes, given = await self._read(call, form.attributes)
        kept = _Kept(tags=form.tags, created_timestamp=now, last_modified_timestamp=now)
        metadata = {
            "_default_message_ttl": min(_RETENTION, self.limits.max_message_ttl),
            "_default_message_delay": 0,
            HONOUR_DELAYS: True,
            **changes,
            OPTIONS: _merged(kept, given),
        }
        if not await self.queues.create(call.queue, metadata):
            old = await self._metadata(call.queue)
            shown = self._shown(call, {**old, **changes, OPTIONS: _merged(_kept(old), given)})
            if differing := shown.items() ^ self._shown(call, old).items():
                text = f"The queue exists with another value of the attribute {min(differing)[0]}."
                raise SqsError("QueueNameExists", text)
        return done({"QueueUrl": call.url(call.queue.name)})

    @operation("queues:get read")
    async def get_queue_url(self, call: Call[_GetQueueUrl]) -> Response:
        """Show the URL of a queue."""
        await self._metadata(call.queue)
        return done({"QueueUrl": call.url(call.queue.name)})

    @operation("queues:get_all read")
    async def list_queues(self, call: Call[_ListQueues]) -> Response:
        """List the URLs of an account's queues, by name."""
        prefix, most = call.form.queue_name_prefix, _results(call.form.max_results)
        if prefix.strip(".") and not is_queue_name(prefix):
            return done()  # no name begins with it
        # No name has a `~`, which sorts last: this is right before all names with the prefix.
        before = prefix[:-1] + chr(ord(prefix[-1]) - 1) + "~" if prefix else None
        marker = _marker(call) or before
        names: list[str] = []
        size = self.limits.max_queues_per_page
        while len(names) <= most:
            page = await self.queues.list_queues(
                call.queue.project, marker=marker, limit=size, name_contains=None, metadata={}
            )
            found = [name for record in page if (name := record.queue.name).startswith(prefix)]
            names += found
            if len(found) < size:
                break
            marker = found[-1]
        return done(_page("QueueUrls", call, names, most) if names else {})

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
    async def get_queue_attributes(self, call: Call[_AboutQueue]) -> Response:
        """Show the attributes of a queue that are asked for."""
        names = frozenset(call.form.attribute_names)
        if unknown := names - _KNOWN:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {min(unknown)[:256]}.")
        shown = self._shown(call, await self._metadata(call.queue))
        wants_all = "All" in names
        if wants_all or not names.isdisjoint(_COUNTS):
            stats = await self.queues.stats(call.queue)
            shown |= {name: str(getattr(stats, state)) for name, state in _COUNTS.items()}
        found = {name: text for name, text in shown.items() if wants_all or name in names}
        return done({"Attributes": found} if found else {})

    @operation("queues:update manage")
    async def set_queue_attributes(self, call: Call[_AboutQueue]) -> Response:
        """Change attributes of a queue."""
        changes, given = await self._read(call, call.form.attributes)
        given["LastModifiedTimestamp"] = int(time.time())
        await self.queues.change(
            call.queue, lambda old: {**old, **changes, OPTIONS: _merged(_kept(old), given)}
        )
        return done()

    @operation("queues:update manage")
    async def tag_queue(self, call: Call[_AboutQueue]) -> Response:
        """Add tags to a queue."""
        return await self._change_tags(call, lambda tags: {**tags, **call.form.tags})

    @operation("queues:update manage")
    async def untag_queue(self, call: Call[_AboutQueue]) -> Response:
        """Take tags off a queue."""
        gone = call.form.tag_keys
        return await self._change_tags(
            call, lambda tags: {key: tags[key] for key in tags if key not in gone}
        )

    @operation("queues:get read")
    async def list_queue_tags(self, call: Call[QueueForm]) -> Response:
        """Show the tags of a queue."""
        tags = _kept(await self._metadata(call.queue)).tags
        return done({"Tags": tags} if tags else {})

    @operation("queues:get read")
    async def list_dead_letter_source_queues(self, call: Call[_AboutQueue]) -> Response:
        """List the URLs of the queues whose dead letters come to a queue."""
        await self._metadata(call.queue)
        most, after = _results(call.form.max_results), _marker(call)
        limit = self.limits.max_queues_per_project
        sources = await self.queues.dead_letter_sources(call.queue, limit=limit)
        names = sorted(name for name in sources if name > after)
        return done(_page("queueUrls", call, names, most))

    async def _metadata(self, queue: QueueRef) -> dict[str, Any]:
        metadata = await self.queues.stored_metadata(queue)
        if metadata is None:
            raise no_queue()
        return metadata

    async def _change_tags(
        self, call: Call[Any], change: Callable[[dict[str, str]], dict[str, str]]
    ) -> Response:
        def changed(old: dict[str, Any]) -> dict[str, Any]:
            kept = _kept(old)
            return {**old, OPTIONS: _merged(kept, {"Tags": change(kept.tags)})}

        await self.queues.change(call.queue, changed)
        return done()

    async def _read(
        self, call: Call[Any], given: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read attributes: the product's own as metadata, and those that only SQS has.

        Raises:
            SqsError: an attribute is unknown, refused or wrong, or a dead-letter queue is missing.
            Denied: the sender may not post to that.
        """
        for name in given:
            if name in _REFUSED and not given[name]:
                continue
            if name in _REFUSED or (name, given[name]) == ("FifoQueue", "true"):
                raise unsupported(f"The attribute {name} is not supported.")
            if name not in QueueAttributes.__struct_encode_fields__:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:256]}.")
        try:
            read = msgspec.convert(given, QueueAttributes, strict=False)
            policy = None
            if read.redrive_policy:
                policy = msgspec.json.decode(read.redrive_policy, type=_RedrivePolicy, strict=False)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise SqsError("InvalidAttributeValue", f"An attribute is wrong: {exc}.") from None
        others = msgspec.to_builtins(read)
        own = {key: others.pop(name) for name, key in _PRODUCT.items() if name in others}
        if others.pop(_REDRIVE, None) is not None:
            own |= {_LETTERS: None, _CLAIMS: None}
        if policy is not None:
            target = call.named(policy.dead_letter_target_arn)
            self.authorizer.check_metadata(call.request.principal, {_LETTERS: target.name})
            if target == call.queue or await self.queues.stored_metadata(target) is None:
                text = f"The dead-letter queue {target.name} must exist, and be another queue."
                raise SqsError("InvalidAttributeValue", text)
            own |= {_LETTERS: target.name, _CLAIMS: policy.max_receive_count}
        return own, others

    def _shown(self, call: Call[Any], metadata: Mapping[str, Any]) -> dict[str, str]:
        """All attributes of a queue but its counts, without those that are empty."""
        limits = self.limits
        shown = {
            "QueueArn": call.arn(call.queue.name),
            "VisibilityTimeout": VISIBILITY,
            "ReceiveMessageWaitTimeSeconds": 0,
            "SqsManagedSseEnabled": "false",
            **msgspec.to_builtins(_kept(metadata)),
            "DelaySeconds": 0,
            "MaximumMessageSize": limits.max_messages_post_size,
            "MessageRetentionPeriod": limits.default_message_ttl,
            **{name: metadata[key] for name, key in _PRODUCT.items() if metadata.get(key)},
        }
        shown.pop("Tags", None)
        target, count = dead_letter_target(metadata), metadata.get(_CLAIMS)
        if target is not None and count:
            policy = {"deadLetterTargetArn": call.arn(target), "maxReceiveCount": count}
            shown[_REDRIVE] = msgspec.json.encode(policy).decode()
        return {name: str(value) for name, value in shown.items() if value != ""}


def _kept(metadata: Mapping[str, Any]) -> _Kept:
    """What only SQS has of a queue; nothing where somebody else wrote something there."""
    try:
        return msgspec.convert(metadata.get(OPTIONS) or {}, _Kept)
    except msgspec.ValidationError:
        return _Kept()


def _merged(kept: _Kept, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a queue with changes, as it is written.

    Raises:
        SqsError: there are too many tags then, or one is too long.
    """
    document: dict[str, Any] = {**msgspec.to_builtins(kept), **changes}
    tags = document.get("Tags", {})
    too_long = any(not 1 <= len(key) <= 128 or len(tags[key]) > 256 for key in tags)
    if too_long or len(tags) > MAX_TAGS:
        raise invalid(f"A queue has up to {MAX_TAGS} tags: 1 to 128 characters, and up to 256.")
    return document


def _results(asked: int | None) -> int:
    check_range("MaxResults", MAX_RESULTS if asked is None else asked, MAX_RESULTS, least=1)
    return asked or MAX_RESULTS


def _page(key: str, call: Call[Any], names: list[str], most: int) -> dict[str, object]:
    """A page of queues' URLs, and a token for the next one where there are more."""
    document: dict[str, object] = {key: [call.url(name) for name in names[:most]]}
    if len(names) > most:
        document["NextToken"] = _token(call, names[most - 1])
    return document


def _token(call: Call[Any], name: str) -> str:
    listing = ascii((call.queue, getattr(call.form, "queue_name_prefix", None), name))
    return f"{name}.{blake2b(listing.encode(), digest_size=8).hexdigest()}"


def _marker(call: Call[Any]) -> str:
    """The name after which a page begins, by a token that the same listing has given."""
    token = call.form.next_token or ""
    name = token.rpartition(".")[0]
    if token and token != _token(call, name):
        raise invalid("Invalid or expired next token.")
    return name
