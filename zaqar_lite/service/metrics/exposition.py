"""Write metrics as Prometheus' text (0.0.4) and as OpenMetrics' text (1.0.0)."""

from collections.abc import Iterable, Mapping, Sequence

from zaqar_lite.service.metrics.metric_families import Family, Kind

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Sample = tuple[Mapping[str, str], float]


class Exposition:
    """A page of metrics in one of the two formats."""

    def __init__(self, *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._lines: list[str] = []

    @property
    def media_type(self) -> str:
        """What the page is."""
        return OPENMETRICS if self._openmetrics else PROMETHEUS

    def text(self) -> str:
        """The whole page."""
        return "".join([*self._lines, "# EOF\n" if self._openmetrics else ""])

    def add(self, name: str, kind: Kind, text: str, samples: Iterable[Sample]) -> None:
        """Write a family whose samples are at hand."""
        self._head(name, kind, text)
        self._lines += [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]

    def add_cells(self, family: Family, cells: Sequence[float]) -> None:
        """Write a family of a board; of one with many labels, only what was ever counted."""
        self._head(family.name, family.kind, family.help)
        names, width = tuple(family.labels), family.width
        is_large = "route" in names
        for first, values in family.cells():
            found = cells[first : first + width]
            if is_large and not any(found):
                continue
            labels = dict(zip(names, values, strict=True))
            if family.kind is Kind.HISTOGRAM:
                self._histogram(family, labels, found)
            else:
                self._lines.append(f"{family.name}{_labels(labels)} {_number(found[0])}\n")

    def _histogram(self, family: Family, labels: Mapping[str, str], cells: Sequence[float]) -> None:
        total = 0
        inner = _inner(labels)
        comma = "," if inner else ""
        for bound, count in zip((*map(repr, family.bounds), "+Inf"), cells[1:], strict=True):
            total += int(count)
            self._lines.append(f'{family.name}_bucket{{{inner}{comma}le="{bound}"}} {total}\n')
        self._lines.append(f"{family.name}_sum{_labels(labels)} {_number(cells[0])}\n")
        self._lines.append(f"{family.name}_count{_labels(labels)} {total}\n")

    def _head(self, name: str, kind: Kind, text: str) -> None:
        shown = name.removesuffix("_total") if self._openmetrics else name
        self._lines.append(f"# HELP {shown} {text}\n# TYPE {shown} {kind.value}\n")


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)


def _labels(labels: Mapping[str, str]) -> str:
    return f"{{{_inner(labels)}}}" if labels else ""


def _inner(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
