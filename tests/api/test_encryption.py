"""Encrypted queues over HTTP: what is stored, what comes out, and what keys do."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import PROJECT, Api, MakeApi
from tests.push.receiver import Receiver
from tests.waiting import until
from zaqar_lite import main
from zaqar_lite.domain.clock import Clock
from zaqar_lite.domain.errors import ConfigurationError
from zaqar_lite.domain.models import ListQuery, QueueRef, Record, StoreOptions
from zaqar_lite.domain.posts import NewMessage
from zaqar_lite.domain.subscriptions import KIND as SUBSCRIPTION
from zaqar_lite.server.stores import Stores, make_stores
from zaqar_lite.service import encryption
from zaqar_lite.service.encryption import KIND, EncryptionKeys, read_key_file
from zaqar_lite.service.pooling.pools import POOL
from zaqar_lite.service.records import is_sealed
from zaqar_lite.service.schedules.schedules import KIND as SCHEDULE
from zaqar_lite.storage.sql import create

pytestmark = pytest.mark.anyio
FIRST, SECOND = (base64.b64encode(letter * 32).decode() for letter in (b"1", b"2"))
ON = {"_enable_encrypt_messages": True}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with one key."""
    path = tmp_path / "keys"
    path.write_text(f"first:{FIRST}\n")
    return path


def write(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines))


@pytest.fixture
async def api(make_api: MakeApi, file: Path) -> AsyncIterator[Api]:
    """A server that encrypts, with an encrypted queue."""
    async with make_api(encryption_key_file=file) as api:
        await api.expect(201, "PUT", "", ON)
        yield api


async def test_the_flag_decides_about_posts_and_the_body_about_reads(api: Api) -> None:
    await api.post({"body": "sealed"})
    await api.set("_enable_encrypt_messages", value=False)
    await api.post({"body": "clear"})
    assert await api.bodies() == ["sealed", "clear"]


async def test_a_job_chooses_by_the_body_that_was_posted(api: Api) -> None:
    await api.post({"body": {"n": 7}}, {"body": {"n": 8}})
    order = {"filter": {"body": {"path": "n", "equals": 7}}, "to": "elsewhere"}
    begun = await api.expect(202, "POST", "redrives", order)
    job = await api.until(begun.headers["location"], lambda job: job["ended"])
    assert (job["state"], job["done"], job["targets"]) == ("completed", 1, {"elsewhere": 1})
    assert await api.bodies() == [{"n": 8}]


async def test_a_replay_is_known_by_what_was_posted(api: Api) -> None:
    first = await api.post({"body": 1, "idempotency_key": "k"})
    assert await api.post({"body": 1, "idempotency_key": "k"}) == first
    other = {"messages": [{"body": 2, "idempotency_key": "k"}]}
    await api.expect(409, "POST", "messages", other)


async def test_a_sealed_text_that_is_forged_is_told_to_be_damaged(api: Api) -> None:
    forged = "\u0001sealed:1:0123456789abcdef:clear:" + base64.b64encode(bytes(40)).decode()
    api.queue = "clear"
    await api.post({"body": forged}, {"body": "\u0001sealed:1::clear:"}, {"body": "good"})
    shown = await api.bodies()
    assert [list(one) for one in shown[:2]] == [["zaqar_lite_damaged"]] * 2
    assert shown[2] == "good"


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Stores]:
    """The stores of the servers that the test makes."""
    kept: list[Stores] = []

    def make(*of: Any) -> Stores:
        kept.append(make_stores(*of))
        return kept[-1]

    monkeypatch.setattr(main, "make_stores", make)
    return kept


async def test_what_was_sealed_is_opened_for_readers_of_its_queue_alone(
    make_api: MakeApi, file: Path, stores: list[Stores]
) -> None:
    """Who has seen the store, or a copy of it, may be a client that can post to another queue."""
    async with make_api(encryption_key_file=file) as api:
        await api.call("PUT", "", ON)
        (message_id,) = await api.post({"body": "4111"})
        queue = QueueRef(PROJECT, api.queue)
        plan = {"queue": "a", "every": "1h", "body": 1}
        [stored] = await stores[0].messages.get_messages(queue, (message_id,))
        await api.expect(201, "PUT", "/v2/schedules/nightly", plan)
        [record] = await stores[0].management.list_records(SCHEDULE, PROJECT, limit=1)
        for text in map(json.loads, (stored.body, record.value)):
            post = {"messages": [{"body": "good"}, {"body": text}]}
            await api.expect(201, "PUT", "/v2/queues/clear", {"_default_message_delay": 60})
            for path in ("queues/clear", "topics/clear"):
                answer = await api.expect(400, "POST", f"/v2/{path}/messages", post)
                assert "Message 1 has an encrypted body" in answer.text
            one = {"messages": [{"body": 1}]}
            good = await api.expect(201, "POST", "/v2/queues/clear/messages", one)
            await api.expect(400, "PATCH", good.json()["resources"][0], {"body": text})
            await api.expect(204, "DELETE", "/v2/queues/clear")
        # A pop without the key gave it out: who may read the queue may have it opened there.
        await api.post({"body": json.loads(stored.body)})
        assert await api.bodies() == ["4111", "4111"]


