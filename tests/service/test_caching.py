"""A bounded cache keeps what was written last."""

from zaqar_lite.service.caching import Cache


def test_what_was_written_longest_ago_goes_first() -> None:
    cache = Cache[str, int](2)
    for key, value in (("one", 1), ("two", 2), ("one", 3)):
        cache[key] = value
        assert cache["one"]  # to read it moves nothing
    assert cache == {"one": 3, "two": 2}
    cache["three"] = 4
    assert cache == {"one": 3, "three": 4}
