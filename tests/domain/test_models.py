"""What the models say of themselves."""

from zaqar_lite.domain.models import ClaimRequest, DelayMode, SweepResult


def test_a_sweep_touched_whatever_it_did() -> None:
    swept = SweepResult(expired=1, promoted=2, lapsed=4, moved=8, deleted=16)
    assert swept.total == 31
    assert swept.plus(swept).total == 62


def test_a_hand_out_tells_no_attempts_unless_it_is_asked_to() -> None:
    assert not ClaimRequest(1, None, DelayMode.IGNORE).details
