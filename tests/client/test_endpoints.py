"""The endpoints without a network: what is sent, and how an answer is read."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from typing import Any, NamedTuple

import pytest

from zaqar_lite.client import (
    BadAnswer,
    BadRequest,
    ClaimLost,
    ClaimOptions,
    Client,
    Forbidden,
    MessageClaimed,
    NewMessage,
    Overloaded,
    QueueNotFound,
    QueueOptions,
    ServerFault,
    Unauthenticated,
    serialization,
)
from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Response, from_response
from zaqar_lite.client.endpoints import claims, messages, queues
from zaqar_lite.client.endpoints.messages import Selection
from zaqar_lite.client.posting import Posting, PostOptions
from zaqar_lite.client.queue_options import KEYS, RESERVED
from zaqar_lite.domain import metadata


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 3


class Pair(NamedTuple):
    a: int
    b: int


class Word(enum.StrEnum):
    A = "a"


def answer(status: int, document: object = None, **headers: str) -> Response:
    return Response(status, headers, b"" if document is None else json.dumps(document).encode())


def test_names_are_quoted_and_cannot_leave_their_place() -> None:
    assert queues.create_queue("a/../b?c").request.path == "/v2/queues/a%2F..%2Fb%3Fc"
    for name, quoted in (("x?claim_id=y", "x%3Fclaim_id%3Dy"), (".", "%2E"), ("..", "%2E%2E")):
        path = messages.delete_message("q", name).request.path
        assert path == f"/v2/queues/q/messages/{quoted}"
    with pytest.raises(ValueError, match="is empty"):
        messages.delete_message("q", "")


@pytest.mark.parametrize("seconds", [60.5, "60", 0.5])
def test_seconds_are_whole_and_not_cut_down(seconds: float) -> None:
    with pytest.raises(TypeError, match="ttl is a whole number"):
        serialization.encode_message(NewMessage(body=1, ttl=seconds))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="delay is a whole number"):
        serialization.encode_message(NewMessage(body=1, delay=seconds))  # type: ignore[arg-type]
    with Client() as client, pytest.raises(TypeError, match="delay is a whole number"):
        client.edit("q", "m", delay=seconds)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grace is a whole number"):
        claims.renew("q", "c", 60, seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [["a,b"], [""], ["a", ""]])
def test_an_id_that_would_name_others_is_refused(ids: list[str]) -> None:
    with pytest.raises(ValueError, match="is not an id"):
        messages.get_messages("q", ids)
    with pytest.raises(ValueError, match="is not an id"):
        messages.delete_messages("q", ["m"], claim_ids=ids)


def test_queries_say_only_what_was_asked() -> None:
    assert (
        messages.list_messages("q", Selection()).request.path == "/v2/queues/q/messages?echo=true"
    )
    listing = messages.list_messages(
        "q", Selection(until="n", include_delayed=True), marker="m", limit=5
    )
    assert listing.request.path.endswith("?marker=m&until=n&limit=5&echo=true&include_delayed=true")
    bulk = messages.delete_messages("q", ["a", "b"], claim_ids=["c", "d"]).request.path
    assert bulk == "/v2/queues/q/messages?ids=a,b&claim_ids=c,d"


class Unconnected(BaseClient):
    """A client that sends nothing."""

    def _open(self) -> None:
        """Connect to nothing."""


def posting_by(**given: Any) -> Posting[Any]:
    return Posting(Unconnected(), "q", PostOptions(**given))


def test_a_request_of_messages_with_keys_has_none() -> None:
    assert "Idempotency-Key" not in messages.post("q", [b"{}"], keyed=True).request.headers
    posting = posting_by(batch_size=2)
    posting.take(NewMessage(body=1, idempotency_key="k"))
    entries = posting.take(2)
    assert entries is not None
    assert [entry.keyed for entry in entries] == [True, False]


def test_bodies_are_cut_out_as_they_are() -> None:
    texts = [b'{"body" : 1.00, "body":2}', b'[ 0.1234567890123456789 ,"}]\\""]', b"null"]
    entries = b", ".join(b'{"id": "1", "body": ' + t + b', "headers": {"body": 3}}' for t in texts)
    page = b'{"links": [{"body": 4}], "messages": [' + entries + b"]}"
    assert serialization.raw_bodies(Response(200, {}, page)) == texts
    with pytest.raises(BadAnswer):
        serialization.raw_bodies(Response(200, {}, b'{"messages": [{"id": "1"}]}'))


def test_a_claim_takes_its_id_from_the_location_or_the_messages() -> None:
    body = {"messages": [{"id": "m", "href": "/m?claim_id=c2", "ttl": 60, "age": 0, "body": 1}]}
    call = claims.claim("q", ClaimOptions())
    named = call.read(answer(201, body, location="/v2/queues/q/claims/c1"))
    unnamed = call.read(answer(201, body))
    assert [held and held.id for held in (named, unnamed)] == ["c1", "c2"]
    assert call.read(answer(204)) is None
    entry = {"href": "/v2/queues/q/messages/50b6?claim_id=a28e", "ttl": 60, "age": 3, "body": 1}
    message = messages.read_message("q", {**entry, "brand_new_key": True})
    assert (message.id, message.claim_id, message.dead_letter) == ("50b6", "a28e", None)


def test_a_post_whose_answer_counts_differently_is_not_believed() -> None:
    call = messages.post("q", [b"{}", b"{}"])
    with pytest.raises(BadAnswer):
        call.read(answer(201, {"resources": ["/v2/queues/q/messages/1"]}))


def test_endpoints_know_what_a_status_means_to_them() -> None:
    held = messages.delete_message("q", "m")
    mine = messages.delete_message("q", "m", claim_id="c")
    gone = answer(400, {"title": "Unable to delete", "description": "It has expired."})
    kinds = [BadRequest, Unauthenticated, Forbidden, BadRequest, Overloaded, ServerFault]
    for status, kind in zip((400, 401, 403, 413, 429, 502), kinds, strict=True):
        assert type(from_response(answer(status, {"title": "T"}))) is kind
    page = from_response(Response(502, {}, b"<h1>Bad Gateway</h1>" + b"x" * 1000))
    assert (page.title, len(page.description or "")) == ("HTTP 502", 200)
    assert isinstance(from_response(answer(403), held.meanings), MessageClaimed)
    assert isinstance(from_response(gone, mine.meanings), ClaimLost)
    assert isinstance(from_response(answer(404), queues.stats("q").meanings), QueueNotFound)


def test_batches_never_exceed_the_bytes_and_lose_nothing() -> None:
    posting = posting_by(batch_size=7, batch_bytes=120)
    items: list[object] = ["x" * (number % 90) for number in range(200)]
    batches = [batch for item in items if (batch := posting.take(item))]
    batches.append(posting.flush() or [])
    assert [entry.item for batch in batches for entry in batch] == items
    for batch in batches:
        size = len(serialization.envelope([entry.encoded for entry in batch]))
        assert len(batch) <= 7
        assert size <= 120


def test_a_message_larger_than_a_batch_goes_alone() -> None:
    posting = posting_by(batch_bytes=50)
    assert posting.take("a") is None
    first = posting.take("x" * 100)
    assert first is not None
    assert [entry.item for entry in first] == ["a"]
    second = posting.take("b")
    assert second is not None
    assert [len(entry.item) for entry in second] == [100]


def test_the_rate_holds_over_any_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    posting = posting_by(rate=100)
    assert [posting.wait(50) for _ in range(4)] == pytest.approx([0, 0.5, 1.0, 1.5])
    now += 60
    assert posting.wait(50) == 0


@dataclasses.dataclass
class Order:
    _id: uuid.UUID
    at: dt.datetime
    price: decimal.Decimal
    kind: Color


def test_a_body_may_hold_values_that_json_does_not_know() -> None:
    number = uuid.UUID(int=7)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    order = Order(number, at, decimal.Decimal("1.10"), Color.RED)
    value = [order, at.date(), at.time(), Pair(1, 2), Level.LOW, Word.A, {number: 1, Color.RED: at}]
    assert json.loads(serialization.dumps(value)) == [
        {"_id": str(number), "at": at.isoformat(), "price": "1.10", "kind": "red"},
        "2026-01-02",
        "03:04:05.000006",
        [1, 2],
        3,
        "a",
        {str(number): 1, "red": at.isoformat()},
    ]
    for wrong in (object(), {1, 2}, [Order], {(1, 2): 3}, dt.timedelta(1), 1j):
        with pytest.raises(TypeError):
            serialization.dumps(wrong)
    with pytest.raises(ValueError, match="JSON does not have"):
        serialization.dumps(decimal.Decimal("nan"))
    with pytest.raises(ValueError, match="JSON does not have"):
        serialization.dumps(Order(number, at, decimal.Decimal(1), float("nan")))  # type: ignore[arg-type]


def test_unknown_options_of_a_queue_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"did you mean '_max_claim_count'\?"):
        queues.create_queue("q", {"_max_claims": 3})
    with pytest.raises(ValueError, match=r"did you mean '_dead_letter_queue'\?"):
        queues.update_queue("q", {"_dead_leter_queue": "d"})
    with pytest.raises(ValueError, match="there are _dead_letter_queue, "):
        queues.create_queue("q", QueueOptions(metadata={"_zzz": 1}))
    queues.create_queue("q", {"team": "a", "_flavor": "x"})


def test_options_have_the_servers_names() -> None:
    options = QueueOptions(
        message_ttl=60, max_claims=3, dead_letter_queue="d", metadata={"team": "a"}
    )
    body = queues.create_queue("q", options).request.body
    assert body is not None
    assert json.loads(body) == {
        "team": "a",
        "_default_message_ttl": 60,
        "_max_claim_count": 3,
        "_dead_letter_queue": "d",
    }
    assert {one.name for one in dataclasses.fields(QueueOptions)} == {*KEYS, "metadata"}
    assert RESERVED == metadata.RESERVED
