"""The time limit of a handler: it hits nothing else, and leaves nothing half done."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial

import pytest

from tests.services.process import run_program
from zaqar_lite.client import TimeLimitExceeded
from zaqar_lite.client.time_limit import limited


def busy(seconds: float) -> None:
    """Run Python, which can be interrupted, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_an_exception_at_any_bytecode_of_leaving_leaves_nothing_half_done() -> None:
    command = [sys.executable, "-m", "tests.client.planting"]
    done = run_program(command, check=True)
    places, _, said = done.stdout.strip().partition(" ")
    assert said == "in all"
    assert int(places) > 20


def test_a_limit_that_is_over_before_the_handler_begins_interrupts_the_handler() -> None:
    for _ in range(100):
        with pytest.raises(TimeLimitExceeded, match=r"interrupted after 1e-09 s"):
            limited(partial(busy, 20), 1e-9, lambda _: None)


def test_one_thread_watches_the_deadlines_of_all_threads() -> None:
    late: list[int] = []
    rung = Counter[int]()

    def handle(number: int) -> None:
        try:
            limited(lambda: busy(0 if number % 2 else 20), 1.0, lambda one: rung.update([one]))
        except TimeLimitExceeded:
            late.append(number)

    threads = [threading.Thread(target=handle, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    watching = [one.name for one in threading.enumerate()].count("zaqar-limits")
    for thread in threads:
        thread.join(20)
    assert sorted(late) == [0, 2, 4, 6]
    assert sorted(rung) == sorted(threads[number].ident or 0 for number in late)
    assert watching == 1


def test_an_error_of_what_shall_happen_then_stops_no_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: int) -> None:
        raise ValueError

    for _ in range(2):
        with pytest.raises(TimeLimitExceeded):
            limited(lambda: busy(20), 0.01, fail)
    assert len(caplog.records) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_process_has_a_watcher_of_its_own() -> None:
    program = """if True:
        import os
        from tests.client.planting import busy
        from zaqar_lite.client.time_limit import TimeLimitExceeded, limited

        def is_interrupted():
            try:
                limited(busy, 0.01, lambda _: None)
            except TimeLimitExceeded:
                return True

        assert is_interrupted()
        child = os.fork()
        if child == 0:
            os._exit(0 if is_interrupted() else 1)
        assert os.waitpid(child, 0) == (child, 0)
    """
    command = [sys.executable, "-W", "ignore", "-c", program]
    subprocess.run(command, check=True, timeout=30)


@pytest.mark.parametrize("limit", [60, 0.01])
def test_a_traced_function_begins_after_a_limited_one(limit: float) -> None:
    """In a process that Python takes for one with something to raise, it never does."""
    code = f"""if True:
        import sys, threading
        from contextlib import suppress
        from zaqar_lite.client.time_limit import TimeLimitExceeded, limited

        ended = threading.Event()
        with suppress(TimeLimitExceeded):
            limited(lambda: ended.wait({limit} < 1), {limit}, lambda _: ended.set())
        sys.settrace(lambda *_: None)
        (lambda: print("ended"))()
    """
    done = run_program([sys.executable, "-c", code], check=True)
    assert done.stdout == "ended\n"
