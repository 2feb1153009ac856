"""`deliver_at` beyond the longest delay of the server, which alone knows it."""

import datetime as dt

import pytest

from zaqar_lite.client import BadRequest, Client, NewMessage, Rejected


def in_seconds(seconds: float) -> dt.datetime:
    """Return the instant that is so many seconds away."""
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


def test_an_instant_too_far_away_is_refused_with_its_request(client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 60})
    near = client.post(queue, "near", deliver_at=in_seconds(300))
    late = NewMessage(body="late", deliver_at=in_seconds(3600))
    with pytest.raises(BadRequest, match="900"):
        client.post(queue, "late", deliver_at=in_seconds(3600))
    with pytest.raises(BadRequest, match="900"):
        client.post_batch(queue, ["ready", late])
    with pytest.raises(BadRequest, match="900"):
        client.post_all(queue, ["ready", late])
    with pytest.raises(BadRequest, match="900"):
        client.edit(queue, near, deliver_at=in_seconds(3600))
    assert client.stats(queue).total == 1
    refused: list[Rejected[object]] = []
    items = ["a", late, NewMessage(body="b", deliver_at=in_seconds(890))]
    assert client.post_all(queue, items, on_rejected=refused.append).messages == 2
    assert [one.index for one in refused] == [1]
    client.edit(queue, near, deliver_at=in_seconds(890))
