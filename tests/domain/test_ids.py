"""Ids and markers as text: they sort by position, and nothing else is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zaqar_lite.domain.ids import (
    MAX_POSITION,
    Marker,
    are_message_ids,
    format_marker,
    is_claim_id,
    is_message_id,
    new_message_id,
    new_message_ids,
    parse_marker,
)

positions = st.integers(0, MAX_POSITION)


@given(positions)
def test_a_marker_is_read_as_it_was_written(position: int) -> None:
    assert parse_marker(format_marker(position)) == Marker(position)


@given(positions)
def test_a_message_id_is_a_marker_at_its_position(position: int) -> None:
    message_id = new_message_id(position)
    assert is_message_id(message_id)
    assert parse_marker(message_id) == Marker(position, message_id)


@given(positions, positions)
def test_ids_and_markers_sort_as_their_positions_do(one: int, two: int) -> None:
    assert (format_marker(one) < format_marker(two)) == (one < two)
    if one != two:
        assert (new_message_id(one) < new_message_id(two)) == (one < two)


def test_ids_of_a_batch_are_at_positions_in_a_row() -> None:
    made = new_message_ids(41, 100)
    assert [parse_marker(message_id) for message_id in made] == [
        Marker(position, message_id) for position, message_id in enumerate(made, 41)
    ]
    assert len({message_id[16:] for message_id in made}) == 100
    assert new_message_ids(41, 0) == []


def test_a_position_too_large_to_store_is_the_largest_one() -> None:
    assert parse_marker("f" * 16) == Marker(MAX_POSITION)
    assert parse_marker("f" * 32) == Marker(MAX_POSITION, "f" * 32)


@pytest.mark.parametrize(
    "text",
    [
        *("0" * length for length in (0, 1, 15, 17, 31, 33)),
        "A" * 16,
        "g" * 32,
        "0" * 16 + "\n",
        "0" * 32 + "\n",
        " " + "0" * 15,
        "-" + "0" * 15,
        "0x" + "0" * 14,
        "1_" * 8,
        "\u0661" * 16,
    ],
)
def test_anything_else_is_neither_a_marker_nor_an_id(text: str) -> None:
    assert parse_marker(text) is None
    assert not is_message_id(text)
    assert not is_claim_id(text)


@given(
    st.lists(st.sampled_from(["0" * 32, "f" * 32, "0" * 31, "", ",", "0" * 32 + "," + "0" * 32]))
)
def test_many_are_message_ids_where_each_of_them_is(texts: list[str]) -> None:
    assert are_message_ids(texts) is all(map(is_message_id, texts))
