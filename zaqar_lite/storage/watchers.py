"""Who is told when messages of a queue become ready, in this process."""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
Listener = Callable[[int], None]
"""Is told how many messages became ready.

0 says that something may become ready by time earlier than `next_due` told: a delayed message was
posted or edited, a lease or a parking began. -1 says that announcements were lost: look again.
"""


class Watch(NamedTuple):
    """A queue that is watched, until `end` is called, once.

    `next_due` asks for the milliseconds until a message of the queue becomes ready by time: by the
    end of a delay, of a lease or of parking; 0 when that is so now; None when nothing waits. A
    hint: it may be early, and what is posted or settled later is not in it.
    """

    next_due: Callable[[], Awaitable[int | None]]
    end: Callable[[], None]


class Watchers(dict[K, list[Listener]]):
    """The listeners of each queue that is watched, by what the driver calls it."""

    def add(self, queue: K, listener: Listener) -> Callable[[], None]:
        """Tell `listener` from now on; answer what ends that."""
        self.setdefault(queue, []).append(listener)
        return partial(self._remove, queue, listener)

    def tell(self, queue: K, count: int) -> None:
        """Tell the listeners of a queue, which may have none."""
        for listener in tuple(self.get(queue, ())):
            listener(count)

    def _remove(self, queue: K, listener: Listener) -> None:
        listeners = self[queue]
        listeners.remove(listener)
        if not listeners:
            del self[queue]
