"""How metrics are written."""

import pytest

from zaqar_lite.service.metrics.families import Family, Kind
from zaqar_lite.service.metrics.rendering import Page


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        (Kind.COUNTER, "zaqar_lite_posts_total", "2500000"),
        (Kind.COUNTER, "zaqar_lite_sweep_seconds_total", "2.5"),
        (Kind.GAUGE, "zaqar_lite_sweep_debt_seconds", "2.5"),
        (Kind.GAUGE, "zaqar_lite_connections", "2.5"),
    ],
)
def test_all_but_what_is_counted_is_in_millionths(kind: Kind, name: str, shown: str) -> None:
    page = Page(openmetrics=False)
    page.add_cells(Family(name, kind, "help"), [2_500_000])
    assert page.text().splitlines()[-1] == f"{name} {shown}"
