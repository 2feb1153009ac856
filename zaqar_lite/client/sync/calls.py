# Generated from asynchronous/calls.py by tests/generate_sync.py; change it there.
"""What every method of the sync client stands on: it takes the steps in the caller's thread."""

from types import TracebackType
from typing import Self, TypeVar

from zaqar_lite.client.base_client import BaseClient
from zaqar_lite.client.calls import Call, Login, Request, Sleep, Step, Steps, ToTheEnd
from zaqar_lite.client.errors import Unreachable
from zaqar_lite.client.methods import Sync
from zaqar_lite.client.sync.runtime import login, sleep, to_the_end, wait_for
from zaqar_lite.client.transports import Transport

T = TypeVar("T")


class SyncCalls(BaseClient, Sync):
    """Take the steps of methods."""

    transport: Transport

    def _open(self) -> None:
        # Only here: a program with the other client alone need not import this library.
        from zaqar_lite.client.urllib3_transport import Urllib3Transport  # noqa: PLC0415

        self.transport = Urllib3Transport(
            timeout=self._timeout, connections=self._connections, ssl_context=self._ssl_context
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def call(self, call: Call[T]) -> T:
        """Make a call of an endpoint, with retries."""
        return self._run(self._exchange(call))

    def _run(self, steps: Steps[T]) -> T:
        """Take the steps of a method; return its result."""
        try:
            step = next(steps)
            while True:
                try:
                    outcome = self._take(step)
                except BaseException as error:  # noqa: BLE001 - the steps raise it again
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result

    def _take(self, step: Step) -> object:
        """Take a step; return its outcome."""
        if isinstance(step, Request):
            try:
                return self.transport.send(self.url, step)
            except Unreachable as error:
                return error
        if isinstance(step, ToTheEnd):
            return to_the_end(self._run, step)
        if isinstance(step, Sleep):
            sleep(step.seconds, step.connection)
        elif isinstance(step, Login):
            login(self._auth)
        else:
            wait_for(step)
        return None
