"""The storage seam: what every driver promises, in prose and in types.

A driver is one package with a `MessageStore` and a `ManagementStore`; `storage/registry.py` finds
it by the scheme of a URI. Operations are intentions: each is one thing that a backend can do in one
atomic step (a script, a transaction, a guarded update). The rules - defaults, limits, statuses,
who may do what - live in `service`; a driver keeps these promises, checked by `tests/contract`.

Time: durations go in, the store turns them into deadlines by its own clock, and those alone decide
what is visible. An expired message, a lapsed claim and a due delay are so from their instant on,
whether or not anything has swept. A delayed message is never handed out early.

Versions: an operation that takes `version`, as its argument or in it, was decided by a queue record
at that version. 0 means that the queue had no record; None means that the store need not check.
Where the store keeps queue records itself it compares in the same atomic step and raises
QueueChanged, before anything is changed, when the record is another one by now.

States of a message: delayed (`d` > now), ready, claimed (its lease's end > now), parked (given
back with a delay that is not over); and beside them expired (its deadline <= now: gone for every
reader). Each has its own index: a claim costs O(limit * log n) whatever else is in the queue.

Leases: each message of a claim has a lease of its own, and the claim lives until the last of them
ends. A parked message's lease goes on and belongs to nobody, so what brings lapsed messages back
brings it back too, at its own position, and a normal queue still reads no `d`. Readers see it as
claimed, without a claim id; statistics count it as delayed; delete, purge and get reach it; an edit
is a Conflict; `release_delayed` leaves it alone.

Attempts and failures: `claim_count` counts hand-outs, `failure_count` those released as failed and
those that lapsed. Each hand-out that ends without a delete is an Attempt in the message's history
(`domain/attempts.py`), which it keeps as a dead letter. The first claim, pop or sweep that meets a
lapsed lease ends the attempt, counts the failure, and in the same step moves the message to the
dead letters, parks it until lease end + back-off, or offers it; until then readers see it as ready.
The end of a parked message's wait is no failure.

Order: every queue hands out ready messages by (priority, position), and lists by position; only
FAN_OUT stores are given other priorities than the default. A position is taken when a message
enters a queue (posted or moved there) and never changes; a message that is promoted, released or
lapsed re-enters at its own. The positions of a queue that was purged, or dropped and made again,
are above all that it ever had. What an exposing queue hands out first is not promised; a message
that `release_delayed` made ready stays so, even when a delay is switched on again.

Moves: a message that goes to another queue, as a dead letter or by `move`, keeps its id, age,
attempts, priority, headers and body; it gets a new position and an `Origin`, and nobody holds it.
`max_messages` of the target does not stop it. That is atomic where the backend can, else
crash-safe: repeatable; in between the message is in neither queue, and never lost.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence

from zaqar_lite.domain.errors import Unsupported
from zaqar_lite.domain.models import (
    NO_RETRIES,
    Capability,
    Claim,
    Claimed,
    ClaimRequest,
    Edit,
    HistoryPage,
    HistoryState,
    ListQuery,
    Message,
    Move,
    Page,
    QueueRef,
    Refusal,
    RetryPolicy,
    RetryPolicyOf,
    Stats,
    SweepResult,
    no_retries,
)
from zaqar_lite.domain.posts import IdempotencyKey, KnownKeys, NewMessage, Posted
from zaqar_lite.domain.settlements import Outcome, Settled, Settlement
from zaqar_lite.storage.store import Store
from zaqar_lite.storage.watchers import Listener, Watch

MAX_EXAMINED = 1_000
"""The most entries that one step of a driver may examine (one script, one page of a scan)."""


class MessageStore(Store):
    """Messages and claims together, because they change together in one atomic step.

    Every operation on a queue that holds nothing succeeds and finds nothing; a queue need not
    have a record for its messages to be read. All methods raise Unavailable if the backend fails.
    """

    capabilities: frozenset[Capability] = frozenset()
    poll_interval_ms: int = 1_000
    """How often who waits for a queue looks, in case an announcement was lost."""
    sweep_step: int = MAX_EXAMINED
    """How many entries one call of `sweep` should tidy: a few milliseconds of work."""

    @abstractmethod
    async def post(
        self,
        queue: QueueRef,
        /,
        messages: Sequence[NewMessage],
        *,
        client_id: str,
        batch_key: IdempotencyKey | None = None,
        version: int | None,
    ) -> Sequence[Posted]:
        """Store messages, keeping the order of the batch; answer their ids in that order.

        A reader that pages by marker (with echo, claimed and delayed included) never misses one:
        a position becomes visible only after every lower one of the queue is. All or none with
        ATOMIC_BATCH; elsewhere a crash may leave an unacknowledged part for a retry with keys.

        Idempotency: `batch_key` stands for the whole call, `NewMessage.idempotency_key` for one
        message; both are scoped to this queue, live in separate name spaces, and are remembered
        for `StoreOptions.idempotency_window_ms`, whatever became of the messages. A known
        `batch_key` stores nothing and answers the first call's ids, all of them as duplicates,
        whatever this call holds. A replay does not lengthen the window. A known message key stores
        nothing in its place and answers the first id; equal keys in one batch collapse to the
        first. The digest is kept with the key; a key that was stored without one matches any.

        Outbox messages (`NewMessage.outbox`), which a message brings along for other queues, are
        stored in the same step as the message, from the same client, and show its id. A message
        that is not stored, as a duplicate is not, brings nothing. Limits of those queues stop
        nothing, and those of one queue are in no promised order. They may arrive in their queue a
        moment after the answer, but whatever happens they arrive; without ATOMIC_BATCH a crash may
        leave some of messages that were not stored.

        Raises, where nothing is stored, no key either:
            KeyReused: a known key, or an earlier one of the batch, has another digest. The whole
                post's key is compared first, then those of the messages in their order.
            LimitReached: over `max_messages` (live ones of every state, also in a queue that would
                get a copy) or `max_idempotency_keys` (of both kinds together; `retry_after` tells
                when the oldest key ends). Known keys are free. Queues named `~...` have no limits.
        """

    @abstractmethod
    async def find_idempotency_keys(
        self, queue: QueueRef, /, messages: Collection[str] = (), batch: str | None = None
    ) -> KnownKeys:
        """Tell what is known of keys by their texts: of messages', and of a whole post's.

        It also tells whether any key of the queue is known; the end of the last may be told late.
        """

    @abstractmethod
    async def list_messages(self, queue: QueueRef, /, selection: ListQuery) -> Page:
        """List the live messages of a selection, in order of position.

        One step examines at most MAX_EXAMINED entries, and the driver repeats until the page has
        a message or the queue ends: clients take an empty page for that. MAX_PAGE_BYTES of bodies
        end a page early. A group costs O(its size).
        """

    @abstractmethod
    async def get_messages(
        self, queue: QueueRef, /, ids: Collection[str], *, details: bool = False
    ) -> Sequence[Message]:
        """Fetch the live ones of `ids`, in any state; malformed and foreign ids are not found."""

    @abstractmethod
    async def edit(self, queue: QueueRef, /, edit: Edit) -> Message:
        """Change body, ttl or delay of a message that is still delayed; id and position stay.

        `ttl_ms` and `delay_ms` count from now; what is None stays as it is. `delay_ms` of 0 makes
        it ready at once. A racing claim comes before the edit, or hands out the edited message.

        Raises:
            NotFound: no such live message in this queue.
            Conflict: it is claimable or claimed, or belongs to a normal queue; or the body of a
                message that more than one queue holds (FAN_OUT).
            DueChanged: it is delayed until another second than `edit.if_due`.
            Invalid: the ttl would end before the delay, whichever of them the edit changed.
        """

    @abstractmethod
    async def delete(
        self, queue: QueueRef, /, ids: Collection[str], *, claim_ids: Collection[str] | None
    ) -> Sequence[Refusal]:
        """Delete messages; answer the ones refused. When any is refused, none is deleted.

        `claim_ids` None deletes regardless of claims. Otherwise a message is deleted only when
        one of these live claims holds it (another may, where one has lapsed), or, when
        `claim_ids` is empty, none does. Absent ids are not refused.
        """

    @abstractmethod
    async def claim(self, queue: QueueRef, /, request: ClaimRequest) -> Claimed:
        """Hand out up to `limit` ready messages under one new claim that lives for `ttl_ms`.

        * No message is held by two live claims; each that is handed out counts one claim more.
        * A message that would expire before the claim does gets the ttl `ttl_ms + grace_ms`,
          and expires `grace_ms` after the claim.
        * delay_mode: IGNORE neither reads nor tests `d`; HONOUR promotes what is due first.
        * `retries.dead_letter`: a message with `claim_count >= max_claims` is moved instead, with
          its counts, before the answer leaves: ready at once in the target, outside of `limit`.
        * MAX_PAGE_BYTES of bodies, or about MAX_EXAMINED entries, end it early: `more` says so.
        * `removes`: what it hands out leaves the queue in that step. No claim is made; counts stay.
        """

    @abstractmethod
    async def get_claim(self, queue: QueueRef, /, claim_id: str, *, details: bool = False) -> Claim:
        """Read a live claim and the live messages it still holds, in order of position.

        Raises:
            NotFound: unknown, malformed, released or lapsed, or over with its last message.
        """

    @abstractmethod
    async def settle(
        self,
        queue: QueueRef,
        /,
        claim_id: str,
        settlements: Sequence[Settlement] | Settlement,
        *,
        retries: RetryPolicy = NO_RETRIES,
        version: int | None = None,
    ) -> Settled:
        """Do to each message of a claim what its settlement says; answer an outcome for each.

        No message is named twice. It is atomic for each; for one that the claim holds by a lease:

        * ACK deletes it.
        * RELEASE ends its attempt and makes it ready, at its own position, or parks it for the
          delay. A ttl that would end earlier than delay + 60 s becomes delay + 60 s. With
          `failed` it is a failure: `failure_count` + 1; at a limit of `retries`
          (`DeadLetter.spent`) the message is moved to the dead letters instead; without a delay
          of its own the back-off's holds.
        * EXTEND lets its lease end `ttl_ms` from now, sooner or later than before; the claim lives
          until the last of its messages' leases ends. Age and ttl of the claim stay as they are.
        * DEAD moves it to the dead letters with `reason` (REJECTED when there is none).

        A dead letter has left this queue when the answer comes, and enters its target then at once.

        A message keeps its last claim id and how that hand-out ended: the same act again under
        that claim (RELEASE as failed or not alike) is DONE and changes nothing, also when the
        claim has ended; another act is LAPSED. A claim whose last message was settled is over.

        A lone settlement (RELEASE, EXTEND) is for all that the claim holds, whatever message it
        names; its one outcome is NOT_FOUND where it holds nothing. RELEASE ends the claim, and
        leaves alone what it let go before. EXTEND lets the claim begin anew, its age and ttl too.
        """

    @abstractmethod
    async def move(self, queue: QueueRef, /, ids: Sequence[str], move: Move) -> Sequence[Outcome]:
        """Move up to MAX_MOVED messages that nobody holds, each named once, to another queue.

        A message gets `move`'s ttl, and the state that its delay says. Its origin stays, or names
        this queue where it had none, and counts one more `redriven`.

        One outcome for each id, in their order: DONE, HELD (a claim holds it, or it is parked, or
        its lease lapsed and nothing has met that yet) or NOT_FOUND (malformed, not here).
        """

    @abstractmethod
    async def import_messages(
        self, queue: QueueRef, /, messages: Sequence[Message], *, source: str, number: int
    ) -> None:
        """Take in messages of another store as they are, all or none.

        All of a message stays but its position, claim and parking: it is delayed where its
        `delay_expires_at` is ahead, else ready. What has expired is left out; no limit stops any.

        The calls of a `source` have growing numbers. One whose `number` is not above the last that
        came into the queue is a repeat and changes nothing; that is known for a day.
        """

    @abstractmethod
    async def watch(self, queue: QueueRef, /, listener: Listener) -> Watch:
        """Tell `listener` whenever messages of a queue became ready.

        It is called in the event loop, soon after the commit, whichever process did it. A hint,
        never a promise: it may be lost, wrong (somebody was faster) or doubled, and the claim
        decides. What becomes ready by time alone is not announced: `next_due` tells when. A store
        whose poll interval is a second or less may leave out what other processes did.
        """

    @abstractmethod
    async def purge(self, queue: QueueRef, /, *, forget: bool = False) -> None:
        """Remove all messages, delayed and claimed ones too, and all claims.

        With `forget` all goes that this store has of the queue: also the idempotency keys, and in
        the same step the record, where the store keeps it, so that no message outlives its queue.
        """

    @abstractmethod
    async def stats(self, queue: QueueRef, /, *, ranges: int = 0) -> Stats:
        """Count the live messages by state, and their bytes; find the oldest and the newest.

        `ranges` asks for the `cuts` of at most so many; an empty queue has none.
        """

    @abstractmethod
    def nonempty_queues(self) -> AsyncIterator[QueueRef]:
        """Name the queues that may hold messages, each about once, in bounded steps.

        For counts that are shown: what is posted meanwhile may be left out. No message is read.
        """

    @abstractmethod
    async def release_delayed(
        self, queue: QueueRef, /, limit: int, *, version: int | None = None
    ) -> int:
        """Make up to `limit` delayed messages ready, whatever their `d`; answer how many.

        The second half of switching a delayed queue off; fewer than `limit` means all are done.
        """

    @abstractmethod
    async def sweep(self, limit: int, retries_of: RetryPolicyOf = no_retries) -> SweepResult:
        """Tidy up at most about `limit` entries over all queues: bounded, safe on every node.

        `retries_of` answers what becomes of a queue's failed messages: their records may lie in
        another store. Removes what has expired, promotes what is due whatever its queue is by
        now, re-admits what has lapsed, finishes moves that a crash cut short.
        """

    async def history(
        self, queue: QueueRef, /, state: HistoryState, *, marker: str | None, limit: int
    ) -> HistoryPage:
        """List acknowledged or failed messages, oldest first; Unsupported without HISTORY."""
        raise Unsupported(f"This store keeps no {state.value} messages; the embedded store does.")
