"""The receivers of the guide to webhooks, run as they stand there."""

import json
import re
import shutil
import sys
import textwrap
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.docs.pages import ROOT
from tests.services.process import Process, free_port, listens, wait_until
from zaqar_lite.webhooks import signed_headers

GUIDE = ROOT / "api-ref" / "source" / "guide-webhooks.rst"
SECRET = "whsec_" + "c2VjcmV0" * 4
PYTHON = """
import json
seen = set()
def seen_before(name):
    known = name in seen
    seen.add(name)
    return known
def handle(body):
    print("handled", json.dumps(body), flush=True)
"""
NODE = """
const seen = new Set();
const seenBefore = (name) => seen.has(name) || !seen.add(name);
const handle = (body) => console.log("handled", JSON.stringify(body));
"""
RUN = {
    "Flask": "app.run(port=PORT)",
    "FastAPI": "import uvicorn\nuvicorn.run(app, port=PORT)",
    "Node": "",
}


def receiver(name: str) -> str:
    """The text of a receiver in the guide."""
    found = re.search(
        rf":caption: {name}[^\n]*\n\n((?:   [^\n]*\n|\n)+)", GUIDE.read_text(encoding="utf-8")
    )
    assert found is not None
    return textwrap.dedent(found.group(1)).replace("whsec_...", SECRET)


def program(name: str, port: int, home: Path) -> list[str]:
    """The command that runs a receiver."""
    if name == "Node":
        node = shutil.which("node")
        if node is None:
            pytest.skip("node is not installed")
        file = home / "receiver.mjs"
        file.write_text(NODE + receiver(name).replace("8080", str(port)), encoding="utf-8")
        return [node, str(file)]
    if name == "Flask":
        pytest.importorskip("flask")
    file = home / "receiver.py"
    run = RUN[name].replace("PORT", str(port))
    file.write_text(f"{PYTHON}\n{receiver(name)}\n{run}\n", encoding="utf-8")
    return [sys.executable, str(file)]


@pytest.mark.parametrize("name", RUN)
def test_a_receiver_of_the_guide_takes_what_is_signed_once(name: str, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    body = json.dumps({"body": {"order": 7}}).encode()
    with ExitStack() as stack:
        running = Process(program(name, port, tmp_path), log=log)
        running.start()
        stack.callback(running.kill)
        wait_until(lambda: listens(port), [], timeout=60)
        for message_id, age, change, status in (
            ("msg_1", 0, b"", 204),
            ("msg_1", 0, b"", 204),
            ("msg_2", 0, b" ", 403),
            ("msg_3", 3_600, b"", 403),
        ):
            headers = signed_headers(
                [SECRET], message_id=message_id, timestamp=int(time.time()) - age, body=body
            )
            headers["content-type"] = "application/json"
            answer = httpx.post(
                f"http://127.0.0.1:{port}/hook", content=body + change, headers=headers
            )
            assert answer.status_code == status, (message_id, answer.text)
        assert httpx.post(f"http://127.0.0.1:{port}/hook", content=body).status_code == 403
        wait_until(lambda: "handled" in log.read_text(encoding="utf-8"), [], timeout=20)
    said = log.read_text(encoding="utf-8")
    assert said.count("handled") == 1
    assert re.search(r'handled \{"order": ?7\}', said)
