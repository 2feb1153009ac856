"""Compare a topology with a broker, and say for each difference what would correct it.

Pure: `management` reads the snapshot and carries out the calls.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from zaqar_lite.rabbitmq import exports
from zaqar_lite.rabbitmq.topology import Binding, Topology

Entry = Mapping[str, Any]

# What a policy may not say about our queues: each ends waits early, drops or redirects messages.
HARMFUL = frozenset({
    "message-ttl", "expires", "max-length", "max-length-bytes", "max-in-memory-length", "overflow",
    "delivery-limit", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy",
})  # fmt: skip


class Kind(StrEnum):
    """The kind of a finding. All but NOTICE are drift."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    POLICY = "policy"
    CONSUMER = "consumer"
    BROKER = "broker"
    PARKED = "parked"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the management API."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from the topology.

    Attributes:
        subject: the entity, for example `queue delay.8`.
        detail: what is wrong with it, and what it does to delays.
        mend: the call that mends it; None where only a person can.
    """

    kind: Kind
    subject: str
    detail: str
    mend: Call | None = None

    @property
    def is_drift(self) -> bool:
        """Whether delays may be wrong, or messages are stuck, because of it."""
        return self.kind is not Kind.NOTICE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a virtual host has, as the management API lists it."""

    vhost: str
    exchanges: Sequence[Entry]
    queues: Sequence[Entry]
    bindings: Sequence[Entry]
    policies: Sequence[Entry] = ()
    operator_policies: Sequence[Entry] = ()
    consumers: Sequence[Entry] = ()
    feature_flags: Sequence[Entry] = ()


def path(*words: str) -> str:
    """Return a path of the API; every word is quoted whole, slashes too."""
    return "/".join(["/api", *(quote(word, safe="") for word in words)])


def compare(topology: Topology, found: Snapshot) -> list[Finding]:
    """Return all findings, in an order in which missing entities can be created."""
    exchanges = {one.name: exports.body(one) for one in topology.exchanges}
    queues = {one.name: exports.body(one) for one in topology.queues}
    return [
        *_entities(topology, found.vhost, "exchange", exchanges, found.exchanges),
        *_entities(topology, found.vhost, "queue", queues, found.queues),
        *_bindings(topology, found),
        *_policies(topology, found),
        *_consumers(topology, found),
        *_broker(topology, found),
        *_counts(topology, found),
    ]


def _is_ours(topology: Topology, name: str) -> bool:
    """Say whether a name is one that a topology of this prefix, of any size, would have."""
    own = name.removeprefix(f"{topology.prefix}.")
    shape = r"ingest|done|unroutable|failed|\d+(\.done)?"
    return own != name and re.fullmatch(shape, own) is not None


def _entities(
    topology: Topology, vhost: str, kind: str, wanted: Mapping[str, Entry], found: Sequence[Entry]
) -> Iterator[Finding]:
    """Compare the exchanges, or the queues, that should be there, by name, with those that are."""
    present = {entry["name"]: entry for entry in found}
    for name, want in wanted.items():
        have, where = present.get(name), path(f"{kind}s", vhost, name)
        if have is None:
            call = Call("PUT", where, want)
            yield Finding(Kind.MISSING, f"{kind} {name}", "is not there", call)
            continue
        wrong = [
            f"{key} is {have.get(key)!r}, not {value!r}"
            for key, value in want.items()
            if have.get(key) != value
        ]
        if wrong:
            yield Finding(
                Kind.DIFFERENT,
                f"{kind} {name}",
                "; ".join(wrong) + ". RabbitMQ cannot change that: remove it when it is empty and "
                "apply again, or use another prefix",
            )
    for name in present:
        if name not in wanted and _is_ours(topology, name):
            call = Call("DELETE", path(f"{kind}s", vhost, name))
            yield Finding(Kind.EXTRA, f"{kind} {name}", "this topology has none such", call)


def _bindings(topology: Topology, found: Snapshot) -> Iterator[Finding]:
    wanted, present = set(topology.bindings), set[Binding]()
    extra = []
    for entry in found.bindings:
        ends = (entry["source"], entry["destination"], entry["destination_type"])
        have = Binding(*ends, entry["routing_key"])
        if have in wanted and not entry["arguments"]:
            present.add(have)
        elif harm := _harm(topology, have):
            call = Call("DELETE", _between(found, have, entry["properties_key"]))
            extra.append(Finding(Kind.EXTRA, _named(have), harm, call))
    for want in topology.bindings:
        if want not in present:
            body = {"routing_key": want.routing_key, "arguments": {}}
            call = Call("POST", _between(found, want), body)
            yield Finding(Kind.MISSING, _named(want), "is not there", call)
    yield from extra


