"""One suite for every driver: what `zaqar_lite/storage/base.py` promises, as tests."""
