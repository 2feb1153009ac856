"""The servers that the tests start are real, and so are the faults that tests plant in them."""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pymongo
import pytest

from tests import services


def test_redis_answers(redis_server: services.RedisServer) -> None:
    assert redis_server.cli("ping").strip() == "PONG"


def test_sentinels_promote_the_replica(redis_sentinel: services.RedisSentinel) -> None:
    before = redis_sentinel.master()
    redis_sentinel.fail_over()
    assert redis_sentinel.master().port != before.port


def test_cluster_serves_every_slot(redis_cluster: services.RedisCluster) -> None:
    info = redis_cluster.nodes[2].cli("cluster", "info")
    assert "cluster_state:ok" in info
    assert "cluster_slots_assigned:16384" in info
    assert len(redis_cluster.nodes) == 3


def test_mongodb_stores_documents(mongodb_server: services.MongoServer) -> None:
    client: pymongo.MongoClient[dict[str, int]] = pymongo.MongoClient(mongodb_server.url)
    try:
        documents = client["services_test"]["documents"]
        documents.insert_one({"number": 7})
        assert documents.count_documents({"number": 7}) == 1
        client.drop_database("services_test")
    finally:
        client.close()


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("mongodb://h:1/", "mongodb://h:1/zaqar_test_{}"),
        ("mongodb://h:1/mine?w=1", "mongodb://h:1/mine_test_{}?w=1"),
        ("mongodb://u:p@h", "mongodb://u:p@h/zaqar_test_{}?authSource=admin"),
        ("mongodb://u:p@h/d?w=1", "mongodb://u:p@h/d_test_{}?w=1&authSource=d"),
        ("mongodb://u:p@h/?authSource=a", "mongodb://u:p@h/zaqar_test_{}?authSource=a"),
    ],
)
def test_each_process_has_a_mongodb_database_of_its_own(given: str, own: str) -> None:
    assert services.mongo_from(given).url == own.format(os.getpid())


def test_a_mongod_of_yours_is_preferred_to_the_stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "mongod"
    program.write_text("#!/bin/sh\necho db version v0.0\n")
    program.chmod(0o755)
    monkeypatch.delenv("ZAQAR_TEST_MONGODB_URL", raising=False)
    monkeypatch.setenv("ZAQAR_TEST_MONGOD", str(program))
    assert services.describe_mongo() == f"{program}, db version v0.0"


def test_swift_stores_objects_and_expires_them(swift_server: services.SwiftServer) -> None:
    token = httpx.get(
        swift_server.auth_url,
        headers={"X-Auth-User": swift_server.user, "X-Auth-Key": swift_server.key},
    )
    assert token.status_code == 200
    container = f"{token.headers['X-Storage-Url']}/services-test"
    headers = {"X-Auth-Token": token.headers["X-Auth-Token"]}
    with httpx.Client(headers=headers) as client:
        assert client.put(container).status_code in (201, 202)
        stored = client.put(f"{container}/object", content=b"x", headers={"X-Delete-After": "1"})
        assert stored.status_code == 201
        assert client.get(container).text == "object\n"
        _wait(lambda: client.get(container).status_code == 204)
        assert client.delete(container).status_code == 204


def test_rabbitmq_answers_its_management_api(rabbitmq_server: services.RabbitServer) -> None:
    overview = httpx.get(f"{rabbitmq_server.management_url}/api/overview")
    assert overview.status_code == 200
    assert overview.json()["product_name"] == "RabbitMQ"


def test_s3_keeps_objects(s3_server: services.S3Server) -> None:
    s3_server.make_bucket("services-test")
    key = f"{s3_server.url}/services-test/key"
    public = {"Content-Type": "application/octet-stream", "x-amz-acl": "public-read"}
    assert httpx.put(key, content=b"x", headers=public).status_code == 200
    assert httpx.get(key).content == b"x"


@pytest.mark.slow
def test_redis_with_appendfsync_always_survives_a_kill() -> None:
    with services.start_redis(appendfsync="always") as server:
        for number in range(100):
            server.cli("set", f"key-{number}", str(number))
        pid = server.processes[0].pid
        server.kill()
        assert server.cli("ping") == "", "a killed server must not answer"
        server.restart()
        assert server.processes[0].pid != pid
        assert server.cli("dbsize").strip() == "100"
        assert server.cli("get", "key-99").strip() == "99"


