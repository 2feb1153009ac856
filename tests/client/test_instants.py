"""`deliver_at` beyond the longest delay of the server: refused before it is sent."""

import datetime as dt
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.requests import counted
from tests.server import ServerProcess
from zaqar_lite.client import Client, NewMessage, Rejected

pytestmark = pytest.mark.anyio
HOME = "GET /v2/"
BEYOND = r"deliver_at is 3600 s away: this server delays messages by at most 900 s"


def in_seconds(seconds: float) -> dt.datetime:
    """Return the instant that is so many seconds away."""
    return dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)


def test_an_instant_too_far_away_is_refused_before_it_is_sent(client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 60})
    near = client.post(queue, "near", deliver_at=in_seconds(300))
    sent = counted(client)
    late = NewMessage(body="late", deliver_at=in_seconds(3600))
    with pytest.raises(ValueError, match=BEYOND):
        client.post(queue, "late", deliver_at=in_seconds(3600))
    with pytest.raises(ValueError, match=BEYOND):
        client.post_batch(queue, ["ready", late])
    with pytest.raises(ValueError, match=BEYOND):
        client.post_all(queue, ["ready", late])
    with pytest.raises(ValueError, match=BEYOND):
        client.edit(queue, near, deliver_at=in_seconds(3600))
    assert sent == []
    refused: list[Rejected[object]] = []
    items = ["a", late, NewMessage(body="b", deliver_at=in_seconds(890))]
    assert client.post_all(queue, items, on_rejected=refused.append).messages == 2
    assert [one.index for one in refused] == [1]
    assert sent == [f"POST /v2/queues/{queue}/messages"]
    client.edit(queue, near, deliver_at=in_seconds(890))


def test_who_needs_no_limit_asks_for_none(client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 60})
    sent = counted(client)
    client.post(queue, "a", delay=5)
    client.post_batch(queue, [NewMessage(body="b", delay=5), "c"])
    client.post_all(queue, [NewMessage(body="d"), "e"])
    assert HOME not in sent


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[tuple[ServerProcess, Path]]:
    """A server that reads its settings from a file, and the file."""
    settings = tmp_path / "zaqar.toml"
    settings.write_text("max_message_delay = 900\n")
    with ServerProcess("memory://", "--config", str(settings)) as process:
        yield process, settings


def test_a_limit_that_was_raised_is_found_by_clients_that_run(
    configured: tuple[ServerProcess, Path], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, settings = configured
    monkeypatch.setattr("zaqar_lite.client.base_client.LIMIT_KEPT", 0.0)
    with Client(server.url) as client:
        client.create_queue(queue, {"_default_message_delay": 60})
        with pytest.raises(ValueError, match=BEYOND):
            client.post(queue, 1, deliver_at=in_seconds(3600))
        settings.write_text("max_message_delay = 7200\n")
        os.kill(server.pid, signal.SIGHUP)
        end = time.monotonic() + 10
        while True:
            try:
                client.post(queue, 1, deliver_at=in_seconds(3600))
            except ValueError:
                assert time.monotonic() < end
                time.sleep(0.05)
            else:
                break
