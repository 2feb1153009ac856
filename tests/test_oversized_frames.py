"""Frames of a WebSocket that are taken out of what arrives, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from zaqar_lite.server.sockets import MOST_DISCARDED, FrameFilter, Oversized

LARGEST = 200


def frame(size: int, opcode: Opcode = Opcode.TEXT, *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, b"x" * size, fin).serialize(mask=mask)


def split(data: bytes, cuts: list[int]) -> tuple[bytes, list[Oversized]]:
    """What the parser gets of `data` that arrives in pieces, and what it does not."""
    kept, taken = FrameFilter(LARGEST), []
    passed = b""
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        for part in kept.split(data[at:cut]):
            if isinstance(part, Oversized):
                taken.append(part)
            else:
                passed += part
        at = max(at, cut)
    return passed, taken


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 125, 126, 199, 200, 201, 65_535, 65_536, 70_000]),
            st.sampled_from([Opcode.TEXT, Opcode.BINARY]),
        ),
        max_size=6,
    ),
    st.lists(st.integers(0, 200_000), max_size=20),
)
def test_every_frame_arrives_whole_or_not_at_all(
    sizes: list[tuple[int, Opcode]], cuts: list[int]
) -> None:
    frames = [(size, opcode, frame(size, opcode)) for size, opcode in sizes]
    data = b"".join(one for _, _, one in frames)
    passed, taken = split(data, [cut for cut in cuts if cut <= len(data)])
    assert passed == b"".join(one for size, _, one in frames if size <= LARGEST)
    assert taken == [
        Oversized(size, opcode is Opcode.BINARY) for size, opcode, _ in frames if size > LARGEST
    ]


@pytest.mark.parametrize(
    "data",
    [
        frame(300, fin=False) + frame(300, Opcode.CONT),
        frame(100, Opcode.PING),
        frame(MOST_DISCARDED + 1),
        b"\xff" * 300,
    ],
    ids=["fragments", "ping", "endless", "garbage"],
)
def test_the_parser_judges_what_is_no_frame_of_a_message(data: bytes) -> None:
    assert split(data, [1, 3]) == (data, [])
