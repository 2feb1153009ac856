"""Dead-letter queues: exact counts, ttl, no chains, visible at once; and idempotent posts."""

from tempest.lib import decorators, exceptions

from zaqar_lite_tempest_plugin.client import claim_id_of
from zaqar_lite_tempest_plugin.tests.base import AdditionsTest, MessagingTest


class DeadLettersTest(MessagingTest):
    """Where a message goes that nobody can process."""

    def fail(self, times: int) -> None:
        """Claim and release the test's queue."""
        for _ in range(times):
            held = self.client.claim(self.queue)
            self.assertEqual(1, len(held))
            self.client.release(self.queue, claim_id_of(held[0]))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7e01")
    def test_delivered_exactly_so_often_then_moved(self) -> None:
        """The same id, free and visible at once, with the ttl of the policy."""
        target = self.new_name()
        self.create(
            _max_claim_count=2, _dead_letter_queue=target, _dead_letter_queue_messages_ttl=500
        )
        (message_id,) = self.client.post(self.queue, {"body": "poison", "ttl": 300})
        self.fail(2)
        self.assertEqual([], self.client.claim(self.queue))
        self.assertEqual(0, self.client.stats(self.queue)["total"])
        (letter,) = self.client.browse(target)
        self.assertEqual((message_id, "poison", 500), (letter["id"], letter["body"], letter["ttl"]))
        self.assertEqual(1, len(self.client.claim(target)))

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7e02")
    def test_does_not_count_without_a_policy(self) -> None:
        """A queue without the attributes delivers for ever."""
        self.client.post(self.queue, {"body": 1})
        self.fail(4)

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7e03")
    def test_refuses_chains(self) -> None:
        """A dead-letter queue may not have one, and none may be its own."""
        target = self.new_name()
        self.create(_max_claim_count=1, _dead_letter_queue=target)
        for name, metadata in (
            (target, {"_max_claim_count": 1, "_dead_letter_queue": self.new_name()}),
            (self.new_name(), {"_max_claim_count": 1, "_dead_letter_queue": self.queue}),
        ):
            self.assertRaises(exceptions.BadRequest, self.client.create_queue, name, metadata)
        own = self.new_name()
        self.assertRaises(
            exceptions.BadRequest, self.client.create_queue, own, {"_dead_letter_queue": own}
        )

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7e04")
    def test_refuses_a_count_that_can_not_work(self) -> None:
        """It is 1 to 65535."""
        for count in (0, -1, 65_536):
            self.assertRaises(
                exceptions.BadRequest,
                self.client.create_queue,
                self.queue,
                {"_max_claim_count": count},
            )


class AddedTest(AdditionsTest):
    """Details and idempotency."""

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7e05")
    def test_a_letter_says_where_it_came_from(self) -> None:
        """Source, count and the last claim."""
        target = self.new_name()
        self.create(_max_claim_count=1, _dead_letter_queue=target)
        self.client.post(self.queue, {"body": 1})
        (held,) = self.client.claim(self.queue)
        self.client.release(self.queue, claim_id_of(held))
        self.client.claim(self.queue)
        (letter,) = self.client.browse(target, details="true")
        origin = letter["dead_letter"]
        self.assertEqual(
            (self.queue, 1, claim_id_of(held)),
            (origin["source"], origin["claim_count"], origin["last_claim_id"]),
        )

    @decorators.idempotent_id("6f3bb1de-3a42-4d2f-8a57-0c0f7c1b7e06")
    def test_idempotent_posts(self) -> None:
        """A replay gets the first answer; a message's key stores it once, and no other message."""
        first = self.client.post(self.queue, {"body": 1}, Idempotency_Key="one")
        self.assertEqual(first, self.client.post(self.queue, {"body": 1}, Idempotency_Key="one"))
        keyed = self.client.post(
            self.queue,
            {"body": 2, "idempotency_key": "k"},
            {"body": 2, "idempotency_key": "k"},
        )
        self.assertEqual(keyed[0], keyed[1])
        self.assertEqual([1, 2], [m["body"] for m in self.client.browse(self.queue)])
