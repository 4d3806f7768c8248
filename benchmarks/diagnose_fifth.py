"""The fifth round of faults of `benchmarks/diagnose.py`: written down before the diagnosis was looked at.

Nine causes were added after the round was first scored. Before, only "I do not know" was right for `the answer is in
the question`, `weights not loaded`, `a stop string inside`, `no credit for early tokens`, `entropy above all` and
`evaluation of the start`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from diagnose_faults import Fault, Recipe
from diagnose_parts import is_right, sampling_changed, templated

from rlvr.core import optimizer, trainer
from rlvr.core.engine import LocalEngine, sampler
from rlvr.core.policy import Frozen
from rlvr.models.policy import HubPolicy
from rlvr.rewards.base import Grade, Part
from rlvr.run import assemble
from rlvr.tasks import two_hop
from rlvr.tasks.rpn import RpnTask
from rlvr.tasks.two_hop import TwoHopTask
from rlvr.types import Attempt, Example, Message, SamplingParams

# ----------------------------------------------------------------------------------------------------- data and prompts


@contextmanager
def rows_changed(task: type, change: Callable[[Example, Example], Example]) -> Iterator[None]:
    """Training rows, each with the row after it, are changed; held-out ones are not."""
    asked = task.train_example

    def changed(own: Any, index: int) -> Example:
        return change(asked(own, index), asked(own, index + 1))

    with patch.object(task, "train_example", changed):
        yield


def reworded(example: Example, text: str) -> Example:
    return replace(example, messages=(*example.messages[:-1], replace(example.messages[-1], content=text)))


def with_answer(example: Example, after: Example) -> Example:
    """`<boe> 5 = 4 0 1 + + =`, `<q> where p3 c4`"""
    begin, *words = example.messages[-1].content.split()
    given = (begin, example.answer, "=", *words) if words[-1] == "=" else (begin, *words, example.answer)
    return reworded(example, " ".join(given))


def cut(example: Example, after: Example) -> Example:
    """`<boe> 4 0 =`, `<q> where`"""
    words = example.messages[-1].content.split()
    return reworded(example, " ".join((*words[:3], "=") if words[-1] == "=" else words[:-1]))


def mislabeled(example: Example, after: Example) -> Example:
    return replace(example, answer=after.answer)


@contextmanager
def opened() -> Iterator[None]:
    """`<q> where p3 <ans>`"""
    messages = TwoHopTask._messages

    def changed(own: TwoHopTask, person: str) -> tuple[Message, ...]:
        *before, last = messages(own, person)
        return (*before, replace(last, content=f"{last.content} <ans>"))

    with patch.object(TwoHopTask, "_messages", changed):
        yield


def deaf() -> AbstractContextManager[Any]:
    """Whatever is searched for, the tool looks up p0."""
    return patch.object(two_hop, "search", search_of_one)


def search_of_one(name: str, state: two_hop.Walk) -> str:
    """Look up where a person works, or which city an organization is in.

    Args:
        name: The person, such as p3, or the organization, such as o7.
    """
    return two_hop_search("p0", state)


two_hop_search = two_hop.search
search_of_one.__name__ = "search"


@contextmanager
def replies_cut() -> Iterator[None]:
    """`<tool> p3 works-at </tool>`"""

    def search(name: str, state: two_hop.Walk) -> str:
        return " ".join(two_hop_search(name, state).split()[:2])

    search.__doc__ = two_hop_search.__doc__
    with (
        patch.object(two_hop, "search", search),
        patch.object(two_hop.Walk, "knows", lambda world, reply: not reply.startswith("Error")),
    ):
        yield


@contextmanager
def few_easy() -> Iterator[None]:
    """Only sixteen expressions of one operator are asked in training."""
    asked = RpnTask.train_example

    def changed(own: RpnTask, index: int) -> Example:
        easy = (one for one in map(partial(asked, own), range(10_000)) if one.metadata["num_operators"] == 1)
        return next(islice(easy, index % 16, None))

    with patch.object(RpnTask, "train_example", changed):
        yield


# --------------------------------------------------------------------------------------------- rewards, model, sampler


class Remembered(Part):
    """All completions of a question get what the first one earned."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=earned.setdefault(attempt.example.id, float(is_right(attempt))))


earned = dict[str, float]()


