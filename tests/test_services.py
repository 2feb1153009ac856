"""The servers that the tests start: found, shared, killed and left alone as they should be."""

import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from tests import services


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


@pytest.mark.parametrize("fsync", ["always", None])
def test_a_kill_is_real_and_so_is_what_a_server_keeps(fsync: Literal["always"] | None) -> None:
    server = services.start_redis(appendfsync=fsync)
    server.cli("set", "key", "value")
    pid = server.processes[0].pid
    server.kill()
    assert server.cli("ping") == "", "a killed server must not answer"
    server.restart()
    assert server.processes[0].pid != pid
    assert server.cli("get", "key").strip() == ("value" if fsync else "")
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
