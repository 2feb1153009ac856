"""The servers that the tests start: found, shared, killed and left alone as they should be."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from tests import services


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


def test_a_missing_program_skips_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tests.services.process.SYSTEM_PATH", ())
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="redis-server is missing: apt-get install"):
        services.start_redis()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="redis-server is missing: apt-get install"):
        services.start_redis()
