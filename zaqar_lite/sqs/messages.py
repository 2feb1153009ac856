"""Messages: send, receive, delete, and how long they stay hidden; one by one or ten at once."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson
from msgspec import Struct

from zaqar_lite.api.long_polling import Polling
from zaqar_lite.api.request import Response
from zaqar_lite.domain.errors import Forbidden
from zaqar_lite.domain.limits import Limits
from zaqar_lite.domain.models import Message, QueueRef
from zaqar_lite.domain.settlements import Act, Outcome, Settlement
from zaqar_lite.service.claims import Claims
from zaqar_lite.service.messages import Messages
from zaqar_lite.service.post_validation import Draft
from zaqar_lite.sqs.attributes import (
    TRACE,
    TRACE_HEADER,
    Attribute,
    attributes_of,
    check_text,
    chosen,
    headers_of,
    md5_of,
    md5_of_attributes,
)
from zaqar_lite.sqs.errors import SqsError, invalid, missing, unsupported
from zaqar_lite.sqs.protocol import Call, QueueForm, done, operation
from zaqar_lite.sqs.queues import MAX_VISIBILITY, MAX_WAIT, QueueOperations
from zaqar_lite.sqs.receipts import Receipt, ReceiptKey

MAX_BATCH = 10
MAX_DELAY = 900
_GRACE_MS = 60_000
"""How much longer than its lease a message lives at least."""
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIRST_RECEIVE = "ApproximateFirstReceiveTimestamp"
_SYSTEM = frozenset(
    (
        *("All", "SenderId", "SentTimestamp", "ApproximateReceiveCount", _FIRST_RECEIVE, TRACE),
        *("DeadLetterQueueSourceArn", "SequenceNumber", "MessageGroupId"),
        "MessageDeduplicationId",
    )
)


class _Sent(Struct, rename="pascal", kw_only=True):
    """A message as it is sent."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, Attribute] = {}
    message_system_attributes: dict[str, Attribute] = {}
    message_group_id: str | None = None
    message_deduplication_id: str | None = None


class _SendMessage(_Sent, kw_only=True):
    queue_url: str = ""


class _Entry(Struct, rename="pascal", kw_only=True):
    """An entry of a batch."""

    id: str


class _SentEntry(_Sent, kw_only=True):
    id: str


class _SendBatch(QueueForm, kw_only=True):
    entries: list[_SentEntry]


class _ReceiveMessage(QueueForm, kw_only=True):
    attribute_names: tuple[str, ...] = ()
    message_system_attribute_names: tuple[str, ...] = ()
    message_attribute_names: tuple[str, ...] = ()
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class _DeleteMessage(QueueForm, kw_only=True):
    receipt_handle: str


class _DeletedEntry(_Entry, kw_only=True):
    receipt_handle: str


class _DeleteBatch(QueueForm, kw_only=True):
    entries: list[_DeletedEntry]


class _ChangeVisibility(QueueForm, kw_only=True):
    receipt_handle: str
    visibility_timeout: int


class _ChangedEntry(_Entry, kw_only=True):
    receipt_handle: str
    visibility_timeout: int = 0


class _ChangeBatch(QueueForm, kw_only=True):
    entries: list[_ChangedEntry]


class _Identified(Protocol):
    id: str


E = TypeVar("E", bound=_Identified)
R = TypeVar("R", _DeletedEntry, _ChangedEntry)


