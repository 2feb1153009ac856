"""A client that sends frames and reads their answers."""

import json
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.server import ServerProcess


class Answer(NamedTuple):
    """What a frame was answered."""

    status: int
    body: Any
    request: Any


class Talk:
    """One WebSocket; frames carry its headers and are JSON, or MessagePack where it is `binary`."""

    def __init__(
        self,
        server: ServerProcess,
        *,
        project: str | None = None,
        binary: bool = False,
        path: str = "/v2/ws",
        port: int | None = None,
        **options: Any,
    ) -> None:
        self.binary = binary
        self.project = project or uuid.uuid4().hex
        self.headers: dict[str, Any] = {
            "Client-ID": str(uuid.uuid4()),
            "X-Project-ID": self.project,
        }
        url = f"ws://127.0.0.1:{port or server.port}{path}"
        self._opening = connect(url, compression=None, **{"open_timeout": 60, **options})
        self.socket: ClientConnection

    def __enter__(self) -> Self:
        self.socket = self._opening.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._opening.__exit__(*raised)

    def ask(self, action: str, headers: Mapping[str, Any] | None = None, **body: Any) -> Answer:
        """Send a frame with this body and read its answer."""
        sent = {**self.headers, **(headers or {})}
        self.send({"action": action, "headers": sent, "body": body})
        return self.answer()

    def send(self, document: Any) -> None:
        """Send a document as a frame."""
        if self.binary:
            self.socket.send(msgspec.msgpack.encode(document))
        else:
            self.socket.send(json.dumps(document))

    def read(self, timeout: float = 20) -> Any:
        """Read a frame's document."""
        data = self.socket.recv(timeout)
        return msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)

    def end(self) -> tuple[int, str] | None:
        """Read until the server ends the connection; answer its code and reason, if any came."""
        try:
            while True:
                self.read(30)
        except ConnectionClosed as closed:
            said = closed.rcvd
        return None if said is None else (said.code, said.reason)

    def answer(self) -> Answer:
        """Read an answer; it has the form of its request."""
        data = self.socket.recv(20)
        assert isinstance(data, bytes) == self.binary
        found = msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)
        assert set(found) == {"request", "body", "headers"}
        assert found["request"]["api"] == "v2"
        return Answer(found["headers"]["status"], found["body"], found["request"])
