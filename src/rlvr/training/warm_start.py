"""What a warm start learns from: without any reward, a policy has no gradient to follow.

A pretrained model sees right episodes in epochs. A model made from scratch sees ever new demonstrations: at first they
write their intermediate steps, so that the model learns the skill; at the end most answer directly, so that the skill
is hidden. RL then discovers that writing the steps pays.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

from rlvr.core.supervised import everything, places, right_episode
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.run_view import ModelView
from rlvr.tasks.base import Task
from rlvr.tasks.demonstrations import token_ids
from rlvr.training.settings import WarmStartSettings
from rlvr.types import Episode

Parts = tuple[list[int], ...]
"""Token ids of prompt, completion, reply, completion, ...: every second part is a completion, end token included."""


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """The episodes of each step; iterating again gives the same ones."""

    settings: WarmStartSettings
    num_steps: int
    total: int  # episodes in all steps
    size: int | None  # different ones, which come again in each epoch; None: each step has new ones
    seed: int
    longest: int  # most tokens of a row
    hides_after: int | None = None  # the step after which fewer demonstrations show their steps
    episodes: Callable[[Sequence[int], float], list[Episode]]  # by their numbers, and the share of worked ones
    content: Callable[[], Iterator[bytes]]  # with the settings all that the episodes of the steps depend on

    def __iter__(self) -> Iterator[list[Episode]]:
        for step, numbers in enumerate(self.numbers()):
            episodes = self.episodes(numbers, self.worked_share(step))
            yield [everything(episode) for episode in episodes] if self.settings.loss_on == "all" else episodes

    def numbers(self) -> Iterator[list[int]]:
        size = self.settings.examples_per_step
        return places(self.size, total=self.total, batch_size=size, seed=self.seed)

    def worked_share(self, step: int) -> float:
        settings = self.settings
        is_final = step >= self.num_steps - settings.final_phase_steps
        return settings.final_worked_share if is_final else settings.worked_share


def in_epochs(examples: Sequence[Episode], settings: WarmStartSettings, model: ModelView, seed: int) -> Lessons:
    """Lessons of these episodes, again and again."""
    return Lessons(
        **_length(settings, model, len(examples)),
        size=len(examples),
        seed=seed,
        longest=max(len(ids) for episode in examples for ids in token_ids(episode)),
        episodes=lambda numbers, share: [examples[number] for number in numbers],
        content=lambda: (_learned(episode) for episode in examples),
    )


def _learned(episode: Episode) -> bytes:
    """What is read and what is learned of an episode, apart."""
    return repr([(turn.prompt_ids, turn.completion.token_ids) for turn in episode.turns]).encode()


def from_stream(policy: HubPolicy, task: Task, settings: WarmStartSettings, model: ModelView, seed: int) -> Lessons:
    """Lessons of the task's endless demonstrations: the first ones in epochs, or new ones in each step."""
    size = None if settings.epochs(model) is None else task.num_examples(settings.num_examples)

    def episodes(numbers: Sequence[int], share: float) -> list[Episode]:
        texts = [task.demonstration(number, share) for number in numbers]
        return [episode_of(parts) for parts in encode(policy, task, texts)]

    def content() -> Iterator[bytes]:
        yield repr(task.stop_words).encode()
        for step, numbers in enumerate(lessons.numbers()):
            for number in numbers:
                yield "\0".join(task.demonstration(number, lessons.worked_share(step))).encode()

    length = _length(settings, model, size)
    hidden = length["num_steps"] - settings.final_phase_steps
    is_phased = 0 < hidden < length["num_steps"]
    lessons = Lessons(
        **length,
        size=size,
        seed=seed,
        longest=policy.model.config.get_text_config().max_position_embeddings,
        hides_after=hidden if is_phased and settings.final_worked_share < settings.worked_share else None,
        episodes=episodes,
        content=content,
    )
    return lessons


def _length(settings: WarmStartSettings, model: ModelView, num_examples: int | None) -> dict[str, Any]:
    epochs, batch_size = settings.epochs(model), settings.examples_per_step
    if epochs is None or num_examples is None:
        assert settings.num_steps is not None
        return {"settings": settings, "num_steps": settings.num_steps, "total": settings.num_steps * batch_size}
    total = num_examples * epochs
    return {"settings": settings, "num_steps": -(-total // batch_size), "total": total}


def encode(policy: HubPolicy, task: Task, texts: Sequence[tuple[str, ...]]) -> list[Parts]:
    """Token ids of each part; a completion without a stop word gets the tokenizer's end token."""
    tokenizer: Any = policy.tokenizer
    if not task.stop_words and tokenizer.eos_token_id is None:
        raise UserError("the tokenizer names no end token, and the task has no stop word: set warm_start.enabled=false")
    end = [] if task.stop_words else [tokenizer.eos_token_id]
    flat = [text for parts in texts for text in parts]
    ids = iter(tokenizer(flat, add_special_tokens=False, padding=False, return_attention_mask=False)["input_ids"])
    return [tuple(next(ids) + (end if i % 2 else []) for i in range(len(parts))) for parts in texts]


def episode_of(parts: Parts) -> Episode:
    """The episode whose turns have these tokens."""
    row, ends = tuple(chain(*parts)), list(accumulate(map(len, parts)))
    return right_episode("", ((row[:start], row[start:end]) for start, end in list(pairwise(ends))[::2]))