@dataclass(eq=False, repr=False)
class MessageOperations:
    """The operations on messages. The shortest lease of `claims` is a second."""

    messages: Messages
    claims: Claims
    polling: Polling
    queues: QueueOperations
    receipt_key: ReceiptKey
    limits: Limits

    @operation("messages:create send", hot=True)
    async def send_message(self, call: Call[_SendMessage]) -> Response:
        """Send a message."""
        await self.queues.options(call.queue)
        most = await self._largest(call.queue)
        draft, size = self._draft(call.form, most)
        (message_id,) = await self._post(call, [draft], size)
        return done(_receipt_of_sent(call.form, message_id))

    @operation("messages:create send", hot=True)
    async def send_message_batch(self, call: Call[_SendBatch]) -> Response:
        """Send up to ten messages."""
        entries = _checked_batch(call.form.entries)
        await self.queues.options(call.queue)
        most = await self._largest(call.queue)
        failed, drafts, sent, sizes = [], [], [], []
        for entry in entries:
            try:
                draft, size = self._draft(entry, most)
            except SqsError as error:
                failed.append(error.in_batch(entry.id))
            else:
                drafts.append(draft)
                sizes.append(size)
                sent.append(entry)
        if sum(sizes) > self.limits.max_messages_post_size:
            raise SqsError(
                "BatchRequestTooLong",
                "Batch requests cannot be longer than "
                f"{self.limits.max_messages_post_size} bytes. You have sent {sum(sizes)} bytes.",
            )
        ids = await self._post(call, drafts, max(sizes)) if drafts else ()
        successful = [
            {"Id": entry.id, **_receipt_of_sent(entry, message_id)}
            for entry, message_id in zip(sent, ids, strict=True)
        ]
        return _outcomes(successful, failed)

    async def _largest(self, queue: QueueRef) -> int:
        policy = await self.queues.queues.policies.get(queue)
        return policy.max_post_size

    async def _post(self, call: Call[Any], drafts: Sequence[Draft], size: int) -> Sequence[str]:
        posted = await self.messages.post(
            call.queue, drafts, size=size, client_id=call.request.client_id, lazily=False
        )
        return [one.id for one in posted.posted]

    def _draft(self, sent: _Sent, most: int) -> tuple[Draft, int]:
        """A message as the services take it, and its size in bytes.

        Raises:
            SqsError: the message breaks a rule.
        """
        if sent.message_group_id is not None or sent.message_deduplication_id is not None:
            raise unsupported(
                "MessageGroupId and MessageDeduplicationId are of FIFO queues, which are not "
                "supported."
            )
        if not sent.message_body:
            raise missing("MessageBody")
        check_text(sent.message_body)
        if sent.delay_seconds is not None:
            _check_range("DelaySeconds", sent.delay_seconds, MAX_DELAY)
        headers = headers_of(sent.message_attributes, sent.message_system_attributes)
        size = len(sent.message_body.encode())
        if headers is not None:
            bytes_of = sum(len(name.encode()) + len(headers[name].encode()) for name in headers)
            size += bytes_of
            if bytes_of > (fits := self.limits.max_message_headers_size):
                raise invalid(f"The attributes have {bytes_of} bytes; {fits} are allowed.")
        if size > most:
            raise invalid(
                f"One or more parameters are invalid. Reason: Message must be shorter than {most} "
                "bytes."
            )
        return Draft(orjson.dumps(sent.message_body), None, sent.delay_seconds, None, headers), size

    @operation("claims:create receive", hot=True)
    async def receive_message(self, call: Call[_ReceiveMessage]) -> Response:
        """Receive up to ten messages, or wait for some."""
        form, queue = call.form, call.queue
        _check_range("MaxNumberOfMessages", form.max_number_of_messages, MAX_BATCH, least=1)
        system = frozenset((*form.attribute_names, *form.message_system_attribute_names))
        if not system <= _SYSTEM:
            name = min(system - _SYSTEM)[:256]
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        options = await self.queues.options(queue)
        visible = options.visibility if form.visibility_timeout is None else form.visibility_timeout
        wait = options.wait if form.wait_time_seconds is None else form.wait_time_seconds
        _check_range("VisibilityTimeout", visible, MAX_VISIBILITY)
        _check_range("WaitTimeSeconds", wait, MAX_WAIT)

        async def ask() -> tuple[str, Sequence[Message]] | None:
            return await self.claims.create(
                queue,
                limit=min(form.max_number_of_messages, self.limits.claim(large=True)),
                ttl=max(visible, self.claims.shortest),
                grace=None,
                client_id=call.request.client_id,
                details="All" in system or _FIRST_RECEIVE in system,
                large=True,
            )

        async def undo(claimed: tuple[str, Sequence[Message]]) -> None:
            await self.claims.release(queue, claimed[0])

        claimed = await self.polling.ask(
            call.request, queue, min(wait, self.polling.longest), ask, undo=undo
        )
        if claimed is None:
            return done()
        if not visible:
            await undo(claimed)
        receipts = await self.receipt_key.receipts()
        claim_id, found = claimed
        shown = []
        for message in found:
            shown.append(self._shown(call, message, system))
            shown[-1]["ReceiptHandle"] = receipts.sign(queue, message.id, claim_id)
        return done({"Messages": shown}, undo=partial(undo, claimed))

    def _shown(
        self, call: Call[_ReceiveMessage], message: Message, system: frozenset[str]
    ) -> dict[str, Any]:
        """A message as its receiver sees it; without attributes, there is no word of them."""
        body = text_of(message.body)
        shown: dict[str, Any] = {"MessageId": message.id, "Body": body, "MD5OfBody": md5_of(body)}
        if system:
            known = _system_attributes(call, message)
            asked = {name: known[name] for name in known if name in system or "All" in system}
            if asked:
                shown["Attributes"] = asked
        if message.headers and call.form.message_attribute_names:
            found = chosen(attributes_of(message.headers), call.form.message_attribute_names)
            if found:
                shown["MessageAttributes"] = found
                shown["MD5OfMessageAttributes"] = md5_of_attributes(found)
        return shown

    @operation("messages:delete receive", hot=True)
    async def delete_message(self, call: Call[_DeleteMessage]) -> Response:
        """Delete a message that was received."""
        await self.queues.options(call.queue)
        receipts = await self.receipt_key.receipts()
        await self._delete(call.queue, [receipts.read(call.queue, call.form.receipt_handle)])
        return done()

    @operation("messages:delete receive", hot=True)
    async def delete_message_batch(self, call: Call[_DeleteBatch]) -> Response:
        """Delete up to ten messages that were received."""

        async def delete(receipts: Sequence[Receipt], _: object) -> list[SqsError | None]:
            await self._delete(call.queue, receipts)
            return [None] * len(receipts)

        return await self._batch(call, call.form.entries, delete)

    async def _delete(self, queue: QueueRef, receipts: Sequence[Receipt]) -> None:
        """Delete what the claims hold, and what nobody holds any more.

        A message whose lease has lapsed may be held by another receiver: it stays then.
        """
        acks = [Settlement(message_id, Act.ACK) for message_id, _ in receipts]
        outcomes = await self._settle(queue, receipts, acks)
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if outcome is Outcome.LAPSED:
                try:
                    await self.messages.delete(queue, receipt.message_id, None)
                except Forbidden:
                    continue

    @operation("claims:settle receive", hot=True)
    async def change_message_visibility(self, call: Call[_ChangeVisibility]) -> Response:
        """Hide a message that was received for longer, or for less long."""
        form = call.form
        await self.queues.options(call.queue)
        _check_range("VisibilityTimeout", form.visibility_timeout, MAX_VISIBILITY)
        receipts = await self.receipt_key.receipts()
        receipt = receipts.read(call.queue, form.receipt_handle)
        settlement = _change_of(receipt, form.visibility_timeout)
        (outcome,) = await self._settle(call.queue, [receipt], [settlement])
        if (error := _not_changed(outcome)) is not None:
            raise error
        return done()

    @operation("claims:settle receive", hot=True)
    async def change_message_visibility_batch(self, call: Call[_ChangeBatch]) -> Response:
        """Hide up to ten messages that were received for longer, or for less long."""

        async def change(
            receipts: Sequence[Receipt], entries: Sequence[_ChangedEntry]
        ) -> list[SqsError | None]:
            acts = [
                _change_of(receipt, entry.visibility_timeout)
                for receipt, entry in zip(receipts, entries, strict=True)
            ]
            return list(map(_not_changed, await self._settle(call.queue, receipts, acts)))

        return await self._batch(call, call.form.entries, change)

    async def _batch(
        self,
        call: Call[Any],
        given: Sequence[R],
        act: Callable[[Sequence[Receipt], Sequence[R]], Awaitable[Sequence[SqsError | None]]],
    ) -> Response:
        """Act on the entries of a batch that are in order; answer an outcome for each."""
        entries = _checked_batch(given)
        await self.queues.options(call.queue)
        receipts = await self.receipt_key.receipts()
        good, read, failed = [], [], []
        for entry in entries:
            try:
                hidden = getattr(entry, "visibility_timeout", 0)
                _check_range("VisibilityTimeout", hidden, MAX_VISIBILITY)
                read.append(receipts.read(call.queue, entry.receipt_handle))
                good.append(entry)
            except SqsError as error:
                failed.append(error.in_batch(entry.id))
        successful = []
        if good:
            for entry, why in zip(good, await act(read, good), strict=True):
                if why is None:
                    successful.append({"Id": entry.id})
                else:
                    failed.append(why.in_batch(entry.id))
        return _outcomes(successful, failed)

    async def _settle(
        self, queue: QueueRef, receipts: Sequence[Receipt], acts: Sequence[Settlement]
    ) -> Sequence[Outcome]:
        """Settle messages, those of each claim at once; answer an outcome for each.

        A message that is named twice is settled once.
        """
        found: dict[Receipt, Outcome] = {}
        by_claim: dict[str, dict[str, Settlement]] = {}
        for receipt, act in zip(receipts, acts, strict=True):
            by_claim.setdefault(receipt.claim_id, {})[receipt.message_id] = act
        for claim_id, settlements in by_claim.items():
            outcomes = await self.claims.settle(queue, claim_id, list(settlements.values()))
            for message_id, outcome in zip(settlements, outcomes, strict=True):
                found[Receipt(message_id, claim_id)] = outcome
        return [found[receipt] for receipt in receipts]


