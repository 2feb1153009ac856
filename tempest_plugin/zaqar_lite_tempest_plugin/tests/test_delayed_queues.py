"""Delayed queues: the three scenarios of their spec, boundaries, and edits before delivery."""

import time
import uuid

from tempest import config
from tempest.lib import decorators, exceptions

from zaqar_lite_tempest_plugin.tests.base import AdditionsTest, MessagingTest

CONF = config.CONF


class DelayedQueuesTest(MessagingTest):
    """When a message can be claimed."""

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d01")
    def test_scenario_1_the_queues_delay(self) -> None:
        """A message without a delay waits for the queue's, and is not early."""
        delay = CONF.zaqar_lite.short_delay
        self.create(_default_message_delay=delay)
        posted = time.monotonic()
        self.client.post(self.queue, {"body": 1})
        while not self.client.claim(self.queue):
            self.assertLess(time.monotonic() - posted, delay + 30)
            time.sleep(0.2)
        self.assertGreaterEqual(time.monotonic() - posted, delay)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d02")
    def test_scenario_2_the_messages_delay_goes_first(self) -> None:
        """A message's own delay replaces the queue's; 0 is at once."""
        self.create(_default_message_delay=CONF.zaqar_lite.max_message_delay)
        self.client.post(
            self.queue,
            {"body": "waits"},
            {"body": "at once", "delay": 0},
            {"body": "soon", "delay": CONF.zaqar_lite.short_delay},
        )
        self.assertEqual(["at once"], [m["body"] for m in self.client.claim(self.queue)])
        time.sleep(CONF.zaqar_lite.short_delay + 0.5)
        self.assertEqual(["soon"], [m["body"] for m in self.client.claim(self.queue)])

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d03")
    def test_scenario_3_a_normal_queue_has_no_delay(self) -> None:
        """A message's delay is ignored there."""
        self.client.post(self.queue, {"body": 1, "delay": CONF.zaqar_lite.max_message_delay})
        self.assertEqual(1, len(self.client.claim(self.queue)))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d04")
    def test_boundaries(self) -> None:
        """0 and the maximum are taken, what is beyond is 400."""
        most = CONF.zaqar_lite.max_message_delay
        self.create(_default_message_delay=most)
        self.client.post(self.queue, {"body": 1, "delay": 0}, {"body": 2, "delay": most})
        for delay in (-1, most + 1):
            self.assertRaises(
                exceptions.BadRequest, self.client.post, self.queue, {"body": 1, "delay": delay}
            )
            self.assertRaises(
                exceptions.BadRequest,
                self.client.create_queue,
                self.new_name(),
                {"_default_message_delay": delay},
            )

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d05")
    def test_include_delayed(self) -> None:
        """Lists hide what waits unless asked; by id it can be read."""
        self.create(_default_message_delay=60)
        (message_id,) = self.client.post(self.queue, {"body": 1})
        self.assertEqual([], self.client.browse(self.queue))
        (listed,) = self.client.browse(self.queue, include_delayed="true")
        self.assertEqual(message_id, listed["id"])
        self.assertEqual(1, self.client.show(self.queue, message_id)["body"])

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d06")
    def test_a_ttl_below_the_delay_is_never_claimed(self) -> None:
        """It is taken, and waits until it expires."""
        self.create(_default_message_delay=60)
        self.client.post(self.queue, {"body": 1, "ttl": 60, "delay": 61})
        self.assertEqual([], self.client.claim(self.queue))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d07")
    def test_switching_the_delay_off_hands_out_what_waits(self) -> None:
        """At once."""
        self.create(_default_message_delay=CONF.zaqar_lite.max_message_delay)
        self.client.post(self.queue, {"body": 1}, {"body": 2})
        self.client.patch_queue(
            self.queue, {"op": "replace", "path": "/metadata/_default_message_delay", "value": 0}
        )
        self.assertEqual([1, 2], [m["body"] for m in self.client.claim(self.queue)])


class EditingTest(AdditionsTest):
    """Editing and cancelling what still waits."""

    def edit(self, message_id: str, **document: object) -> object:
        """Edit a message of the test's queue."""
        _, body = self.client.call("PATCH", f"queues/{self.queue}/messages/{message_id}", document)
        return body

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d08")
    def test_edit_and_cancel(self) -> None:
        """Body, ttl and delay change; a cancelled message never comes."""
        self.create(_default_message_delay=60)
        first, second = self.client.post(self.queue, {"body": 1}, {"body": 2})
        self.edit(first, body="edited", delay=0)
        self.client.expect(204, "DELETE", f"queues/{self.queue}/messages/{second}")
        self.assertEqual(["edited"], [m["body"] for m in self.client.claim(self.queue)])
        self.assertRaises(exceptions.Conflict, self.edit, first, body="late")
        self.assertRaises(exceptions.NotFound, self.edit, second, body="gone")

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7d09")
    def test_refuses_edits(self) -> None:
        """Unknown fields, times out of range, unknown messages, normal queues."""
        self.create(_default_message_delay=60)
        (message_id,) = self.client.post(self.queue, {"body": 1})
        for document in ({}, {"x": 1}, {"ttl": 59}, {"delay": -1}, {"ttl": 60, "delay": 61}):
            self.assertRaises(exceptions.BadRequest, self.edit, message_id, **document)
        self.assertRaises(exceptions.NotFound, self.edit, uuid.uuid4().hex, body=1)
