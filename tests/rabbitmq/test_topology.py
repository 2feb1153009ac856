"""The computed topology against the published vectors, exhaustively, and beyond by hypothesis."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rabbitmq.simulator import Simulator
from zaqar_lite.domain.errors import Invalid
from zaqar_lite.rabbitmq.topology import (
    Anchor,
    Head,
    QueueType,
    Topology,
    Unroutable,
    bits_for,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "vectors" / "rabbitmq-delay.json").read_text()
)
BARE = {"": "target"}


def seed(bits: int, **rest: Any) -> Topology:
    return Topology(bits, destinations=BARE, **rest)


def plain(name: str) -> str:
    return name.removeprefix("delay.")


@pytest.mark.parametrize("case", VECTORS["bits"], ids=lambda case: str(case["max"]))
def test_bits_follow_from_the_maximum(case: dict[str, int]) -> None:
    assert bits_for(case["max"]) == case["bits"]


@pytest.mark.parametrize("bits", VECTORS["topologies"], ids=str)
def test_entities_are_the_published_ones(bits: str) -> None:
    want, topology = VECTORS["topologies"][bits], seed(int(bits))
    levels = [queue for queue in topology.queues if queue.ttl_ms is not None]
    assert [
        {
            "name": plain(queue.name),
            "ttl_ms": queue.ttl_ms,
            "dead_letter_exchange": plain(str(queue.arguments["x-dead-letter-exchange"])),
        }
        for queue in levels
    ] == want["queues"]
    assert [
        (plain(b.source), plain(b.destination), b.routing_key)
        for b in topology.bindings
        if plain(b.source) in want["exchanges"]
    ] == [(b["source"], b["destination"], b["routing_key"]) for b in want["bindings"]]


@pytest.mark.parametrize("case", VECTORS["keys"], ids=lambda c: f"{c['bits']}-{c['delay']}")
def test_keys_and_paths_are_the_published_ones(case: dict[str, Any]) -> None:
    destination = case.get("destination", "")
    topology = Topology(case["bits"], destinations={destination: "target"})
    assert topology.routing_key(case["delay"], destination) == case["routing_key"]
    path = topology.path(case["delay"])
    assert [plain(hop.queue) for hop in path] == case["path"]
    assert [
        {"exchange": plain(h.exchange), "queue": plain(h.queue), "wait": h.wait_ms // 1000}
        for h in path
    ] == case["hops"]
    (journey,) = Simulator.of(topology).walk(topology.ingest, case["routing_key"])
    assert (journey.hops, journey.queue) == (path, "target")
    assert plain(journey.last) == case["last_exchange"]
    if "exact_done_binding" in case:
        ends = [b.routing_key for b in topology.bindings if b.source == topology.end]
        assert ends == [case["exact_done_binding"]]


@pytest.mark.parametrize("case", VECTORS["rejects"], ids=lambda c: c["reason"])
def test_a_delay_that_cannot_be_kept_is_refused(case: dict[str, Any]) -> None:
    delay = float("nan") if case["delay"] == "NaN" else case["delay"]
    with pytest.raises(Invalid) as refusal:
        seed(case["bits"]).routing_key(delay, "")
    if "more than" in case["reason"] or "rounds" in case["reason"]:
        assert f"{2 ** case['bits'] - 1} s" in str(refusal.value)  # it names the limit


@pytest.mark.parametrize("case", VECTORS["rounding"], ids=lambda c: str(c["delay"]))
def test_a_delay_rounds_up(case: dict[str, Any]) -> None:
    assert seed(case["bits"]).units(case["delay"]) == case["units"]


@pytest.mark.parametrize(
    "case", VECTORS["broker_cases"], ids=lambda c: f"{c['ingest_head']} {c['routing_key']}"
)
def test_strange_keys_go_where_a_broker_sent_them(case: dict[str, Any]) -> None:
    head = Head(case["ingest_head"])
    destination = "svc" if head is Head.ONE_WORD else ""
    topology = Topology(
        case["bits"],
        head=head,
        destinations={destination: "target"},
        unroutable=Unroutable.RETURN,
    )
    (journey,) = Simulator.of(topology).walk(topology.ingest, case["routing_key"])
    assert [plain(hop.queue) for hop in journey.hops] == case["queues"]
    if case["end"] == "done":
        # An overlong key reaches the end exchange; only there its surplus words show.
        words = case["routing_key"].split(".")
        fits = len(words) == case["bits"] + bool(destination)
        assert journey.queue == ("target" if fits else topology.parking)
    else:
        assert f"no route at {plain(journey.last)}" == case["end"]
        # The ingest exchange has no alternate here, the others always have.
        assert journey.queue == (None if journey.last == topology.ingest else topology.parking)


@pytest.mark.parametrize("anchor", Anchor)
@pytest.mark.parametrize("bits", range(1, 13))
def test_every_delay_takes_exactly_its_own_way(bits: int, anchor: Anchor) -> None:
    topology = Topology(bits, anchor=anchor, destinations={"a.b": "ab", "b": "b"})
    simulator = Simulator.of(topology)
    for units in range(2**bits):
        key = topology.routing_key(units, "a.b")
        (journey,) = simulator.walk(topology.ingest, key)
        assert journey.queue == "ab"
        assert journey.hops == topology.path(units)
        assert journey.wait_ms == units * 1000


@given(st.data())
def test_any_topology_keeps_any_delay(data: st.DataObject) -> None:
    unit_ms = data.draw(st.sampled_from([1, 20, 100, 1000]))
    bits = data.draw(st.integers(1, {1: 39, 20: 34, 100: 32, 1000: 29}[unit_ms]))
    topology = Topology(
        bits,
        unit_ms=unit_ms,
        anchor=data.draw(st.sampled_from(Anchor)),
        queue_type=data.draw(st.sampled_from(QueueType)),
    )
    units = data.draw(st.integers(0, topology.maximum))
    (journey,) = Simulator.of(topology).walk(
        topology.ingest, topology.routing_key(units * unit_ms / 1000)
    )
    assert journey.wait_ms == units * unit_ms
    assert len(journey.hops) == units.bit_count()
    assert journey.queue == "delay.zaqar"


@given(st.floats(0, 1023), st.sampled_from([1, 20, 1000]))
def test_no_float_is_early(delay: float, unit_ms: int) -> None:
    topology = Topology(20, unit_ms=unit_ms)
    assert topology.units(delay) * unit_ms >= delay * 1000 * (1 - 1e-15)
    assert topology.units(delay) * unit_ms < delay * 1000 + unit_ms + 1e-6


def test_a_float_means_the_number_that_prints_it() -> None:
    assert Topology(20, unit_ms=1).units(0.1) == 100


@pytest.mark.parametrize(("unit_ms", "bits"), [(1000, 29), (1, 39)])
def test_the_greatest_numbers_of_bits(unit_ms: int, bits: int) -> None:
    assert Topology(bits, unit_ms=unit_ms).bits == bits
    with pytest.raises(Invalid, match=f"the most is {bits} bits"):
        Topology(bits + 1, unit_ms=unit_ms)
    assert bits_for((2**bits - 1) * unit_ms / 1000, unit_ms=unit_ms) == bits
    with pytest.raises(Invalid, match="beyond the maximum"):
        bits_for(2**bits * unit_ms / 1000, unit_ms=unit_ms)


def test_growth_doubles_only_what_no_publisher_may_send_yet() -> None:
    old, new = seed(4), seed(5, draining_bits=4)
    both = Simulator(
        {e.name: e for e in (*old.exchanges, *new.exchanges)}.values(),
        {q.name: q for q in (*old.queues, *new.queues)}.values(),
        {*old.bindings, *new.bindings},
    )
    for units in range(16):
        for topology in (old, new):
            (journey,) = both.walk("delay.ingest", topology.routing_key(units, ""))
            assert (journey.wait_ms, journey.queue) == (units * 1000, "target")
    assert all(len(both.walk("delay.ingest", new.routing_key(n, ""))) == 2 for n in range(16, 32))
    # What is on its way when the old bindings go still arrives: from every level, with old keys.
    grown = Simulator.of(new)
    for units in range(1, 16):
        first = old.path(units)[0]
        (journey,) = grown.walk(f"{first.queue}.done", old.routing_key(units, ""))
        assert first.wait_ms + journey.wait_ms == units * 1000
        assert journey.queue == "target"


def test_every_exchange_that_can_miss_has_an_alternate() -> None:
    for unroutable in Unroutable:
        topology = seed(6, unroutable=unroutable)
        without = {e.name for e in topology.exchanges if not e.arguments} - {topology.parking}
        assert without == (set() if unroutable is Unroutable.PARK else {topology.ingest})


def test_quorum_queues_dead_letter_at_least_once_and_classic_ones_by_choice() -> None:
    for queue in Topology(3).queues:
        assert queue.arguments["x-queue-type"] == "quorum"
        if "x-dead-letter-exchange" in queue.arguments:
            assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
            assert queue.arguments["x-overflow"] == "reject-publish"
        assert "x-dead-letter-routing-key" not in queue.arguments  # the key must survive
    for queue in Topology(3, queue_type=QueueType.CLASSIC).queues:
        assert queue.arguments["x-queue-type"] == "classic"
        assert "x-dead-letter-strategy" not in queue.arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 0}, "at least 1"),
        ({"bits": True}, "whole number"),
        ({"bits": 4, "unit_ms": 0}, "at least 1"),
        ({"bits": 4, "prefix": "amq.delay"}, "prefix"),
        ({"bits": 4, "prefix": "a b"}, "prefix"),
        ({"bits": 4, "prefix": "x" * 61}, "prefix"),
        ({"bits": 4, "destinations": {"1": "q"}}, "digit"),
        ({"bits": 4, "destinations": {"a.0": "q"}, "anchor": Anchor.LEFT}, "digit"),
        ({"bits": 4, "destinations": {"a*": "q"}}, "letters"),
        ({"bits": 27, "destinations": {"a" * 202: "q"}}, "room for 201"),
        ({"bits": 4, "destinations": {"a": "delay.8"}}, "itself has a queue"),
        ({"bits": 4, "destinations": {"a": "delay.unroutable"}}, "itself has a queue"),
        ({"bits": 4, "destinations": {"a": ""}}, "queue's name"),
        ({"bits": 4, "destinations": {"a.b": "q"}, "head": Head.ONE_WORD}, "head"),
        ({"bits": 4, "anchor": Anchor.LEFT, "head": Head.ONE_WORD}, "head"),
        ({"bits": 4, "draining_bits": 4}, "1..3"),
        ({"bits": 4, "draining_bits": 3, "anchor": Anchor.LEFT}, "cannot grow"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_parameters_out_of_bounds_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        Topology(**arguments)


def test_an_unknown_destination_is_refused() -> None:
    with pytest.raises(Invalid, match="no destination 'mail' here, only 'zaqar'"):
        Topology(4).routing_key(1, "mail")