def text_of(body: bytes) -> str:
    """The body of a message as a text: what a JSON string says, or else the JSON itself."""
    return str(orjson.loads(body)) if body[:1] == b'"' else body.decode()


def _receipt_of_sent(sent: _Sent, message_id: str) -> dict[str, Any]:
    """What the sender of a message learns; without attributes, there is no word of them."""
    shown = {"MessageId": message_id, "MD5OfMessageBody": md5_of(sent.message_body)}
    for name, attributes in (
        ("MD5OfMessageAttributes", sent.message_attributes),
        ("MD5OfMessageSystemAttributes", sent.message_system_attributes),
    ):
        if attributes:
            shown[name] = md5_of_attributes({key: _as_sent(attributes[key]) for key in attributes})
    return shown


def _as_sent(attribute: Attribute) -> Mapping[str, str]:
    return {
        "DataType": attribute.data_type,
        "StringValue": attribute.string_value or "",
        "BinaryValue": attribute.binary_value or "",
    }


def _system_attributes(call: Call[Any], message: Message) -> dict[str, str]:
    first = message.attempts[0].claimed_at if message.attempts else message.now
    shown = {
        "SenderId": message.client_id or "",
        "SentTimestamp": str(message.created_at),
        "ApproximateReceiveCount": str(message.claim_count),
        _FIRST_RECEIVE: str(first),
        TRACE: (message.headers or {}).get(TRACE_HEADER, ""),
    }
    if message.origin is not None:
        shown["DeadLetterQueueSourceArn"] = call.arn(message.origin.source)
    return {name: text for name, text in shown.items() if text}