async def test_keys_rotate_and_the_earlier_ones_open_what_they_sealed(
    api: Api, make_api: MakeApi
) -> None:
    await api.post({"body": 1})
    (before,) = (await api.call("GET", "/v2/data-keys")).json()["data_keys"]
    assert (before["server_key"], before["current"]) == ("first", True)
    answer = await api.expect(201, "POST", "/v2/data-keys")
    assert [one["current"] for one in answer.json()["data_keys"]] == [False, True]
    await api.post({"body": 2})
    assert await api.bodies() == [1, 2]
    api.advance(31 * 86_400)
    await api.post({"body": 3})
    assert len((await api.call("GET", "/v2/data-keys")).json()["data_keys"]) == 3


async def test_the_servers_key_can_be_replaced(
    make_api: MakeApi, file: Path, tmp_path: Path
) -> None:
    """Without its key a message comes out by a pop alone, and no claim makes it a dead letter."""
    store, queue = {"store": f"embedded://{tmp_path}/data"}, "kept"

    @asynccontextmanager
    async def with_keys(*lines: str) -> AsyncIterator[Api]:
        write(file, *lines)
        async with make_api(encryption_key_file=file, **store) as api:
            api.queue = queue
            yield api

    async with with_keys(f"first:{FIRST}") as api:
        letters = {"_max_claim_count": 3, "_dead_letter_queue": "dead"}
        await api.call("PUT", "", {**ON, **letters, "_honour_delays": True})
        _, _, delayed = await api.post({"body": 1}, {"body": 2}, {"body": 3, "delay": 600})
    # Another key by the same name.
    async with with_keys(f"first:{SECOND}") as api:
        posted = {"messages": [{"body": 2}]}
        for method, path in (("POST", "messages"), ("POST", "claims"), ("GET", "messages")):
            document = posted if path == "messages" and method == "POST" else None
            says = "another key than 'first'"
            await api.expect(503, method, f"{path}?echo=true", document, says=says)
    async with with_keys("# the new one comes first", f"second:{SECOND}", f"first:{FIRST}") as api:
        assert await api.bodies() == [1, 2, 3]
        keys = (await api.call("GET", "/v2/data-keys")).json()["data_keys"]
        assert [one["server_key"] for one in keys] == ["second"]
    async with with_keys(f"third:{FIRST}") as api:
        await api.expect(503, "GET", "messages?echo=true", says="encryption_key_file")
        for _ in range(5):
            answer = await api.expect(503, "POST", "claims", says="encryption_key_file")
            assert 50 < int(answer.headers["retry-after"]) <= 60
        popped = (await api.call("DELETE", "messages?pop=1")).json()["messages"]
        edited = await api.expect(200, "PATCH", f"messages/{delayed}", {"delay": 900})
        for one in (popped[0], edited.json()):
            assert one["body"]["sealed"].startswith("\u0001sealed:1:")
    async with with_keys(f"second:{SECOND}") as api:
        assert [one["body"] for one in await api.claim(ttl=60, grace=60)] == [2]
        api.advance(61)
        assert await api.claim() == []
        assert await api.bodies("dead") == [2]


QUEUE, NEW = QueueRef("p", "q"), [NewMessage(b"1", 60_000)]


class Processes:
    """What seals and opens, in processes of one store."""

    def __init__(self, file: Path) -> None:
        self.clock, self._keys = Clock(), read_key_file(file)
        _, self.management = create("memory://", clock=self.clock, options=StoreOptions())

    def start(self) -> EncryptionKeys:
        return EncryptionKeys(self.management, self._keys, self.clock)


@pytest.fixture
def processes(file: Path) -> Processes:
    return Processes(file)


async def test_a_data_key_that_is_gone_is_replaced_for_new_messages(processes: Processes) -> None:
    await processes.start().seal(QUEUE, NEW)
    [known] = await processes.management.list_records(KIND, "p", limit=10)
    await processes.management.delete_record(KIND, "p", known.name)
    keys = processes.start()
    [sealed] = await keys.seal(QUEUE, NEW)
    assert await keys.open_body("p", sealed.body) == b"1"


async def test_many_first_posts_make_one_data_key(processes: Processes) -> None:
    keys = processes.start()
    await asyncio.gather(*(keys.seal(QUEUE, NEW) for _ in range(50)))
    assert len(await keys.list_keys("p")) == 1


