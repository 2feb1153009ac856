"""What the models say of themselves."""

from zaqar_lite.domain.models import Swept


def test_a_sweep_touched_whatever_it_did() -> None:
    swept = Swept(expired=1, promoted=2, lapsed=4, moved=8, deleted=16)
    assert swept.total == 31
    assert swept.plus(swept).total == 62
