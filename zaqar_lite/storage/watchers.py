"""Who is told when messages of a queue become ready, in this process."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Listener = Callable[[int], None]
"""Is told how many messages became ready (`MessageStore.watch`)."""


class Watchers(Generic[K]):
    """The listeners of each queue that is watched, by what the driver calls it."""

    def __init__(self) -> None:
        self._listeners: dict[K, list[Listener]] = {}

    def __contains__(self, queue: K) -> bool:
        return queue in self._listeners

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._listeners))

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, queue: K, listener: Listener) -> Callable[[], None]:
        """Tell `listener` from now on; answer what ends that."""
        self._listeners.setdefault(queue, []).append(listener)
        return partial(self._remove, queue, listener)

    def tell(self, queue: K, count: int) -> None:
        """Tell the listeners of a queue, which may have none."""
        for listener in tuple(self._listeners.get(queue, ())):
            listener(count)

    def _remove(self, queue: K, listener: Listener) -> None:
        listeners = self._listeners[queue]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[queue]
