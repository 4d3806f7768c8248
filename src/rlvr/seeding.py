"""Seeds of all random draws, derived from one run seed and the purpose of the draw."""

import hashlib

EVAL_SEED = 12345
"""Held-out examples are the same in every run, whatever its seed."""


def derive_seed(seed: int, *path: int | str) -> int:
    """A seed in [0, 2**63) for the draw named by `path`, e.g. `derive_seed(0, "train", 17, 3)`.

    A hash instead of `seed + index`: neighboring run seeds share no streams, and paths practically never collide.
    """
    text = "\x1f".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
