"""Messages: send, receive, delete, and how long they stay hidden; one by one or ten at once.

What is done to one message is done as in a batch of one, of which the only outcome is answered.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import orjson

from zaqar_lite.api.long_polling import Polling
from zaqar_lite.api.request import Response
from zaqar_lite.domain.errors import Forbidden, Unavailable
from zaqar_lite.domain.groups import group_of
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
    headers_of,
    md5_of,
    md5_of_attributes,
)
from zaqar_lite.sqs.errors import SqsError, invalid, missing, no_queue, translated, unsupported
from zaqar_lite.sqs.protocol import Call, QueueForm, check_range, done, operation
from zaqar_lite.sqs.queues import MAX_VISIBILITY, MAX_WAIT, VISIBILITY, QueueOperations
from zaqar_lite.sqs.receipts import Receipt, Receipts

MAX_BATCH = 10
MAX_DELAY = 900
_GRACE_MS = 60_000
"""How much longer than its lease a message lives at least."""
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIRST_RECEIVE, _GROUP = "ApproximateFirstReceiveTimestamp", "MessageGroupId"
_ALL = {"All", "ALL"}
_SYSTEM = frozenset(
    f"SenderId SentTimestamp ApproximateReceiveCount {_FIRST_RECEIVE} {TRACE} {_GROUP} "
    "DeadLetterQueueSourceArn SequenceNumber MessageDeduplicationId".split()
)


class _Sent(QueueForm):
    """A message as it is sent; or, under an id each, the `entries` of a batch."""

    id: str = ""
    message_body: str = ""
    delay_seconds: int | None = None
    message_attributes: dict[str, Attribute] | None = None
    message_system_attributes: dict[str, Attribute] | None = None
    message_group_id: str | None = None
    message_deduplication_id: str | None = None
    entries: "tuple[_Sent, ...]" = ()


class _Held(QueueForm):
    """A message that was received, and for how long it is to be hidden; or `entries` of these."""

    id: str = ""
    receipt_handle: str = ""
    visibility_timeout: int | None = None
    entries: "tuple[_Held, ...]" = ()


class _ReceiveMessage(QueueForm):
    attribute_names: tuple[str, ...] = ()
    message_system_attribute_names: tuple[str, ...] = ()
    message_attribute_names: tuple[str, ...] = ()
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None


Outcomes = Sequence[Mapping[str, Any] | SqsError]
"""What became of the entries of a batch, in their order: what is answered, or the error."""


@dataclass(eq=False, repr=False)
class MessageOperations:
    """The operations on messages. The shortest lease of `claims` is a second."""

    messages: Messages
    claims: Claims
    polling: Polling
    queues: QueueOperations
    receipts: Receipts
    limits: Limits

    @operation("messages:create send", hot=True, name="send_message_batch")
    @operation("messages:create send", hot=True)
    async def send_message(self, call: Call[_Sent]) -> Response:
        """Send a message, or up to ten."""
        return await _each(call, self._send)

    async def _send(self, call: Call[Any], entries: Sequence[_Sent]) -> Outcomes:
        """Post the messages that are in order, all at once."""
        policies = self.queues.queues.policies
        policy = await policies.get(call.queue)
        if not policy.exists:
            raise no_queue()
        outcomes: list[dict[str, Any] | SqsError] = []
        drafts, sizes = [], []
        for entry in entries:
            try:
                draft, size = self._draft(entry)
                if size > policy.max_post_size:  # another server may have changed that
                    policy = await policies.fresh(call.queue)
                if size > (fits := policy.max_post_size):
                    raise invalid(f"The message has {size} bytes; {fits} are allowed.")
            except SqsError as error:
                outcomes.append(error)
            else:
                drafts.append(draft)
                sizes.append(size)
                outcomes.append(_checksums(entry))
        if (total := sum(sizes)) > (most := self.limits.max_messages_post_size):
            text = f"A batch has up to {most} bytes; this one has {total}."
            raise SqsError("BatchRequestTooLong", text)
        if drafts:
            receipt = await self.messages.post(
                call.queue, drafts, size=max(sizes), client_id=call.request.client_id, lazily=False
            )
            posted = iter(receipt.posted)
            for outcome in outcomes:
                if isinstance(outcome, dict):
                    outcome["MessageId"] = next(posted).id
        return outcomes

    def _draft(self, sent: _Sent) -> tuple[Draft, int]:
        """A message as the services take it, and its size in bytes.

        Raises:
            SqsError: the message breaks a rule.
        """
        text, delay = sent.message_body, sent.delay_seconds
        if sent.message_deduplication_id is not None:
            raise unsupported("MessageDeduplicationId is of FIFO queues, which are not supported.")
        if not text:
            raise missing("MessageBody")
        check_text(text)
        if delay is not None:
            check_range("DelaySeconds", delay, MAX_DELAY)
        system, size = sent.message_system_attributes, len(text.encode())
        headers = headers_of(sent.message_attributes, system, sent.message_group_id)
        if headers is not None:
            taken = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
            if taken > (fits := self.limits.max_message_headers_size):
                raise invalid(f"The attributes have {taken} bytes; {fits} are allowed.")
            size += taken
        return Draft(orjson.dumps(text), delay=delay, headers=headers), size

    @operation("claims:create receive", hot=True)
    async def receive_message(self, call: Call[_ReceiveMessage]) -> Response:
        """Receive up to ten messages, or wait for some."""
        form, queue = call.form, call.queue
        check_range("MaxNumberOfMessages", form.max_number_of_messages, MAX_BATCH, least=1)
        system = frozenset((*form.attribute_names, *form.message_system_attribute_names))
        if unknown := system - _SYSTEM - _ALL:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {min(unknown)[:256]}.")
        if not system.isdisjoint(_ALL):
            system = _SYSTEM
        kept = await self.queues.attributes(queue)
        hidden, wait = form.visibility_timeout, form.wait_time_seconds
        if hidden is None:
            hidden = VISIBILITY if kept.visibility_timeout is None else kept.visibility_timeout
        if wait is None:
            wait = kept.receive_message_wait_time_seconds or 0
        check_range("VisibilityTimeout", hidden, MAX_VISIBILITY)
        check_range("WaitTimeSeconds", wait, MAX_WAIT)

        wanted = self.claims.request(
            limit=min(form.max_number_of_messages, self.limits.claim(large=True)),
            ttl=max(hidden, self.claims.shortest),
            grace=None,
            client_id=call.request.client_id,
            details=_FIRST_RECEIVE in system,
            large=True,
        )

        async def undo(claimed: tuple[str, Sequence[Message]]) -> None:
            await self.claims.release(queue, claimed[0])

        await self.receipts.load()
        if wait:
            await asyncio.sleep(0)  # only a task can wait, and this may not be one yet
        ask = partial(self.claims.create, queue, wanted)
        claimed = await self.polling.ask(
            call.request, queue, min(wait, self.polling.longest), ask, undo=undo
        )
        if claimed is None:
            return done()
        if not hidden:
            await undo(claimed)
        sign = self.receipts.signer(queue, claimed[0])
        shown = [_shown(call, message, sign(message.id), system) for message in claimed[1]]
        return done({"Messages": shown}, undo=partial(undo, claimed))

    @operation("messages:delete receive", hot=True, name="delete_message_batch")
    @operation("messages:delete receive", hot=True)
    async def delete_message(self, call: Call[_Held]) -> Response:
        """Delete a message that was received, or up to ten."""
        return await _each(call, self._delete)

    async def _delete(self, call: Call[Any], entries: Sequence[_Held]) -> Outcomes:
        """Delete what the receivers still hold, and what nobody holds any more.

        A message whose lease has lapsed may be held by another receiver: then it stays, and the
        answer is as if it were deleted, as in SQS.
        """
        outcomes: list[Mapping[str, Any] | SqsError] = []
        for one in await self._settle(call.queue, entries, Act.ACK):
            outcomes.append(one if isinstance(one, SqsError) else {})
            if isinstance(one, tuple) and one[1] is Outcome.LAPSED:
                try:
                    await self.messages.delete(call.queue, one[0], None)
                except Unavailable as error:
                    outcomes[-1] = translated(error, call.request.request_id)
                except Forbidden:
                    pass
        return outcomes

    @operation("claims:settle receive", hot=True, name="change_message_visibility_batch")
    @operation("claims:settle receive", hot=True)
    async def change_message_visibility(self, call: Call[_Held]) -> Response:
        """Hide a message that was received, or up to ten, for longer or for less long."""
        return await _each(call, self._hide)

    async def _hide(self, call: Call[Any], entries: Sequence[_Held]) -> Outcomes:
        found = await self._settle(call.queue, entries, Act.EXTEND)
        return [one if isinstance(one, SqsError) else _hidden(one[1]) for one in found]

    async def _settle(
        self, queue: QueueRef, entries: Sequence[_Held], act: Act
    ) -> Sequence[tuple[str, Outcome] | SqsError]:
        """Settle messages, those of each claim at once; answer their ids, and what became of each.

        A message that is named twice is settled once.
        """
        await self.queues.attributes(queue)
        await self.receipts.load()
        read = self.receipts.read(queue, [entry.receipt_handle for entry in entries])
        claims: dict[str, dict[str, Settlement]] = {}
        for at, (entry, receipt) in enumerate(zip(entries, read, strict=True)):
            if isinstance(receipt, tuple):
                message_id, claim_id = receipt
                try:
                    settlement = _settlement(message_id, entry, act)
                    claims.setdefault(claim_id, {})[message_id] = settlement
                except SqsError as error:
                    read[at] = error
        outcomes: dict[Receipt, Outcome] = {}

        async def settle(claim_id: str, settlements: dict[str, Settlement]) -> None:
            done_so = await self.claims.settle(queue, claim_id, list(settlements.values()))
            for message_id, outcome in zip(settlements, done_so, strict=True):
                outcomes[message_id, claim_id] = outcome

        steps = [settle(*one) for one in claims.items()]  # all become durable in one batch
        await (steps[0] if len(steps) == 1 else asyncio.gather(*steps))
        return [one if isinstance(one, SqsError) else (one[0], outcomes[one]) for one in read]


def _settlement(message_id: str, entry: _Held, act: Act) -> Settlement:
    """What is to become of a message; hidden for no time, it is given back."""
    if act is Act.ACK:
        return Settlement(message_id, act)
    seconds = entry.visibility_timeout
    if seconds is None:
        raise missing("VisibilityTimeout")
    check_range("VisibilityTimeout", seconds, MAX_VISIBILITY)
    if not seconds:
        return Settlement(message_id, Act.RELEASE, delay_ms=0)
    return Settlement(message_id, act, ttl_ms=seconds * 1000, grace_ms=_GRACE_MS)


def _hidden(outcome: Outcome) -> Mapping[str, Any] | SqsError:
    if outcome is Outcome.DONE:
        return {}
    if outcome is Outcome.LAPSED:
        return SqsError("MessageNotInflight", "The message is not in flight.")
    return invalid("The message of this ReceiptHandle does not exist, or another receiver has it.")


def _shown(
    call: Call[_ReceiveMessage], message: Message, handle: str, system: frozenset[str]
) -> dict[str, Any]:
    """A message as its receiver sees it; without attributes, there is no word of them."""
    # A text is a JSON string; what others have posted is shown as the JSON that it is.
    is_text = message.body[:1] == b'"'
    body = str(orjson.loads(message.body)) if is_text else message.body.decode()
    shown: dict[str, Any] = {"MessageId": message.id, "ReceiptHandle": handle, "Body": body}
    shown["MD5OfBody"] = md5_of(body)
    if system:
        known = _system_attributes(call, message)
        if asked := {name: text for name, text in known.items() if name in system}:
            shown["Attributes"] = asked
    names, headers = call.form.message_attribute_names, message.headers
    if names and headers and (found := attributes_of(headers, names)):
        shown["MessageAttributes"] = found
        shown["MD5OfMessageAttributes"] = md5_of_attributes(found)
    return shown


def _system_attributes(call: Call[Any], message: Message) -> dict[str, str]:
    attempts, origin = message.attempts, message.origin
    shown = {
        "SenderId": message.client_id or "",
        "SentTimestamp": str(message.created_at),
        "ApproximateReceiveCount": str(message.claim_count),
        _FIRST_RECEIVE: str(attempts[0].claimed_at if attempts else message.now),
        TRACE: (message.headers or {}).get(TRACE_HEADER, ""),
        _GROUP: group_of(message.headers) or "",
        "DeadLetterQueueSourceArn": "" if origin is None else call.arn(origin.source),
    }
    return {name: text for name, text in shown.items() if text}


def _checksums(sent: _Sent) -> dict[str, str]:
    """The MD5s of a message that was sent; without attributes, there is no word of them."""
    shown, own = {"MD5OfMessageBody": md5_of(sent.message_body)}, sent.message_attributes
    if own:
        shown["MD5OfMessageAttributes"] = md5_of_attributes(msgspec.to_builtins(own))
    if system := sent.message_system_attributes:
        shown["MD5OfMessageSystemAttributes"] = md5_of_attributes(msgspec.to_builtins(system))
    return shown


async def _each(
    call: Call[Any], act: Callable[[Call[Any], Sequence[Any]], Awaitable[Outcomes]]
) -> Response:
    """Act on the entries of a batch, or on the message that the document itself is about.

    As SQS does, the answer to a batch has no word of outcomes that no entry had.

    Raises:
        SqsError: the batch is wrong as a whole, or nothing was done to the only message.
    """
    if not call.is_batch:
        (only,) = await act(call, [call.form])
        if isinstance(only, SqsError):
            raise only
        return done(only)
    ids = [entry.id for entry in call.form.entries]
    if not ids:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(ids) > MAX_BATCH:
        raise SqsError("TooManyEntriesInBatchRequest", f"A batch has up to {MAX_BATCH} entries.")
    if any(_ENTRY_ID.fullmatch(one) is None for one in ids):
        text = "The id of an entry has 1 to 80 letters, digits, '-' and '_'."
        raise SqsError("InvalidBatchEntryId", text)
    if len(set(ids)) < len(ids):
        raise SqsError("BatchEntryIdsNotDistinct", "The ids of a batch must be distinct.")
    found: dict[str, list[Mapping[str, Any]]] = {"Successful": [], "Failed": []}
    for one, outcome in zip(ids, await act(call, call.form.entries), strict=True):
        if isinstance(outcome, SqsError):
            found["Failed"].append(outcome.in_batch(one))
        else:
            found["Successful"].append({"Id": one, **outcome})
    return done({name: outcomes for name, outcomes in found.items() if outcomes})
