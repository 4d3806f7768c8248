"""The ways of isolation that this machine has, for tests that force each."""

import pytest

from rlvr.jail.jail import Jail, JailError
from rlvr.jail.ways import WAYS, Way

EVERY_WAY = pytest.mark.parametrize("way", WAYS)


def opened(way: Way) -> Jail:
    """A jail of this way; a skipped test where the machine has none."""
    try:
        return Jail(way)
    except JailError as error:
        pytest.skip(f"isolation={way} does not work here: {error}")