def _between(found: Snapshot, binding: Binding, *key: str) -> str:
    """Return the path of the bindings between two ends, or of the one with that key."""
    ends = (binding.source, binding.destination_type[0], binding.destination)
    return path("bindings", found.vhost, "e", *ends, *key)


def _named(binding: Binding) -> str:
    return f"binding {binding.source} -> {binding.destination} {binding.routing_key!r}"


def _harm(topology: Topology, binding: Binding) -> str | None:
    """Say what harm a foreign binding does; None if it does none.

    Others may bind queues of their own to the end exchange and to the parking exchange.
    """
    if not binding.source:
        return None
    deciding = {topology.ingest, *map(topology.level_exchange, topology.levels)}
    levels = {topology.level_queue(level) for level in topology.levels}
    if binding.source in deciding:
        return "every message that matches is delivered twice, or too early"
    if binding.destination_type == "queue" and binding.destination in levels:
        return "lets messages into the middle of the delay"
    if binding.destination_type == "exchange" and binding.destination in deciding:
        return "lets messages in past the ingest exchange"
    if binding.source == topology.end and binding.destination in topology.targets.values():
        return "is for keys of another length or another destination"
    return None


def _policies(topology: Topology, found: Snapshot) -> Iterator[Finding]:
    kinds = {"policy": found.policies, "operator policy": found.operator_policies}
    for title, policies in kinds.items():
        ranked = sorted(policies, key=lambda policy: -int(policy["priority"]))
        for queue in topology.queues:
            applied = next((each for each in ranked if _applies(each, queue.name)), None)
            if applied is not None and (keys := HARMFUL & applied["definition"].keys()):
                says = ", ".join(f"{key} {applied['definition'][key]}" for key in sorted(keys))
                harm = "it shortens waits, or drops or redirects messages. Narrow its pattern"
                detail = f"the {title} {applied['name']!r} says {says}: {harm}"
                yield Finding(Kind.POLICY, f"queue {queue.name}", detail)


def _applies(policy: Entry, queue: str) -> bool:
    if policy["apply-to"] in {"exchanges", "streams"}:
        return False
    try:
        return re.search(policy["pattern"], queue) is not None
    except re.error:  # the broker's regular expressions differ from Python's: prefer a false alarm
        return True


def _consumers(topology: Topology, found: Snapshot) -> Iterator[Finding]:
    levels = {topology.level_queue(level) for level in topology.levels}
    for entry in found.consumers:
        if (name := entry["queue"]["name"]) in levels:
            details = entry.get("channel_details")
            peer = details.get("connection_name", "?") if isinstance(details, dict) else "?"
            tag = entry["consumer_tag"]
            detail = f"consumer {tag!r} from {peer} takes messages out of their wait"
            yield Finding(Kind.CONSUMER, f"queue {name}", detail)


def _broker(topology: Topology, found: Snapshot) -> Iterator[Finding]:
    for flag in found.feature_flags if topology.queue_type == "quorum" else ():
        if flag["name"] in {"quorum_queue", "stream_queue"} and flag["state"] == "disabled":
            detail = "is disabled: dead-lettering falls back to at most once. Enable it"
            yield Finding(Kind.BROKER, f"feature flag {flag['name']}", detail)


def _counts(topology: Topology, found: Snapshot) -> Iterator[Finding]:
    """Report what is parked, and what a level can't hand on."""
    parked = {
        topology.parking: "messages that no binding wanted are parked and will never be due: a "
        f"publisher of other bits or another destination? A key has {topology.bits} digits here. "
        "Look at theirs, publish them anew, and purge the queue",
        topology.failed: "messages could not be posted and are parked; a header says why",
    }
    for entry in found.queues:
        name, count, stuck = entry["name"], entry.get("messages"), entry.get("messages_dlx")
        if count and name in parked:
            yield Finding(Kind.PARKED, f"queue {name}", f"{count} {parked[name]}")
        if stuck and _is_ours(topology, name):
            detail = f"{stuck} messages are being handed on; if that stays, a route is missing"
            yield Finding(Kind.NOTICE, f"queue {name}", detail)
