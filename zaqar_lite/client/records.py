"""Objects of an answer read as the SDK's dataclasses, by the names and types of their fields."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from zaqar_lite.client import encoding
from zaqar_lite.client.arguments import alternatives

T = TypeVar("T")


def reader(kind: type[T], **keys: str) -> Callable[[Mapping[str, Any]], T]:
    """Return a function that makes a dataclass of an object of an answer.

    A field is read from the key of its own name, or from the key that `keys` gives for it. Times
    become instants, lists become tuples, and objects become dataclasses, as the field's type says.
    A key that is absent or null leaves the field its default, or else None. For a field that takes
    neither, the function raises KeyError. Keys without a field are left out, so that a newer server
    can be read.
    """
    fields = [_Field(field, keys.get(field.name, field.name)) for field in dataclasses.fields(kind)]  # type: ignore[arg-type] # a dataclass

    def read(entry: Mapping[str, Any]) -> T:
        given: dict[str, Any] = {}
        for field in fields:
            value = entry.get(field.key)
            if value is not None:
                given[field.name] = field.convert(value)
            elif field.may_be_none:
                given[field.name] = None
            elif not field.has_default:
                raise KeyError(field.key)
        return kind(**given)

    return read


class _Field:
    """How one field is read."""

    def __init__(self, field: "dataclasses.Field[Any]", key: str) -> None:
        kinds = alternatives(field.type)
        self.name = field.name
        self.key = key
        self.convert = next(filter(None, map(_converter, kinds)), _as_it_is)
        self.has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        self.may_be_none = not self.has_default and (type(None) in kinds or Any in kinds)


def _converter(kind: Any) -> Callable[[Any], Any] | None:  # noqa: ANN401 - a part of an annotation
    if kind is dt.datetime:
        return encoding.instant
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return reader(kind)
    if get_origin(kind) is Sequence:
        one = _converter(get_args(kind)[0])
        return tuple if one is None else lambda items: tuple(map(one, items))
    return None


def _as_it_is(value: object) -> object:
    return value