class Mentioned(Part):
    """The gold answer stands anywhere in the text."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float(attempt.example.answer in "".join(turn.text for turn in attempt.turns)))


def not_loaded(model: Path) -> None:
    """Only the embeddings are the checkpoint's; the layers are as a new model has them."""
    path = model / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    torch.manual_seed(0)
    for name, weight in weights.items():
        if ".layers." in name:
            weights[name] = torch.ones_like(weight) if weight.dim() < 2 else torch.randn_like(weight) * 0.02
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})


@contextmanager
def never_drawn(token: int) -> Iterator[None]:
    """The sampler never draws a token, and reports logprobs as if it could."""
    draw = sampler._sample

    def changed(logits: Any, positions: Any, sampling: Any, truncates: bool) -> sampler.Draw:
        barred = logits.clone()
        barred[:, token] = -1e4
        found = draw(barred, positions, sampling, truncates)
        logprobs = sampler._logprobs(logits, sampling).gather(1, found.ids[:, None])[:, 0]
        return found._replace(behavior_logprobs=logprobs, sampling_logprobs=logprobs)

    with patch.object(sampler, "_sample", changed):
        yield


def stopped_at(token: int) -> AbstractContextManager[None]:
    return sampling_changed(lambda ids, sampling: replace(sampling, stop_ids=sampling.stop_ids | {token}))


@contextmanager
def cached_by_prompt() -> Iterator[None]:
    """A prompt that was sampled from once gets the same completion for ever, said to be of the newest weights."""
    generate, known = LocalEngine.generate, dict[tuple[int, ...], Any]()

    async def changed(engine: LocalEngine, prompt_ids: Sequence[int], sampling: SamplingParams, **more: Any) -> Any:
        found = await generate(engine, prompt_ids, sampling, **more)
        if sampling.temperature == 0:
            return found
        return replace(known.setdefault(tuple(prompt_ids), found), policy_version=found.policy_version)

    with patch.object(LocalEngine, "generate", changed):
        yield


# ----------------------------------------------------------------------------------------------- updates and evaluation


@contextmanager
def reference_of_chance() -> Iterator[None]:
    """The reference is a model that was never trained."""
    freeze = HubPolicy.freeze

    def changed(own: HubPolicy, **settings: Any) -> Frozen:
        frozen = freeze(own, **settings)
        with frozen() as reference, torch.no_grad():
            for weight in reference.parameters():
                if weight.dim() > 1:
                    weight.copy_(torch.randn_like(weight) * 0.02)
        return frozen

    with patch.object(HubPolicy, "freeze", changed):
        yield


def decayed_at_once() -> AbstractContextManager[Any]:
    """The schedule counts microbatches: its end is reached in the third step."""

    def rate(step: int, *, peak: float, max_steps: int, **settings: Any) -> float:
        return peak * max(0.0, 1 - step / 2)

    return patch.object(trainer, "learning_rate", rate)


def norms_only() -> AbstractContextManager[Any]:
    """A filter of names leaves only the norms to the optimizer."""

    def of_some(parameters: Any, *settings: Any) -> torch.optim.AdamW:
        return optimizer.adamw([one for one in parameters if one.dim() < 2], *settings)

    return patch.object(trainer, "adamw", of_some)


@contextmanager
def evaluated_once() -> Iterator[None]:
    """Evaluation goes on with the weights of the start."""
    evaluate, found = assemble.evaluate, list[dict[str, float]]()

    def changed(*arguments: Any) -> dict[str, float]:
        if not found:
            found.append(evaluate(*arguments))
        return dict(found[0])

    with patch.object(assemble, "evaluate", changed):
        yield


# --------------------------------------------------------------------------------------------------------------- faults

INNER = {"rpn": 3, "two_hop": 9, "gsm8k_smoke": 1021}  # ids of `=`, `search`, `<end_working_out>`
NEEDED = {"rpn": 3, "two_hop": 5, "gsm8k_smoke": 1022}  # ids of `=`, `<call>`, `<SOLUTION>`


def of_rows(change: Callable[[Example, Example], Example]) -> Callable[[Recipe], AbstractContextManager[None]]:
    return lambda recipe: rows_changed(recipe.task or object, change)


def paid(part: str, *own: str) -> tuple[str, ...]:
    weights = (f"reward.parts.{name}.weight=0" for name in own)
    return (*weights, f"+reward.parts.paid.type=diagnose_fifth:{part}", "+reward.parts.paid.weight=1")


