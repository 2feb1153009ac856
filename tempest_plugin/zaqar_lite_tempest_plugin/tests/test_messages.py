"""Messages: post, list, get, delete, pop, and what is refused."""

import uuid
from typing import Any

from tempest import config
from tempest.lib import decorators, exceptions

from zaqar_lite_tempest_plugin import schemas
from zaqar_lite_tempest_plugin.client import claim_id_of
from zaqar_lite_tempest_plugin.tests.base import MessagingTest

CONF = config.CONF


class MessagesTest(MessagingTest):
    """What a message can do."""

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7b01")
    def test_post_and_page(self) -> None:
        """In order, every message once."""
        ids = self.client.post(self.queue, *({"body": n} for n in range(7)))
        seen: list[str] = []
        marker: dict[str, Any] = {}
        while True:
            page = self.client.browse(self.queue, limit=3, **marker)
            if not page:
                break
            seen += [message["id"] for message in page]
            marker = {"marker": seen[-1]}
        self.assertEqual(ids, seen)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7b02")
    def test_get_one_and_some(self) -> None:
        """By id, claimed ones too; 404 when there is none."""
        ids = self.client.post(self.queue, {"body": {"a": [1]}, "ttl": 300}, {"body": 2})
        self.assertEqual({"a": [1]}, self.client.show(self.queue, ids[0])["body"])
        _, body = self.client.call("GET", f"queues/{self.queue}/messages?ids={','.join(ids)}")
        self.assertEqual(2, len(body["messages"]))
        self.assertRaises(exceptions.NotFound, self.client.show, self.queue, uuid.uuid4().hex)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7b03")
    def test_delete_with_and_without_claim(self) -> None:
        """403 without the claim, 204 with it, 400 once it is over."""
        first, second = self.client.post(self.queue, {"body": 1}, {"body": 2})
        held = claim_id_of(self.client.claim(self.queue)[0])
        path = f"queues/{self.queue}/messages"
        self.assertRaises(exceptions.Forbidden, self.client.call, "DELETE", f"{path}/{first}")
        self.client.expect(204, "DELETE", f"{path}/{first}?claim_id={held}")
        self.client.release(self.queue, held)
        self.assertRaises(
            exceptions.BadRequest,
            self.client.call,
            "DELETE",
            f"{path}/{second}?claim_id={held}",
        )
        self.client.expect(204, "DELETE", f"{path}?ids={second}")

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7b04")
    def test_pop(self) -> None:
        """Popped messages are gone."""
        self.client.post(self.queue, *({"body": n} for n in range(3)))
        path = f"queues/{self.queue}/messages?pop=2"
        self.assertEqual(2, len(self.client.checked(schemas.popped, "DELETE", path)["messages"]))
        self.assertEqual(1, self.client.stats(self.queue)["total"])

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7b05")
    def test_refuses_posts_and_stores_nothing(self) -> None:
        """Every kind of wrong post is 400."""
        limits = CONF.zaqar_lite
        wrong: list[Any] = [
            {"messages": []},
            {"messages": [{}]},
            {"messages": ["text"]},
            {"messages": [{"body": 1, "ttl": 59}]},
            {"messages": [{"body": 1, "ttl": limits.max_message_ttl + 1}]},
            {"messages": [{"body": 1}, {"body": 2, "ttl": "60"}]},
            {"messages": [{"body": "x" * limits.max_messages_post_size}]},
            [{"body": 1}],
        ]
        for document in wrong:
            self.assertRaises(
                exceptions.BadRequest,
                self.client.call,
                "POST",
                f"queues/{self.queue}/messages",
                document,
            )
        self.assertEqual([], self.client.browse(self.queue))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7b06")
    def test_refuses_pages_and_bulk_deletes_out_of_range(self) -> None:
        """Limits are 1 to the server's own."""
        path = f"queues/{self.queue}/messages"
        most = CONF.zaqar_lite.max_messages_per_page
        ids = ",".join(uuid.uuid4().hex for _ in range(most + 1))
        for method, query in (
            ("GET", "limit=0"),
            ("GET", f"limit={most + 1}"),
            ("GET", f"ids={ids}"),
            ("DELETE", f"ids={ids}"),
            ("DELETE", "pop=0"),
            ("DELETE", f"ids={uuid.uuid4().hex}&pop=1"),
        ):
            self.assertRaises(exceptions.BadRequest, self.client.call, method, f"{path}?{query}")
