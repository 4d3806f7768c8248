"""All planted bugs, by pitfall."""

from tests.pitfalls import losses, runs, sampling, tokens
from tests.pitfalls.planting import Planted

PLANTED: list[Planted] = sorted([*tokens.BUGS, *losses.BUGS, *sampling.BUGS, *runs.BUGS], key=lambda bug: bug.pitfall)