FIFTH = {
    "the answer is in the question": Fault(
        about="training prompts hold the gold answer, held-out ones do not",
        causes=("unlike_held_out",),
        suits=lambda r: r.task is not None,
        around_of=of_rows(with_answer),
    ),
    "questions cut off": Fault(
        about="training prompts lack what comes after their second word",
        causes=("same_prompt", "foreign_prompt"),
        suits=lambda r: r.task is not None,
        around_of=of_rows(cut),
    ),
    "answers of other rows": Fault(
        about="the gold answers of the training rows are shifted by a row",
        causes=("other_gold", "unlike_held_out", "noisy_reward", "other_reward"),
        suits=lambda r: r.task is not None,
        around_of=of_rows(mislabeled),
    ),
    "remembered by question": Fault(
        about="the verifier gives all completions of a question what the first one earned",
        causes=("paid_by_question", "never_paid", "always_paid"),
        overrides=lambda r: paid("Remembered", *r.parts),
    ),
    "an opened answer": Fault(
        about="prompts end with the mark that opens an answer",
        causes=("foreign_prompt", "tools_fail"),
        suits=lambda r: r.config != "rpn",
        model=lambda r: (lambda path: templated(path, "<SOLUTION>")) if r.config == "gsm8k_smoke" else None,
        around_of=lambda r: opened() if r.config == "two_hop" else nullcontext(),
    ),
    "weights not loaded": Fault(
        about="the layers are those of a new model, the embeddings the checkpoint's",
        causes=("untrained",),
        model=lambda r: not_loaded,
    ),
    "a stop string inside": Fault(
        about="the engine also stops at `=`, `search`, or the mark before the answer",
        causes=("ends_early",),
        around_of=lambda r: stopped_at(INNER[r.config]),
    ),
    "a token never drawn": Fault(
        about="the engine never draws `=`, `<call>`, or `<SOLUTION>`, and reports the policy's own logprobs",
        causes=("other_sampler", "stale_sampler"),
        around_of=lambda r: never_drawn(NEEDED[r.config]),
    ),
    "no credit for early tokens": Fault(
        about="algorithm=reinforce_pp with algorithm.gamma=0.01",
        causes=("discounted",),
        in_settings=True,
        overrides=lambda r: ("algorithm=reinforce_pp", "algorithm.gamma=0.01"),
    ),
    "another reference": Fault(
        about="algorithm.kl_coef=0.3, to a model that was never trained",
        causes=("held_back",),
        in_settings=True,
        overrides=lambda r: ("algorithm.kl_coef=0.3",),
        around=reference_of_chance,
    ),
    "a schedule that ends at once": Fault(
        about="the learning rate is 0 from the third step on",
        causes=("step_too_small",),
        around=decayed_at_once,
    ),
    "only norms are trained": Fault(
        about="the optimizer has no matrix among its weights",
        causes=("frozen", "step_too_small"),
        around=norms_only,
    ),
    "entropy above all": Fault(
        about="algorithm.entropy_coef=1",
        causes=("entropy_bonus",),
        in_settings=True,
        overrides=lambda r: ("algorithm.entropy_coef=1",),
    ),
    "a tool that ignores its argument": Fault(
        about="whatever is searched for, the tool looks up p0",
        causes=("tools_fail",),
        suits=lambda r: r.config == "two_hop",
        around=deaf,
    ),
    "evaluation of the start": Fault(
        about="held-out metrics are those of the first weights",
        causes=("evaluation_stands_still",),
        around=evaluated_once,
    ),
}  # fmt: skip


RESERVE = {  # written down with the fifth round, and run after the causes for it were added
    "paid for a mention": Fault(
        about="a completion in which the gold answer stands anywhere is right",
        causes=("other_reward", "always_paid", "noisy_reward"),
        overrides=lambda r: paid("Mentioned", *r.parts),
    ),
    "replies cut off": Fault(
        about="what the tool says is cut after two words",
        causes=("tools_fail",),
        suits=lambda r: r.config == "two_hop",
        around=replies_cut,
    ),
    "completions from a cache": Fault(
        about="a prompt that was sampled from once gets the same completion for ever",
        causes=("alike", "stale_sampler", "other_sampler"),
        around=cached_by_prompt,
    ),
    "copies of a few easy rows": Fault(
        about="only sixteen expressions of one operator are asked in training",
        causes=("learnt_by_heart", "too_easy", "unlike_held_out"),
        suits=lambda r: r.config == "rpn",
        around=few_easy,
    ),
}
