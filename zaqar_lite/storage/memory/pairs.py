"""A number and a position as one number, which takes half of a tuple's memory and time."""

BITS = 64
POSITION = (1 << BITS) - 1
"""The largest possible position, which is also the mask of the position in a pair."""


def pair(first: int, position: int) -> int:
    """A key that sorts by a priority or an instant, then by position."""
    return first << BITS | position
