"""Queues: create, show, patch, list, stats, purge, share, and what is refused."""

from typing import Any

from tempest.lib import decorators, exceptions

from zaqar_lite_tempest_plugin import schemas
from zaqar_lite_tempest_plugin.tests.base import MessagingTest


class QueuesTest(MessagingTest):
    """What a queue can do."""

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7a01")
    def test_create_twice_and_delete(self) -> None:
        """201, then 204 with the metadata as they were."""
        self.create(colour="red")
        self.client.expect(204, "PUT", f"queues/{self.queue}", {"colour": "blue"})
        self.assertEqual("red", self.client.show_queue(self.queue)["colour"])
        self.client.delete_queue(self.queue)
        self.assertNotIn("colour", self.client.show_queue(self.queue))
        self.client.delete_queue(self.queue)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7a02")
    def test_patch(self) -> None:
        """Add, replace and remove, all or none."""
        self.create(a=1)
        shown = self.client.patch_queue(
            self.queue,
            {"op": "add", "path": "/metadata/b", "value": 2},
            {"op": "replace", "path": "/metadata/a", "value": 3},
        )
        self.assertEqual((3, 2), (shown["a"], shown["b"]))
        self.assertRaises(
            exceptions.Conflict,
            self.client.patch_queue,
            self.queue,
            {"op": "add", "path": "/metadata/c", "value": 1},
            {"op": "remove", "path": "/metadata/none"},
        )
        self.assertNotIn("c", self.client.show_queue(self.queue))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7a03")
    def test_list_by_pages(self) -> None:
        """Every queue is on exactly one page."""
        names = sorted(self.new_name() for _ in range(5))
        for name in names:
            self.client.create_queue(name)
        seen: list[str] = []
        marker: dict[str, Any] = {}
        while True:
            page = self.client.list_queues(limit=2, **marker)["queues"]
            if not page:
                break
            seen += [queue["name"] for queue in page]
            marker = {"marker": seen[-1]}
        self.assertEqual(names, [name for name in seen if name in names])
        self.assertEqual(len(seen), len(set(seen)))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7a04")
    def test_stats_and_purge(self) -> None:
        """Counts by state; purging removes claimed messages too."""
        self.client.post(self.queue, {"body": 1}, {"body": 2})
        self.client.claim(self.queue, limit=1)
        stats = self.client.stats(self.queue)
        self.assertEqual((1, 1, 2), (stats["claimed"], stats["free"], stats["total"]))
        self.client.expect(204, "POST", f"queues/{self.queue}/purge")
        self.assertEqual(0, self.client.stats(self.queue)["total"])

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7a05")
    def test_refuses_reserved_attributes_out_of_range(self) -> None:
        """400 names the attribute; no queue is created."""
        for metadata in (
            {"_default_message_ttl": 59},
            {"_default_message_delay": -1},
            {"_max_messages_post_size": 0},
            {"_dead_letter_queue_messages_ttl": 1},
        ):
            self.assertRaises(exceptions.BadRequest, self.client.create_queue, self.queue, metadata)
        self.client.create_queue(self.queue)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7a06")
    def test_refuses_names(self) -> None:
        """A name has 1 to 64 letters, digits, '_', '-' and '.'."""
        for name in ("q" * 65, "a@b", "a%0A"):
            self.assertRaises(exceptions.BadRequest, self.client.create_queue, name)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7a07")
    def test_share(self) -> None:
        """A pre-signed URL, or 400 where the server has no key."""
        try:
            signed = self.client.checked(
                schemas.signed, "POST", f"queues/{self.queue}/share", {"methods": ["GET"]}
            )
        except exceptions.BadRequest as error:
            raise self.skipException("the server has no key to sign with") from error
        self.assertEqual([f"/v2/queues/{self.queue}/messages"], signed["paths"])
