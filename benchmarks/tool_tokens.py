"""`rlvr` with an intentional bug (pitfall 5): also trains on tokens of tools and templates.

    python benchmarks/tool_tokens.py train --config-name two_hop

docs/research.md shows the effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import nan

from rlvr.cli.main import main
from rlvr.core import batch
from rlvr.core.batch import TokenRow
from rlvr.types import Episode

right = batch.episode_rows


def rows_with_replies(episode: Episode) -> Iterator[TokenRow]:
    """The rows of an episode with everything after the first prompt in the mask; its behavior logprobs are unknown."""
    for row in right(episode):
        sampled = row.loss_mask
        first = [*sampled, True].index(True)
        reply = [index >= first and not own for index, own in enumerate(sampled)]
        version = row.policy_versions[first] if any(sampled) else -1
        yield replace(
            row,
            loss_mask=tuple(own or more for own, more in zip(sampled, reply, strict=True)),
            behavior_logprobs=tuple(nan if r else x for r, x in zip(reply, row.behavior_logprobs, strict=True)),
            policy_versions=tuple(version if r else x for r, x in zip(reply, row.policy_versions, strict=True)),
        )


if __name__ == "__main__":
    batch.episode_rows = rows_with_replies
    raise SystemExit(main())
