"""Queues, their ranges and their history, by the client."""

import datetime as dt
import warnings
from pathlib import Path

import pytest

from tests.server import ServerProcess
from zaqar_lite.client import (
    Client,
    Conflict,
    Ensured,
    MessageNotFound,
    NewMessage,
    QueueExists,
    QueueNotFound,
    QueueOptions,
    Range,
    ServerWarning,
    SignatureRefused,
    SignedAuth,
)


def test_a_queue_is_new_once_and_keeps_its_first_metadata(client: Client, queue: str) -> None:
    assert client.create_queue(queue, {"team": "a"})
    assert not client.create_queue(queue, {"team": "a"})
    assert not client.create_queue(queue)
    with pytest.raises(QueueExists, match="team 'a', not 'b'"):
        client.create_queue(queue, {"team": "b"})
    assert client.get_queue(queue)["team"] == "a"
    client.delete_queue(queue)
    assert "team" not in client.get_queue(queue)


def test_ensuring_a_queue_says_what_it_did(client: Client, queue: str) -> None:
    options = QueueOptions(message_ttl=120, metadata={"tags": ("a", "b")})
    assert client.ensure_queue(queue, options) is Ensured.CREATED
    assert client.ensure_queue(queue) is Ensured.UNCHANGED
    assert client.ensure_queue(f"{queue}-plain") is Ensured.CREATED
    assert client.ensure_queue(queue, options) is Ensured.UNCHANGED
    assert client.ensure_queue(queue, {"_default_message_ttl": 60}) is Ensured.CHANGED
    found = client.get_queue(queue)
    assert (found["_default_message_ttl"], found["tags"]) == (60, ["a", "b"])
    assert client.update_queue(queue, QueueOptions(delay=5))["_default_message_delay"] == 5
    with pytest.raises(QueueExists, match="_default_message_ttl 60, not 120"):
        client.create_queue(queue, options)


def test_a_delay_that_is_ignored_is_an_error_or_a_warning(
    server: ServerProcess, client: Client, queue: str
) -> None:
    with pytest.raises(ServerWarning, match=f"{queue} is a normal queue") as caught:
        client.post(queue, "soon", delay=60)
    assert client.get_message(queue, caught.value.result[0]).body == "soon"
    with Client(server.url, project="tests", on_warning=warnings.warn) as lenient:
        with pytest.warns(ServerWarning, match="The delay was ignored"):
            posted = lenient.post(queue, 1, delay=60)
        assert lenient.get_message(queue, posted).body == 1
    client.post(queue, "now", delay=0)
    client.update_queue(queue, QueueOptions(delay=60))
    client.post(queue, "later", delay=60)


def test_metadata_is_set_and_removed_together(client: Client, queue: str) -> None:
    with pytest.raises(QueueNotFound) as absent:
        client.update_queue(queue, {"a": 1})
    assert absent.value.title == "Not found"
    assert absent.value.description is not None
    assert str(absent.value.request_id) in str(absent.value)
    client.create_queue(queue, {"old": 1, "a/b~c": 2})
    changed = client.update_queue(queue, {"_default_message_ttl": 120}, remove=["a/b~c"])
    assert changed["_default_message_ttl"] == 120
    assert changed["old"] == 1
    assert "a/b~c" not in changed
    with pytest.raises(Conflict) as caught:
        client.update_queue(queue, {}, remove=["nothing"])
    assert caught.value.status == 409
    assert caught.value.request_id is not None


def test_listing_queues_pages_to_the_end(server: ServerProcess, queue: str) -> None:
    with Client(server.url, project=queue, page_size=2) as client:
        names = sorted(f"{queue}-n{number}" for number in range(5))
        for name in names:
            client.create_queue(name, {"name": name})
        assert [found.name for found in client.list_queues()] == names
        detailed = list(client.list_queues(detailed=True, name="-n3"))
        assert [found.metadata["name"] for found in detailed if found.metadata] == [names[3]]


def test_stats_tell_ready_from_delayed(client: Client, queue: str) -> None:
    client.create_queue(queue, {"_default_message_delay": 60})
    client.post_batch(queue, [NewMessage(body=1, delay=0), NewMessage(body=2), 3])
    stats = client.stats(queue)
    assert (stats.total, stats.free, stats.ready, stats.delayed, stats.claimed) == (3, 3, 1, 2, 0)
    assert stats.oldest is not None
    assert stats.oldest.created is not None
    client.purge(queue, ["messages"])
    assert client.stats(queue).total == 0
    assert client.get_queue(queue)["_default_message_delay"] == 60


def test_ranges_cover_the_queue_without_overlap(client: Client, queue: str) -> None:
    client.post_all(queue, range(100))
    ranges = client.ranges(queue, 4)
    assert len(ranges) == 4
    parts = [
        [m.body for m in client.list_messages(queue, marker=part.marker, until=part.until)]
        for part in ranges
    ]
    assert sorted(body for part in parts for body in part) == list(range(100))
    assert min(len(part) for part in parts) > 10
    assert client.ranges(f"{queue}-empty", 4) == []
    assert ranges[0].marker is None
    assert ranges[-1] == Range(marker=ranges[-1].marker)


def test_a_shared_permission_reads_that_queue_and_nothing_else(
    client: Client, server: ServerProcess, queue: str
) -> None:
    client.post(queue, "shared")
    until = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=5)
    signed = client.share(queue, methods=["GET"], expires=until)
    with Client(server.url, auth=SignedAuth(signed)) as guest:
        assert [message.body for message in guest.list_messages(queue)] == ["shared"]
        with pytest.raises(SignatureRefused, match="does not cover POST"):
            guest.post(queue, "written")
        with pytest.raises(SignatureRefused):
            list(guest.list_messages(f"{queue}-other"))
        with pytest.raises(MessageNotFound):
            guest.get_message(queue, "0" * 32)
        client.unshare(queue)
        with pytest.raises(SignatureRefused, match="was revoked"):
            list(guest.list_messages(queue))


def test_the_service_answers_for_itself(client: Client) -> None:
    client.ping()
    assert client.health()["storage_reachable"] is True
    assert "rel/message_patch" in client.home()["resources"]


def test_history_tells_what_was_done_and_what_failed(tmp_path: Path, queue: str) -> None:
    kept = {"_done_retention": 3600, "_failed_retention": 3600, "_max_claim_count": 1}
    with ServerProcess(f"embedded://{tmp_path}/data") as server, Client(server.url) as client:
        client.page_size = 2
        client.create_queue(queue, kept)
        ids = client.post_batch(queue, list(range(6)))
        with client.claim(queue, limit=5) as claim:
            assert len(list(claim)) == 5
        with client.claim(queue) as claim:
            claim.skip(*claim.messages)
        assert client.create_claim(queue) is None
        done = list(client.history(queue))
        assert [(line.id, line.attempts) for line in done] == [(one, 1) for one in ids[:5]]
        assert done[0].at is not None
        assert done[0].consumers == (client.client_id.replace("-", ""),)
        assert [line.id for line in client.history(queue, state="failed")] == ids[5:]