@pytest.mark.slow
def test_redis_without_persistence_loses_everything_in_a_kill() -> None:
    with services.start_redis() as server:
        server.cli("set", "key", "value")
        server.kill()
        server.restart()
        assert server.cli("dbsize").strip() == "0"


@pytest.mark.slow
def test_sentinels_notice_a_killed_master() -> None:
    with services.start_redis_sentinel(appendfsync="always") as sentinel:
        master = sentinel.master()
        master.cli("set", "key", "value")
        master.cli("wait", "1", "1000")
        master.kill()
        _wait(lambda: sentinel.master().port != master.port)
        assert sentinel.master().cli("get", "key").strip() == "value"


@pytest.mark.slow
def test_cluster_replica_takes_over_from_a_killed_master() -> None:
    with services.start_redis_cluster(replicas=1) as cluster:
        cluster.nodes[0].kill()
        survivor = cluster.nodes[1]
        _wait(lambda: "master,fail" in survivor.cli("cluster", "nodes"))
        _wait(lambda: "cluster_state:ok" in survivor.cli("cluster", "info"))


@pytest.mark.slow
def test_mongodb_keeps_its_data_over_a_kill() -> None:
    with services.start_mongo(durable=True) as server:
        client: pymongo.MongoClient[dict[str, int]] = pymongo.MongoClient(server.url)
        try:
            client["services_test"]["documents"].insert_one({"number": 7})
            server.kill()
            server.restart()
            assert client["services_test"]["documents"].count_documents({}) == 1
        finally:
            client.close()


def test_stopping_a_server_leaves_nothing_behind() -> None:
    server = services.start_redis()
    server.stop()
    assert server.data is not None
    assert not server.data.exists()
    assert not server.processes[0].alive()


def test_a_server_of_somebody_else_is_not_stopped() -> None:
    with services.start_redis() as ours:
        theirs = services.redis_from(ours.url)
        assert theirs.port == ours.port
        with pytest.raises(RuntimeError, match="not ours"):
            theirs.kill()
        theirs.stop()
        assert ours.cli("ping").strip() == "PONG"


def test_processes_share_a_server_that_ends_with_the_last_of_them(tmp_path: Path) -> None:
    def use() -> int:
        with services.shared("redis", services.start_redis, tmp_path) as theirs:
            assert theirs.cli("ping").strip() == "PONG"
            with pytest.raises(RuntimeError, match="not ours"):
                theirs.kill()
            users.put(theirs.port)
            assert leave.wait(20)
        return theirs.port

    users: queue.Queue[int] = queue.Queue()
    leave = threading.Event()
    with ThreadPoolExecutor() as pool:
        with services.shared("redis", services.start_redis, tmp_path) as ours:
            another = pool.submit(use)
            assert users.get(timeout=20) == ours.port
            threading.Timer(0.5, leave.set).start()
        assert another.done() or leave.is_set()
        assert another.result() == ours.port
    assert not ours.processes[0].alive()
    with services.shared("redis", services.start_redis, tmp_path) as anew:
        assert anew.port != ours.port


def test_a_program_that_ends_at_once_is_reported_with_its_own_words() -> None:
    with pytest.raises(RuntimeError, match=r"ended instead of starting(?s:.)*Bad directive"):
        services.start_redis(options=["--no-such-option", "1"])


def test_a_missing_program_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tests.services.process.SYSTEM_PATH", ())
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="redis-server is missing: apt-get install"):
        services.start_redis()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="redis-server is missing: apt-get install"):
        services.start_redis()


def test_a_quick_run_starts_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZAQAR_TEST_QUICK", "1")
    with pytest.raises(pytest.skip.Exception, match="--quick"):
        services.start_redis()


def test_a_url_from_the_environment_is_taken_apart() -> None:
    swift = services.swift_from("http://acme%3Ajoe:s%2Fcret@swift.example:8080/auth/v1.0")
    assert swift.user == "acme:joe"
    assert swift.key == "s/cret"
    assert swift.auth_url == "http://swift.example:8080/auth/v1.0"
    assert swift.url == "swift+http://acme%3Ajoe:s%2Fcret@swift.example:8080/auth/v1.0"
    rabbit = services.rabbit_from("amqp://guest:secret@broker.example:5672/%2F")
    assert rabbit.management_url == "http://guest:secret@broker.example:15672"


def _wait(happened: Callable[[], bool], *, seconds: float = 20) -> None:
    """Wait for what another process does in its own time."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
