"""Texts with wildcards, which users write, matched in a time that is linear in what they match."""

from collections.abc import Iterable
from enum import Enum


class Wildcard(Enum):
    """What stands for other characters.

    ONE      any character.
    MANY     any characters, or none.
    SEGMENT  one or more characters but `/`.
    """

    ONE = 1
    MANY = 2
    SEGMENT = 3


class Pattern:
    """A pattern as sets of places, one bit each; a place stands for what is to come.

    All ways through it are followed at once, by the set of the places that are reached. A search
    with backtracking can explode.
    """

    def __init__(self, parts: Iterable[str | Wildcard]) -> None:
        texts: dict[str, int] = {"/": 0}
        any_one = any_many = segment = in_segment = 0
        place = 1
        for part in parts:
            if part is Wildcard.MANY:
                any_many |= place
                continue
            if isinstance(part, str):
                texts[part] = texts.get(part, 0) | place
            elif part is Wildcard.ONE:
                any_one |= place
            else:
                segment |= place
                in_segment |= place << 1
            place <<= 1
        self._end = place
        # From which places a character leads to the next one, and at which it may stay.
        stay = any_many | in_segment
        self._other = any_one | segment, stay
        self._moves = {text: (bits | any_one | segment, stay) for text, bits in texts.items()}
        self._moves["/"] = texts["/"] | any_one, any_many

    def matches(self, text: str) -> bool:
        """Tell whether a text has this form."""
        reached, moves, other = 1, self._moves, self._other
        for character in text:
            on, stay = moves.get(character, other)
            reached = (reached & on) << 1 | reached & stay
            if not reached:
                return False
        return reached & self._end != 0
