"""`environments/vf_musique` as a taskset of 0.4 gives the scores of our own training to the last digit."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from musique_scripts import KINDS, PLUGIN, REWARDS, SETS, scripts
from rlvr.errors import ConfigError
from rlvr_verifiers.musique import open_game
from rlvr_verifiers.task import VerifiersTask
from scripted import Codec, episode, make_task


@pytest.fixture(autouse=True)
def _environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN / "environments" / "vf_musique"))


def load(**arguments: Any) -> VerifiersTask:
    more = SETS | {"retriever": "bm25", "split": "eval"} | arguments
    return make_task(env_id="vf-musique", env_args=more, eval_share=0.5)


@functools.cache
def game(reward: str) -> Any:
    """Our own, with the same settings."""
    lines = [f"reward={reward}", "task.retriever=bm25", *(f"task.{key}={value!r}" for key, value in SETS.items())]
    return open_game(lines)


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_those_of_our_training(kind: str, reward: str) -> None:
    task = load(reward=reward)
    ours = game(reward)
    examples = {one.id: one for one in ours.held_out()}
    for row in task._env.train or ():
        example = examples[row.source.data.id]
        script = scripts(example)[kind]
        (env,) = task._env.envs(example, row, 1)
        codecs = Codec(), Codec()
        theirs = asyncio.run(episode(example, env, *script, codec=codecs[0]))
        wanted = asyncio.run(episode(example, ours.task.env(example), *script, codec=codecs[1]))
        assert theirs.score.status == "scored"
        assert theirs.score.value == wanted.score.value
        for name, value in (wanted.score.parts | {"tool_errors": wanted.score.diagnostics["tool_errors"]}).items():
            assert theirs.score.parts[name] == value
        assert theirs.stop_reason == wanted.stop_reason
        if "malformed" not in kind:  # the library's own words
            shown = [[message.content for message in prompt] for prompt in codecs[0].prompts]
            assert shown == [[message.content for message in prompt] for prompt in codecs[1].prompts]


def test_the_tools_are_ours() -> None:
    task = load()
    assert list(task._env.tools(task._env.train[0])) == [tool.schema for tool in game("musique").tools.values()]


def test_a_wrong_argument_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"task\.retriever=bm26: there is no such retriever; did you mean bm25\?"):
        load(retriever="bm26")
    with pytest.raises(ConfigError, match=r"retriver: Extra inputs are not permitted"):
        load(retriver="bm25")
