"""A queue's history, on the embedded store, which keeps one."""

from pathlib import Path

from tests.server import ServerProcess
from zaqar_lite.client import Client


def test_history_tells_what_was_done_and_what_failed(tmp_path: Path, queue: str) -> None:
    with ServerProcess(f"embedded://{tmp_path}/data") as server, Client(server.url) as client:
        client.page_size = 2
        client.create_queue(
            queue,
            {
                "_done_retention": 3600,
                "_failed_retention": 3600,
                "_max_claim_count": 1,
            },
        )
        ids = client.post_batch(queue, list(range(6)))
        with client.claim(queue, limit=5) as claim:
            assert len(list(claim)) == 5
        with client.claim(queue) as claim:
            claim.skip(*claim.messages)
        assert client.create_claim(queue) is None
        done = list(client.history(queue))
        assert [line.id for line in done] == ids[:5]
        assert all(line.attempts == 1 for line in done)
        assert all(line.at is not None for line in done)
        assert [one.replace("-", "") for one in done[0].consumers] == [
            client.client_id.replace("-", "")
        ]
        assert [line.id for line in client.history(queue, state="failed")] == ids[5:]