def _change_of(receipt: Receipt, seconds: int) -> Settlement:
    """Hold a message for so many seconds from now; 0 gives it back."""
    if not seconds:
        return Settlement(receipt.message_id, Act.RELEASE, delay_ms=0)
    return Settlement(receipt.message_id, Act.EXTEND, ttl_ms=seconds * 1000, grace_ms=_GRACE_MS)


def _not_changed(outcome: Outcome) -> SqsError | None:
    match outcome:
        case Outcome.LAPSED:
            return SqsError("MessageNotInflight", "The message is not in flight.")
        case Outcome.NOT_FOUND | Outcome.HELD:
            return invalid(
                "Value for parameter ReceiptHandle is invalid. Reason: Message does not exist or "
                "is not available for visibility timeout change."
            )
    return None


def _outcomes(successful: Sequence[object], failed: Sequence[object]) -> Response:
    """Answer a batch; as SQS does, without a word of outcomes that no entry had."""
    found = {"Successful": successful, "Failed": failed}
    return done({name: entries for name, entries in found.items() if entries})


def _check_range(name: str, value: int, most: int, *, least: int = 0) -> None:
    if not least <= value <= most:
        raise invalid(
            f"Value {value} for parameter {name} is invalid. Reason: Must be between {least} and "
            f"{most}, if provided."
        )


def _checked_batch(entries: Sequence[E]) -> Sequence[E]:
    """Refuse a batch that is wrong as a whole."""
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > MAX_BATCH:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MAX_BATCH}. You have sent {len(entries)}.",
        )
    ids = [entry.id for entry in entries]
    for one in ids:
        if _ENTRY_ID.fullmatch(one) is None:
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long.",
            )
        if ids.count(one) > 1:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {one} repeated.")
    return entries
