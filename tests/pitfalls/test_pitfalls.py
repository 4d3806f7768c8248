"""`pytest -m pitfalls`: each planted bug is caught by its test, and the tests pass where nothing is planted."""

from collections.abc import Iterator

import pytest

from tests.pitfalls.table import PLANTED
from tests.pitfalls.zygote import Zygote

pytestmark = pytest.mark.pitfalls

GUARDS = sorted({bug.caught_by for bug in PLANTED})


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=[f"{bug.pitfall:02d}-{bug.name}" for bug in PLANTED])
def test_a_planted_bug_is_caught(zygote: Zygote, number: int) -> None:
    code, output = zygote.run([PLANTED[number].caught_by], bug=number)
    assert code == pytest.ExitCode.TESTS_FAILED, output


@pytest.mark.parametrize("file", sorted({test.partition("::")[0] for test in GUARDS}))
def test_the_tests_pass_without_a_bug(zygote: Zygote, file: str) -> None:
    code, output = zygote.run([test for test in GUARDS if test.startswith(f"{file}::")])
    assert code == pytest.ExitCode.OK, output
