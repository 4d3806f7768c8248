"""A kept warm start is found for the same content alone, and only if its file is sound."""

import os
from typing import Any

import pytest
import torch

from rlvr.models import weight_cache
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import ScratchModel
from rlvr.models.weight_cache import content_key, keep, kept_folder, restore
from rlvr.settings import dumped
from rlvr.training.settings import WarmStartSettings
from rlvr.training.warm_start import from_stream, in_epochs
from tests.unit.core.fakes import completion, episode
from tests.unit.core.tiny import tiny_policy
from tests.unit.training.test_warm_start import Copies

SETTINGS: dict[str, Any] = {"num_steps": 3, "warmup_steps": 1, "final_phase_steps": 1, "batch_size": 4}


class LastCopyDiffers(Copies):
    def demonstration(self, index: int, worked_share: float) -> tuple[str, str]:
        prompt, completion = super().demonstration(index, worked_share)
        return prompt, "7 <eoe>" if index == 11 else completion


class Unstopped(Copies):
    stop_words = ()  # so that the tokenizer's end token is appended


def key(policy: HubPolicy | None = None, task: Any = None, **changes: Any) -> str:
    settings, policy = WarmStartSettings(**(SETTINGS | changes)).fitted(ScratchModel()), policy or tiny_policy()
    lessons = from_stream(policy, task or Copies(), settings, ScratchModel(), 0)
    found = content_key(policy, dumped(settings), lessons.content())
    assert found is not None
    return found


def changed() -> HubPolicy:
    """A policy with other weights than `tiny_policy()`."""
    policy = tiny_policy()
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    return policy


def same(first: HubPolicy, second: HubPolicy) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_same_content_has_the_same_key():
    assert key() == key()


def test_other_content_has_another_key():
    others = [{"policy": changed()}, {"task": LastCopyDiffers()}, {"task": Unstopped()}]
    keys = [key(**other) for other in (*others, {"learning_rate": 1e-4}, {"loss_on": "all"}, {})]
    assert len(set(keys)) == 6


def test_threads_and_libraries_are_content(monkeypatch: pytest.MonkeyPatch):
    before = key()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    threads = key()
    monkeypatch.setattr(weight_cache.transformers, "__version__", "0.0")
    libraries = key()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX1024")
    processor = key()
    monkeypatch.setattr(weight_cache, "_cpu", lambda: "another")
    assert len({before, threads, libraries, processor, key()}) == 5


def test_where_what_is_learned_begins_is_content():
    texts = (((1, 2, 3), (4,)), ((1, 2), (3, 4)))
    episodes = [episode((prompt, completion(*said))) for prompt, said in texts]
    settings = WarmStartSettings(**SETTINGS).fitted(ScratchModel())
    one, other = ([*in_epochs([shown], settings, ScratchModel(), 0).content()] for shown in episodes)
    assert one != other


def test_restored_weights_are_the_kept_ones():
    kept, policy = changed(), tiny_policy()
    assert not restore(policy, "k")
    keep(kept, "k")
    assert restore(policy, "k")
    assert same(policy, kept)
    assert not restore(policy, "other")


@pytest.mark.parametrize("damage", [b"", b"not weights", None])
def test_damaged_files_are_not_used(damage: bytes | None):
    keep(changed(), "k")
    (file,) = kept_folder().iterdir()
    file.write_bytes(file.read_bytes()[:-4] + b"\0\1\2\3" if damage is None else damage)
    policy = tiny_policy()
    assert not restore(policy, "k")
    assert same(policy, tiny_policy())
    keep(changed(), "k")
    assert len(list(kept_folder().iterdir())) == 1
    assert restore(policy, "k")


def test_the_longest_unused_are_removed(monkeypatch: pytest.MonkeyPatch):
    policy = tiny_policy()
    for age, name in enumerate("abc"):
        keep(policy, name)
        (file,) = kept_folder().glob(f"{name}-*")
        os.utime(file, (1000 + age, 1000 + age))
    assert restore(policy, "a")  # now the last used one
    monkeypatch.setattr(weight_cache, "MAX_BYTES", 3 * file.stat().st_size)
    keep(policy, "d")
    assert {file.name[0] for file in kept_folder().iterdir()} == {"a", "c", "d"}
