"""How metrics are written."""

import pytest

from zaqar_lite.service.metrics.metrics import Exposition
from zaqar_lite.service.metrics.shared_counters import Family, Kind


@pytest.mark.parametrize(
    ("kind", "name", "value", "shown"),
    [
        (Kind.COUNTER, "zaqar_lite_posts_total", 2_500_000, "2500000"),
        (Kind.COUNTER, "zaqar_lite_posts_total", 2_500_000.0, "2500000"),
        (Kind.COUNTER, "zaqar_lite_sweep_seconds_total", 2.5, "2.5"),
        (Kind.GAUGE, "zaqar_lite_sweep_debt_seconds", 0.0, "0"),
    ],
)
def test_a_whole_number_is_written_without_a_fraction(
    kind: Kind, name: str, value: float, shown: str
) -> None:
    page = Exposition(openmetrics=False)
    page.add_cells(Family(name, kind, "help"), [value])
    assert page.text().splitlines()[-1] == f"{name} {shown}"
