"""Plays by the rules of rlvr's own tests: the environment variables are set when `tests.conftest` is imported."""

from tests.conftest import own_cache, own_path  # noqa: F401
from tests.system.conftest import _threads  # noqa: F401
