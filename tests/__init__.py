"""Tests of Zaqar Lite; `tests/run` runs them all."""
