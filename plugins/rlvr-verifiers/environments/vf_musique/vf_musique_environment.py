"""MuSiQue for the verifiers library: rlvr's questions, tools and rewards behind the library's loop.

    vf-install vf-musique -p environments
    vf-eval vf-musique -m MODEL -b URL -k VAR -n 20 -a '{"retriever": "hybrid"}'

The library calls the model and keeps the conversation; the rest of an episode is `rlvr_verifiers.musique`. So rewards
equal those of rlvr's own training exactly. Each rollout has its own rlvr environment, with its own documents and notes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import verifiers as vf
from datasets import Dataset

from rlvr.config.compose import load_task_config
from rlvr.core.env import TurnText
from rlvr.errors import UserError
from rlvr.types import Example, Message, StopReason
from rlvr_verifiers.env import to_messages
from rlvr_verifiers.musique import Game, open_game

EPISODE, SCORE = "rlvr_episode", "rlvr_score"  # keys of a rollout's state

Draw = Callable[[int | None], list[Example]]
"""Draws this many examples; None: all."""

MEASURED = ("answer_em", "answer_f1", "tool_calls", "tool_errors", "malformed_calls", "unknown_tools")
"""Diagnostics of rlvr's score that become metrics, besides the reward parts."""


def load_environment(
    num_train_examples: int = -1,
    num_eval_examples: int = -1,
    reward: str | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    **task: Any,
) -> vf.Environment:
    """Create the environment.

    Args:
        num_train_examples: -1: one pass over the data.
        num_eval_examples: -1: all.
        reward: A choice of rlvr's reward group: musique, musique_spec, musique_later.
        settings: More rlvr settings, e.g. `["task.hops=[2]", "reward.parts.format.weight=0.1"]`.
        seed: Seed of the training set's order and noise.
        task: Settings of rlvr's task (`rlvr train --config-name musique --cfg job` shows them): retriever, noise_rate,
            eval_noise_rate, max_turns, top_n, train_sets, eval_sets, ...

    Raises ConfigError or UserError, one sentence; `vf-eval` ends with it, without a traceback.
    """
    chosen = {"reward": reward} | {f"task.{key}": value for key, value in task.items()}
    lines = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in chosen.items() if value is not None] + [
        *settings
    ]
    try:
        parts = load_task_config("musique", lines).reward.parts
        game = open_game(lines, seed=seed)
    except UserError as error:
        if Path(sys.argv[0]).stem == "vf-eval":
            raise SystemExit(f"vf-eval: error: {error}") from None
        raise
    return MusiqueEnv(game, parts, num_train=num_train_examples, num_eval=num_eval_examples)


class MusiqueEnv(vf.MultiTurnEnv):
    """The library's loop around rlvr's environments. Built lazily: an evaluation does not load the training set."""

    def __init__(
        self, game: Game, parts: Collection[str], *, num_train: int = -1, num_eval: int = -1, **more: Any
    ) -> None:
        """`parts` are the names of the reward parts."""
        self.game = game
        self._examples: dict[str, Example] = {}
        metrics = [_metric(name) for name in dict.fromkeys([*parts, *MEASURED])]
        super().__init__(
            dataset=partial(self._rows, game.training, num_train),
            eval_dataset=partial(self._rows, game.held_out, num_eval),
            rubric=vf.Rubric(funcs=[reward, *metrics], weights=[1.0] + [0.0] * len(metrics)),
            tool_defs=[vf.Tool(**tool.schema["function"]) for tool in game.tools.values()],
            max_turns=game.environments.settings.max_turns,
            **more,
        )

    def _rows(self, draw: Draw, num: int) -> Dataset:
        examples = self._drawn(draw, None if num < 0 else num)
        return Dataset.from_list(
            [
                {
                    "prompt": [{"role": message.role, "content": message.content} for message in example.messages],
                    "answer": example.answer,
                    "info": {"id": example.id},
                }
                for example in examples
            ]
        )

    def _drawn(self, draw: Draw, num: int | None) -> list[Example]:
        examples = draw(num)
        self._examples |= {example.id: example for example in examples}
        return examples

    def example(self, name: str) -> Example:
        """The example with this id. A worker of the library's environment server has not built a data set."""
        for draw in (self.game.held_out, self.game.training):
            if name not in self._examples:
                self._drawn(draw, None)
        return self._examples[name]

    async def setup_state(self, state: vf.State) -> vf.State:
        state[EPISODE] = self.game.task.env(self.example(state["info"]["id"]))
        await state[EPISODE].start()
        return state

    async def add_trajectory_step(self, state: vf.State, trajectory_step: vf.TrajectoryStep) -> None:
        """Execute the completion's calls, also in the last turn, where only `complete` runs."""
        await super().add_trajectory_step(state, trajectory_step)
        if trajectory_step["is_truncated"]:
            return  # an unfinished message cannot be answered
        reply = await state[EPISODE].step(said(trajectory_step["completion"]))
        trajectory_step["extras"]["reply"] = reply.messages
        if reply.done:
            state["final_env_response"] = []

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> vf.Messages:
        return [
            vf.ToolMessage(tool_call_id=message.call_id, content=message.content)
            if message.call_id is not None
            else vf.UserMessage(content=message.content)  # a reminder to call a tool
            for message in state["trajectory"][-1]["extras"]["reply"]
        ]

    @vf.stop
    async def completion_is_cut_off(self, state: vf.State) -> bool:
        return bool(state["trajectory"]) and state["trajectory"][-1]["is_truncated"]

    @vf.cleanup
    async def score_episode(self, state: vf.State) -> None:
        """rlvr's score of the whole rollout. A scoring failure is an error of the rollout, never a 0."""
        if not state["trajectory"]:
            return
        score = await state[EPISODE].score([turn(step) for step in state["trajectory"]])
        if score.status == "error":
            state["error"] = state.get("error") or vf.Error(str(score.diagnostics.get("error", "no score")))
        state[SCORE] = score


def reward(state: vf.State) -> float:
    return state[SCORE].value


def _metric(name: str) -> Callable[..., float]:
    def metric(state: vf.State) -> float:
        score = state[SCORE]
        return float(score.parts.get(name, score.diagnostics.get(name, 0.0)))

    metric.__name__ = name
    return metric


def said(completion: Sequence[Any]) -> Message:
    """A completion of the library (one assistant message in any form) as rlvr's message."""
    (one,) = completion
    (message,) = to_messages([one if hasattr(one, "get") else one.model_dump()])  # OpenAI's objects have no `get`
    return message


def turn(step: Mapping[str, Any]) -> TurnText:
    message = said(step["completion"])
    usage = getattr(step.get("response"), "usage", None)
    return TurnText(
        prompt="",
        completion=message.content,
        text=message.content,
        stop_reason=StopReason.LENGTH if step["is_truncated"] else StopReason.STOP,
        num_tokens=usage.completion_tokens if usage is not None else 0,
        calls=message.tool_calls,
    )