async def test_a_data_key_wears_though_other_projects_rotate_theirs(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "_MOST_SEALED", 1)
    keys = processes.start()
    for _ in range(3):
        await keys.seal(QUEUE, NEW)
        await keys.rotate("other")
    assert len(await keys.list_keys("p")) == 2


async def test_a_data_key_whose_answer_was_lost_is_kept(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client of a store does when an answer is lost: it writes again, and is refused."""
    management = processes.management
    put = management.put_record

    async def put_twice(*args: Any, **options: Any) -> Record:
        await put(*args, **options)
        return await put(*args, **options)

    monkeypatch.setattr(management, "put_record", put_twice)
    [sealed] = await processes.start().seal(QUEUE, NEW)
    assert len(await management.list_records(KIND, "p", limit=10)) == 1
    assert await processes.start().open_body("p", sealed.body) == b"1"


SECRETS = ("4111-body", "4111-header", "4111-plan", "sesame-in-pool", "sesame-option")
POOL_OF_SECRETS = {
    "uri": "redis://u:sesame-in-pool@127.0.0.1:1/0",
    "options": {"key": "sesame-option"},
    "weight": 0,
}


def on_disk(folder: Path) -> bytes:
    """All that the store of a test has written."""
    files = (path for path in (folder / "data").rglob("*") if path.is_file())
    return b"".join(path.read_bytes() for path in files)


async def test_a_copy_in_an_encrypted_queue_is_encrypted_though_its_source_is_not(
    make_api: MakeApi, file: Path, tmp_path: Path
) -> None:
    store = f"embedded://{tmp_path}/data"
    async with make_api(store=store, encryption_key_file=file) as api:
        await api.expect(201, "PUT", "/v2/queues/copies", ON | {"_filter": "kind = 'a'"})
        await api.post({"body": SECRETS[0], "headers": {"kind": "a"}}, {"body": "other"})
        assert await api.bodies("copies") == [SECRETS[0]]
        assert await api.bodies() == [SECRETS[0], "other"]
    assert SECRETS[0].encode() not in on_disk(tmp_path)


async def test_a_letter_in_an_encrypted_queue_is_encrypted_though_its_message_is_not(
    make_api: MakeApi, file: Path, stores: list[Stores]
) -> None:
    async with make_api(encryption_key_file=file) as api:
        await api.expect(201, "PUT", "/v2/queues/letters", ON)
        options = {"dead_letter_queue": "letters"}
        hook = {"subscriber": "http://127.0.0.1:1024/", "options": options}  # not delivery_allowed
        await api.expect(201, "POST", "subscriptions", hook)
        await api.post({"body": "posted"})
        (letter,) = await until(lambda: api.bodies("letters"))
        assert letter["message"]["body"] == "posted"
        letters = QueueRef(PROJECT, "letters")
        (stored,) = (await stores[0].messages.list_messages(letters, ListQuery(2))).messages
        assert is_sealed(stored.body)


@pytest.mark.parametrize("sealed", [True, False])
async def test_nothing_clear_lies_on_the_disk_where_the_server_has_a_key(
    make_api: MakeApi, file: Path, tmp_path: Path, sealed: bool
) -> None:
    """Neither a body nor what subscriptions, schedules and pools hold."""
    stored: dict[str, Any] = {"store": f"embedded://{tmp_path}/data", "admin_mode": True}
    stored |= {"delivery_allowed": "127.0.0.0/8", "pooling": True}
    with_key = {**stored, "encryption_key_file": file}
    async with Receiver() as receiver, make_api(**(with_key if sealed else stored)) as api:
        queue = api.queue
        status, says = (201, "") if sealed else (400, "encryption_key_file")
        delays = {"_default_message_delay": 60}
        await api.expect(status, "PUT", "", ON | delays, says=says)
        await api.call("PUT", "", delays)
        edited, _ = await api.post({"body": "before"}, {"body": {"again": SECRETS[0]}})
        await api.expect(200, "PATCH", f"messages/{edited}", {"body": SECRETS[0]})
        assert (await api.call("GET", f"messages/{edited}")).json()["body"] == SECRETS[0]
        headers = {"X-Token": SECRETS[1]}
        hook = {"subscriber": receiver.url, "ttl": 900, "options": {"post_headers": headers}}
        made = (await api.call("POST", "subscriptions", hook)).json()
        own = f"subscriptions/{made['subscription_id']}"
        await api.expect(204, "PATCH", own, {"ttl": 600})
        await api.post({"body": 1, "delay": 0})
        await receiver.wait(1)
        assert receiver.received[0].headers["x-token"] == SECRETS[1]
        plan = {"queue": api.queue, "every": "1h", "body": SECRETS[2]}
        await api.expect(201, "PUT", "/v2/schedules/nightly", plan)
        await api.expect(201, "PUT", "/v2/pools/one", POOL_OF_SECRETS)
        await api.expect(409, "PUT", "/v2/pools/two", POOL_OF_SECRETS)
        await api.expect(201, "PUT", "/v2/flavors/fast", {"pool_list": ["one"]})
    found = on_disk(tmp_path)
    for secret in (*SECRETS, made["secret"], receiver.url):
        assert (secret.encode() in found) is not sealed, secret
    if sealed:
        async with make_api(**stored) as api:  # without the keys
            api.queue = queue
            for path in (own, "subscriptions", "/v2/schedules/nightly"):
                await api.expect(503, "GET", path, says="encryption_key_file")
            for path in ("/v2/pools/one", "/v2/pools"):
                await api.expect(503, "GET", path)
            await api.expect(201, "PUT", "/v2/schedules/clear", plan)
    async with make_api(**with_key) as api:
        api.queue = queue
        assert (await api.call("GET", own)).json()["subscriber"] == receiver.url
        shown = (await api.call("GET", "/v2/schedules")).json()["schedules"]
        assert [one["name"] for one in shown] == ["clear", "nightly"][not sealed :]
        assert shown[-1]["body"] == SECRETS[2]
        pool = (await api.call("GET", "/v2/pools/one?detailed=true")).json()
        assert pool["uri"].startswith("redis://***")
        assert (await api.call("GET", "/v2/flavors/fast")).json()["pool_list"] == ["one"]
        await api.expect(200, "PATCH", "/v2/pools/one", {"weight": 1})


async def test_a_damaged_or_moved_record_blocks_no_other_and_can_be_deleted(
    make_api: MakeApi, file: Path, stores: list[Stores], caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"encryption_key_file": file, "delivery_allowed": "127.0.0.0/8"}
    options |= {"admin_mode": True, "pooling": True}
    plan = {"queue": "posted", "every": "1h", "body": 1}
    async with Receiver() as receiver, make_api(**options) as api:
        management = stores[0].management

        async def damage(record: Record) -> None:
            text = record.value[:-9] + b"AAAAAAAA" + record.value[-1:]
            of = (record.kind, record.project, record.name)
            await management.put_record(*of, text, expected=None)

        made = []
        for number in range(4):
            hook = {"subscriber": f"{receiver.url}/{number}", "ttl": 900}
            made.append((await api.call("POST", "subscriptions", hook)).json()["subscription_id"])
            await api.expect(201, "PUT", f"/v2/schedules/n{number}", plan)
        for kind in (SUBSCRIPTION, SCHEDULE):
            first, second, third, _ = await management.list_records(kind, PROJECT, limit=10)
            await damage(first)
            # Sealed for this project, but under another name.
            await management.put_record(kind, PROJECT, second.name, third.value, expected=None)
        api.advance(2)
        for path in (f"subscriptions/{made[0]}", f"subscriptions/{made[1]}", "/v2/schedules/n1"):
            await api.expect(503, "GET", path, says="damaged")
        for path, shown in (("subscriptions", made[2:]), ("/v2/schedules", ["n2", "n3"])):
            answer = await api.call("GET", f"{path}?limit=2")
            [listed] = [one for one in answer.json().values() if "rel" not in one[0]]
            assert [one.get("id", one.get("name")) for one in listed] == shown
        assert made[0] in caplog.text
        await api.post({"body": 1})
        await receiver.wait(2)
        assert {one.path for one in receiver.received} == {"/2", "/3"}
        for path in (f"subscriptions/{made[0]}", "/v2/schedules/n0"):
            await api.expect(204, "DELETE", path)
            await api.expect(404, "GET", path)
        await api.expect(204, "POST", "purge", {"resource_types": ["subscriptions"]})
        assert await management.list_records(SUBSCRIPTION, PROJECT, limit=10) == []
        await api.expect(201, "PUT", "/v2/pools/one", POOL_OF_SECRETS)
        (pool,) = await management.list_records(POOL, "", limit=9)
        await damage(pool)
        await api.expect(503, "GET", "/v2/pools/one", says="damaged")
        await api.expect(204, "DELETE", "/v2/pools/one")
        await api.expect(201, "PUT", "/v2/pools/one", POOL_OF_SECRETS)


@pytest.mark.parametrize(
    "text", ["", "first", "first:AES256", f"first:{FIRST}\nfirst:{SECOND}", f":{FIRST}"]
)
def test_a_wrong_file_of_keys_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read_key_file(path)
    assert FIRST not in str(refused.value)
    assert json.dumps(str(path))[1:-1] in str(refused.value)
