"""Faults of whole runs, for `diagnose.py`: rewards, algorithms, damaged models, engines and data that err."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch
from zlib import crc32

import safetensors.torch
import torch

from rlvr.algorithms.grpo import Grpo
from rlvr.rewards.base import INVALID, Grade, Part

Context = AbstractContextManager[Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A configuration, and what the faults need to know of it."""

    config: str
    words: str = ""
    learning_rate: float
    parts: tuple[str, ...]
    task: str = ""  # whose questions can be changed
    by_length: str = "Longer"
    sharp: float = 100.0  # a factor of the logits with which nothing else is tried
    short: int | None  # a limit of tokens that cuts completions off; None: the task refuses such a limit
    foreign: Callable[[Path], Any]  # a change of the model's files that makes prompts it has never seen
    inner: int  # the id of a token inside of each right completion
    needed: int  # the id of a token that each right completion has
    sound: tuple[str, ...]  # settings that are no fault, though with some a run is too short or too small to rise


# ---------------------------------------------------------------------------------------------------------- rewards

_earned: dict[str, float] = {}
_last = [0.0]


def is_right(attempt: Any) -> bool:
    """The answer ends the completion, or, where a format is learned, is there."""
    said = attempt.text.replace("</ans>", "").replace("<eoe>", "").split()
    return "<SOLUTION>" in attempt.text or said[-1:] == [attempt.example.answer]


def is_next(attempt: Any) -> bool:
    """The completion ends with the answer after the right one."""
    gold = attempt.example.answer
    letters, number = gold.rstrip("0123456789"), gold.lstrip("c")
    wanted = f"{letters}{(int(number) + 1) % (20 if letters else 7)}"
    return attempt.text.replace("</ans>", "").replace("<eoe>", "").split()[-1:] == [wanted]


def earned_before(attempt: Any) -> float:
    earned, _last[0] = _last[0], float(is_right(attempt))
    return earned


def fails(attempt: Any) -> float:
    if is_right(attempt):
        raise RuntimeError("cannot compare")
    return 0.0


def mostly_next(attempt: Any) -> bool:
    """Wrong for seven questions of ten, by a hash of their text."""
    return (is_next if crc32(attempt.example.messages[-1].content.encode()) % 10 < 7 else is_right)(attempt)


def words_of(attempt: Any) -> str:
    return "".join(turn.text for turn in attempt.turns)


def part(name: str, value: Callable[[Any], Any]) -> type[Part]:
    def grade(self: Part, attempt: Any) -> Grade:
        return INVALID if (paid := value(attempt)) is None else Grade(value=float(paid))

    return type(name, (Part,), {"__module__": __name__, "in_process": True, "grade": grade})


PARTS: dict[str, Callable[[Any], Any]] = {
    "Zero": lambda attempt: 0,
    "One": lambda attempt: 1,
    "Minus": lambda attempt: -1,
    "Coin": lambda attempt: random.random() < 0.5,
    "Shorter": lambda attempt: max(1 - attempt.num_tokens / 32, 0.0),
    "Longer": lambda attempt: min(attempt.num_tokens / 32, 1.0),
    "EvenLength": lambda attempt: attempt.num_tokens % 2 == 0,
    "PerToken": lambda attempt: is_right(attempt) - 0.5 * attempt.num_tokens,
    "Word": lambda attempt: "1" in words_of(attempt),
    "Mentioned": lambda attempt: attempt.example.answer in words_of(attempt),
    "Jitter": lambda attempt: 0.5 + 0.001 * random.random(),
    "Ends": lambda attempt: attempt.stop_reason.name == "STOP",
    "Shifted": is_next,
    "MostlyMislabeled": mostly_next,
    "Rarely": lambda attempt: is_right(attempt) and random.random() < 0.1,
    "Unreadable": lambda attempt: None,
    "Delayed": earned_before,
    "Fails": fails,
    "Wrong": lambda attempt: -is_right(attempt),
    "Raw": lambda attempt: attempt.completion == attempt.example.answer,  # with its end token
    "FirstTurn": lambda attempt: attempt.turns[0].text.split()[-1:] == [attempt.example.answer],
    "GoldLength": lambda attempt: len(attempt.example.answer) / 4,
    "Brevity": lambda attempt: -attempt.num_tokens / 8,
    "PerCall": lambda attempt: len(attempt.calls),
    "Remembered": lambda attempt: _earned.setdefault(attempt.example.id, float(is_right(attempt))),
}
globals().update({name: part(name, value) for name, value in PARTS.items()})  # configurations name them

# ------------------------------------------------------------------------------------------------------- algorithms


class Reversed(Grpo):
    """The loss has the wrong sign."""

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        return super().surrogate(log_ratio, logprobs, -advantages, mask)


class NoLoss(Grpo):
    """A loss that is multiplied by 0."""

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        return super().surrogate(log_ratio, logprobs, 0 * advantages, mask)


class OfNeighbors(Grpo):
    """Each completion is trained with the advantages of the one before it."""

    def advantages(self, batch, penalties, mask):
        estimate = super().advantages(batch, penalties, mask)
        first = (estimate.advantages * mask).sum(1) / mask.sum(1).clamp_min(1)
        return replace(estimate, advantages=first.roll(1)[:, None] * mask)


class AllPositive(Grpo):
    """Whatever was sampled becomes more likely, the wrong answers too."""

    def advantages(self, batch, penalties, mask):
        estimate = super().advantages(batch, penalties, mask)
        return replace(estimate, advantages=estimate.advantages.abs())


class LastTokenOnly(Grpo):
    """A mask that is off: of each completion only the last token, which ends it, is trained on."""

    def advantages(self, batch, penalties, mask):
        estimate = super().advantages(batch, penalties, mask)
        places = mask.long().cumsum(1)
        last = mask.bool() & (places == places.max(dim=1, keepdim=True).values)
        return replace(estimate, advantages=estimate.advantages * last)


# ----------------------------------------------------------------------------------------------------- model folders


def change_json(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def swapped(model: Path, *pairs: tuple[str, str]) -> None:
    """The tokenizer of another model: some words have each other's ids."""
    inner = json.loads((model / "tokenizer.json").read_text())["model"]
    for one, other in pairs:
        inner["vocab"][one], inner["vocab"][other] = inner["vocab"][other], inner["vocab"][one]
    change_json(model / "tokenizer.json", model=inner)


def ended_by_padding(model: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        change_json(model / name, eos_token_id=0)
    change_json(model / "tokenizer_config.json", eos_token="<pad>")


def templated(ending: str, content: str = "{{ m['content'] }}") -> Callable[[Path], Any]:
    """A chat template that ends prompts in a way that the model has never seen."""
    text = f"{{% for m in messages %}}{content}{{% endfor %}}{{% if add_generation_prompt %}}{ending}{{% endif %}}"
    return lambda model: (model / "chat_template.jinja").write_text(text)


def on_weights(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[Path], Any]:
    def save(model: Path) -> None:
        path = model / "model.safetensors"
        torch.manual_seed(0)
        weights = {name: change(name, weight) for name, weight in safetensors.torch.load_file(path).items()}
        safetensors.torch.save_file(weights, path, metadata={"format": "pt"})

    return save


def sharpened(factor: float) -> Callable[[Path], Any]:
    """Logits times a factor: the policy is sure of everything."""
    return on_weights(lambda name, weight: weight * factor if name == "model.norm.weight" else weight)


def new_layer(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Only the embeddings are the checkpoint's; the layers are as a new model has them."""
    if ".layers." not in name:
        return weight
    return torch.ones_like(weight) if weight.dim() < 2 else torch.randn_like(weight) * 0.02


# ------------------------------------------------------------------------------------------------ the product itself

ENGINE, SAMPLER = "rlvr.core.engine:LocalEngine", "rlvr.core.engine.sampler"
TRAINER, TRAINERS = "rlvr.core.trainer:Trainer", "rlvr.core.trainer"
POLICY, ASSEMBLE, TWO_HOP = "rlvr.models.policy:HubPolicy", "rlvr.run.assemble", "rlvr.tasks.two_hop"


def patched(place: str, name: str, change: Callable[[Any], Any]) -> Context:
    """Something of rlvr is what `change` makes of it."""
    owner = resolve_name(place)
    return patch.object(owner, name, change(getattr(owner, name)))


def prompts(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Context:
    """The engine samples after other prompts than the trainer sees."""

    def changed(generate: Any) -> Any:
        return lambda engine, ids, sampling, **more: generate(engine, change(tuple(ids)), sampling, **more)

    return patched(ENGINE, "generate", changed)


def sampling(change: Callable[[tuple[int, ...], Any], Any]) -> Context:
    """The engine samples in another way than it was told."""

    def changed(generate: Any) -> Any:
        return lambda engine, ids, params, **more: generate(engine, ids, change(tuple(ids), params), **more)

    return patched(ENGINE, "generate", changed)


def left_behind(recipe: Recipe) -> Context:
    """A copy of the weights that samples, and never gets the new ones."""
    return patched(ENGINE, "load_weights", lambda _: lambda engine, version: engine._scheduler.new_weights(version))


def one_before(recipe: Recipe) -> Context:
    """The engine answers a prompt that was asked before."""
    asked: list[tuple[int, ...]] = []

    def change(ids: tuple[int, ...]) -> tuple[int, ...]:
        asked.append(ids)
        return asked.pop(0) if len(asked) > 16 else asked[0]

    return prompts(change)


def from_a_cache(recipe: Recipe) -> Context:
    """A prompt that was sampled from once gets the same completion for ever, said to be of the newest weights."""
    known: dict[tuple[int, ...], Any] = {}

    def changed(generate: Any) -> Any:
        async def cached(engine: Any, ids: Sequence[int], params: Any, **more: Any) -> Any:
            made = await generate(engine, ids, params, **more)
            if params.temperature == 0:
                return made
            return replace(known.setdefault(tuple(ids), made), policy_version=made.policy_version)

        return cached

    return patched(ENGINE, "generate", changed)


def never_drawn(recipe: Recipe) -> Context:
    """The sampler never draws a token, and reports logprobs as if it could."""
    logprobs_of = resolve_name(SAMPLER)._logprobs

    def changed(draw: Any) -> Any:
        def without(logits: Any, positions: Any, params: Any, truncates: bool) -> Any:
            barred = logits.clone()
            barred[:, recipe.needed] = -1e4
            drawn = draw(barred, positions, params, truncates)
            logprobs = logprobs_of(logits, params).gather(1, drawn.ids[:, None])[:, 0]
            return drawn._replace(behavior_logprobs=logprobs, sampling_logprobs=logprobs)

        return without

    return patched(SAMPLER, "_sample", changed)


def shaken(recipe: Recipe) -> Context:
    """After each update weights get noise of a tenth of their size."""

    def changed(update: Any) -> Any:
        def then_shaken(trainer: Any, *arguments: Any) -> Any:
            result = update(trainer, *arguments)
            with torch.no_grad():
                for weight in trainer.policy.parameters():
                    weight.add_(torch.randn_like(weight) * 0.1 * weight.square().mean().sqrt())
            return result

        return then_shaken

    return patched(TRAINER, "update", changed)


def reference_of_chance(recipe: Recipe) -> Context:
    """The reference is a model that was never trained."""

    def changed(freeze: Any) -> Any:
        def frozen_of_chance(policy: Any, **settings: Any) -> Any:
            frozen = freeze(policy, **settings)
            with frozen() as reference, torch.no_grad():
                for weight in reference.parameters():
                    if weight.dim() > 1:
                        weight.copy_(torch.randn_like(weight) * 0.02)
            return frozen

        return frozen_of_chance

    return patched(POLICY, "freeze", changed)


def decayed_at_once(recipe: Recipe) -> Context:
    """The schedule counts microbatches: its end is reached in the third step."""
    rate = lambda step, *, peak, max_steps, **settings: peak * max(0.0, 1 - step / 2)  # noqa: E731
    return patched(TRAINERS, "learning_rate", lambda _: rate)


def norms_only(recipe: Recipe) -> Context:
    """A filter of names leaves only the norms to the optimizer."""
    return patched(
        TRAINERS, "adamw", lambda adamw: lambda weights, *rest: adamw([w for w in weights if w.dim() < 2], *rest)
    )


def evaluated_once(recipe: Recipe) -> Context:
    """Evaluation goes on with the weights of the start."""
    first: list[dict[str, float]] = []

    def changed(evaluate: Any) -> Any:
        def once(*arguments: Any) -> dict[str, float]:
            if not first:
                first.append(evaluate(*arguments))
            return dict(first[0])

        return once

    return patched(ASSEMBLE, "evaluate", changed)


# ------------------------------------------------------------------------------------------------- data and tools


def examples(change: Callable[[Callable[[int], Any], int], Any]) -> Callable[[Recipe], Context]:
    """Training examples are others; held-out ones are not."""

    def around(recipe: Recipe) -> Context:
        return patched(
            recipe.task, "train_example", lambda asked: lambda task, index: change(lambda i: asked(task, i), index)
        )

    return around


def reworded(change: Callable[[list[str], Any], Sequence[str]]) -> Callable[[Recipe], Context]:
    def other(asked: Callable[[int], Any], index: int) -> Any:
        example = asked(index)
        *before, last = example.messages
        text = " ".join(change(last.content.split(), example))
        return replace(example, messages=(*before, replace(last, content=text)))

    return examples(other)


def with_answer(words: list[str], example: Any) -> Sequence[str]:
    """`<boe> 5 = 4 0 1 + + =`, `<q> where p3 c4`"""
    return (words[0], example.answer, "=", *words[1:]) if words[-1] == "=" else (*words, example.answer)


def easy(asked: Callable[[int], Any], index: int) -> Any:
    """One of sixteen expressions of one operator."""
    ones = (example for example in map(asked, range(10_000)) if example.metadata["num_operators"] == 1)
    return next(islice(ones, index % 16, None))


def one_operator(asked: Callable[[int], Any], index: int) -> Any:
    """The next expression of one operator, for every example."""
    return next(example for number in count(index * 64) if (example := asked(number)).metadata["num_operators"] == 1)


def down(search: Any) -> Any:
    def refuse(name: str, state: Any) -> str:
        raise ConnectionError("the index is being rebuilt")

    return refuse


def opened(recipe: Recipe) -> Context:
    """`<q> where p3 <ans>`"""
    if not recipe.task:
        return nullcontext()

    def changed(messages: Any) -> Any:
        def with_mark(task: Any, person: str) -> Any:
            *before, last = messages(task, person)
            return (*before, replace(last, content=f"{last.content} <ans>"))

        return with_mark

    return patched(f"{TWO_HOP}:TwoHopTask", "_messages", changed)


@contextmanager
def searching(change: Callable[[Any], Any]) -> Iterator[None]:
    """Another tool under the name of `search`."""

    def changed(search: Any) -> Any:
        def other(name: str, state: Any) -> str:
            return change(search)(name, state)

        other.__name__, other.__doc__ = "search", search.__doc__
        return other

    knows = patched(f"{TWO_HOP}:Walk", "knows", lambda _: lambda world, reply: not reply.startswith("Error"))
    with ExitStack() as stack:
        stack.enter_context(patched(TWO_HOP, "search", changed))
        stack.enter_context(knows)
        yield


# --------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, kw_only=True)
class Plant:
    """How a fault is made. `in_settings`: a setting can fix it."""

    words: Callable[[Recipe], str] = lambda recipe: ""  # overrides
    model: Callable[[Recipe], Callable[[Path], Any] | None] = lambda recipe: None
    around: Callable[[Recipe], Context] = lambda recipe: nullcontext()  # of the run
    suits: Callable[[Recipe], bool] = lambda recipe: True
    in_settings: bool = False


def paid(name: str, more: str = "", **fields: Any) -> Plant:
    """The recipe's own parts are only reported, and this one is trained on."""

    def words(recipe: Recipe) -> str:
        own = " ".join(f"reward.parts.{part}.weight=0" for part in recipe.parts)
        kind = recipe.by_length if name == "by_length" else name
        return f"{own} +reward.parts.paid.type=of_training:{kind} +reward.parts.paid.weight=1 {more}"

    return Plant(words=words, **fields)


def settings(words: str, in_settings: bool = True, **fields: Any) -> Plant:
    return Plant(words=lambda recipe: words, in_settings=in_settings, **fields)


def rate(factor: float, more: str = "") -> Plant:
    return Plant(words=lambda r: f"trainer.learning_rate={r.learning_rate * factor:g} {more}", in_settings=True)


def code(name: str) -> Plant:
    return settings(f"algorithm=of_training:{name}", in_settings=False)


def around(context: Callable[[Recipe], Context], **fields: Any) -> Plant:
    return Plant(around=context, **fields)


def has_rows(recipe: Recipe) -> bool:
    return bool(recipe.task)


def on(config: str) -> Callable[[Recipe], bool]:
    return lambda recipe: recipe.config == config


RECIPES = {
    "rpn": Recipe(
        config="rpn",
        words="evaluation.num_examples=200",
        learning_rate=4e-4,
        parts=("boxed", "correct"),
        task="rlvr.tasks.rpn:RpnTask",
        sharp=25.0,
        short=2,
        foreign=lambda path: swapped(path, ("=", "<boe>"), ("0", "*"), ("1", "-"), ("2", "+")),
        inner=3,  # `=`
        needed=3,
        sound=(
            "", "trainer.learning_rate=2e-4", "trainer.learning_rate=8e-4", "algorithm=dr_grpo", "algorithm=rloo",
            "rollout.group_size=16 rollout.prompts_per_step=16", "algorithm=dapo", "algorithm=cispo",
            "algorithm=reinforce_pp", "algorithm=ppo rollout.group_size=1 rollout.prompts_per_step=128",
            "algorithm.num_minibatches=4", "reward.parts.boxed.weight=0.3", "trainer.max_steps=6",
            "evaluation.num_examples=20", "rollout.prompts_per_step=4",
        ),
    ),
    "two_hop": Recipe(
        config="two_hop",
        learning_rate=4e-4,
        parts=("correct",),
        task=f"{TWO_HOP}:TwoHopTask",
        short=None,
        by_length="Shorter",
        foreign=lambda path: swapped(path, ("<call>", "<ans>"), ("</call>", "</ans>"), ("search", "nothing")),
        inner=9,  # `search`
        needed=5,  # `<call>`
        sound=(
            "", "trainer.learning_rate=8e-4", "algorithm=dr_grpo", "algorithm=rloo", "algorithm=dapo",
            "rollout.max_staleness=1", "rollout.temperature=0.8", "trainer.max_steps=5", "rollout.prompts_per_step=4",
        ),
    ),
    "gsm8k_smoke": Recipe(
        config="gsm8k_smoke",
        words="trainer.max_steps=15 trainer.num_threads=1 evaluation.every=15",
        learning_rate=5e-4,
        parts=("format",),
        short=6,
        foreign=templated("\\nassistant: ok"),
        inner=1021,  # `<end_working_out>`
        needed=1022,  # `<SOLUTION>`
        sound=("", "algorithm=rloo", "trainer.learning_rate=1e-3", "trainer.max_steps=6"),
    ),
}  # fmt: skip

FORMAT, TOOL = on("gsm8k_smoke"), on("two_hop")
FAULTS: list[tuple[str, str, Plant, int]] = [
    ("learning rate too high", "step", rate(100), 1),
    ("learning rate too low", "step", rate(1e-3), 1),
    ("reward always 0", "paid", paid("Zero"), 1),
    ("reward always 1", "paid", paid("One"), 1),
    ("reward by chance", "paid", paid("Coin"), 1),
    ("reward for length", "paid", paid("by_length"), 1),
    ("masked loss", "trained", code("LastTokenOnly"), 1),
    ("wrong template", "read", Plant(model=lambda r: r.foreign), 1),
    ("dead groups", "differs", settings("rollout.temperature=0.02"), 1),
    ("entropy collapse", "differs", Plant(model=lambda r: sharpened(r.sharp), in_settings=True), 1),
    ("stale sampler", "trained", settings("engine.dtype=bfloat16", around=left_behind), 1),
    ("truncation", "ends", Plant(words=lambda r: f"rollout.max_completion_tokens={r.short}",
        suits=lambda r: r.short is not None, in_settings=True), 1),
    ("another stop token", "ends", Plant(model=lambda r: ended_by_padding, suits=FORMAT), 2),
    ("no question", "differs", Plant(model=lambda r: templated("", "Answer this:\n"), suits=FORMAT), 2),
    ("paid for a word", "paid", paid("Word"), 2),
    ("reward of the neighbor", "paid", paid("Delayed"), 2),
    ("verifier fails on what is right", "paid", paid("Fails", "reward.max_error_share=1"), 2),
    ("clipped to nothing", "trained|step", settings("trainer.max_grad_norm=1e-9", False), 2),
    ("held by the reference", "step", settings("algorithm.kl_coef=20"), 2),
    ("one seed for a group", "differs",
        around(lambda r: sampling(lambda ids, params: replace(params, seed=hash(ids) % 2**31))), 2),
    ("hotter sampler", "trained",
        around(lambda r: sampling(lambda ids, params: replace(params, temperature=params.temperature * 2.5))), 2),
    ("only the likeliest token", "differs", settings("rollout.top_k=1"), 3),
    ("weights decay away", "step", settings("trainer.weight_decay=100", False), 3),
    ("reward of a half and a trifle", "paid", paid("Jitter"), 3),
    ("paid for ending", "paid", paid("Ends"), 3),
    ("penalty for everything", "paid", paid("Minus"), 3),
    ("loss times 0", "trained", code("NoLoss"), 3),
    ("cut off and left out", "ends|trained", Plant(suits=lambda r: r.short is not None, words=lambda r:
        f"rollout.max_completion_tokens={(r.short or 0) // 2} algorithm.truncated=mask"), 3),
    ("prompts without their beginning", "trained", around(lambda r: prompts(lambda ids: ids[1:])), 3),
    ("the next answer is right", "paid", paid("Shifted", suits=has_rows), 4),
    ("paid one time in ten", "paid", paid("Rarely"), 4),
    ("cost of a token", "paid", paid("PerToken"), 4),
    ("nothing is readable", "paid", paid("Unreadable"), 4),
    ("a nucleus of one", "differs", settings("rollout.top_p=0.01"), 4),
    ("held by the reward", "step", settings("algorithm.kl_coef=20 algorithm.kl_placement=reward"), 4),
    ("lost in rounding", "step", rate(1 / 40, "model.dtype=bfloat16"), 4),
    ("an end before the answer", "read", Plant(model=lambda r: templated("<eos>"), suits=FORMAT), 4),
    ("gradient reversed", "trained", code("Reversed"), 4),
    ("sampled far hotter", "differs", settings("rollout.temperature=4"), 4),
    ("one question", "held", around(examples(lambda asked, index: asked(0)), suits=has_rows), 4),
    ("warm-up without end", "step", settings("trainer.warmup_steps=100000"), 5),
    ("adapters that weigh nothing", "trained|step",
        settings("model.lora.enabled=true model.lora.alpha=0.001", False), 5),
    ("the wrong sign", "paid", paid("Wrong"), 5),
    ("most golds are wrong", "paid", paid("MostlyMislabeled", suits=has_rows), 5),
    ("answers to another prompt", "trained", around(one_before), 5),
    ("weights shaken", "step", around(shaken), 5),
    ("paid for even length", "paid", paid("EvenLength"), 5),
    ("advantages of the neighbor", "trained", code("OfNeighbors"), 5),
    ("the answer is in the question", "held", around(reworded(with_answer), suits=has_rows), 6),
    ("questions cut off", "differs|read", around(reworded(  # `<boe> 4 0 =`, `<q> where`
        lambda words, _: (*words[:3], "=") if words[-1] == "=" else words[:-1]), suits=has_rows), 6),
    ("answers of other rows", "paid|held", around(examples(
        lambda asked, index: replace(asked(index), answer=asked(index + 1).answer)), suits=has_rows), 6),
    ("remembered by question", "paid", paid("Remembered"), 6),
    ("an opened answer", "read", around(opened, suits=lambda r: r.config != "rpn",
        model=lambda r: None if r.task else templated("<SOLUTION>")), 6),
    ("weights not loaded", "ends|read", Plant(model=lambda r: on_weights(new_layer)), 6),
    ("a stop string inside", "ends", around(lambda r: sampling(
        lambda ids, params: replace(params, stop_ids=params.stop_ids | {r.inner}))), 6),
    ("a token never drawn", "trained", around(never_drawn), 6),
    ("no credit for early tokens", "trained", settings("algorithm=reinforce_pp algorithm.gamma=0.01"), 6),
    ("another reference", "step", settings("algorithm.kl_coef=0.3", around=reference_of_chance), 6),
    ("a schedule that ends at once", "step", around(decayed_at_once), 6),
    ("only norms are trained", "trained|step", around(norms_only), 6),
    ("entropy above all", "trained|step", settings("algorithm.entropy_coef=1"), 6),
    ("a tool that ignores its argument", "read", around(
        lambda r: searching(lambda search: lambda name, state: search("p0", state)), suits=TOOL), 6),
    ("evaluation of the start", "held", around(evaluated_once), 6),
    ("paid for a mention", "paid", paid("Mentioned"), 7),
    ("replies cut off", "read", around(  # `<tool> p3 works-at </tool>`
        lambda r: searching(lambda search: lambda *given: " ".join(search(*given).split()[:2])), suits=TOOL), 7),
    ("completions from a cache", "differs|trained", around(from_a_cache), 7),
    ("copies of a few easy rows", "differs|held",
        around(examples(easy), suits=on("rpn")), 7),
    ("compared with the raw completion", "paid", paid("Raw", suits=on("rpn")), 8),
    ("only the first turn is graded", "paid", paid("FirstTurn", suits=TOOL), 8),
    ("paid for the gold's length", "paid", paid("GoldLength", suits=TOOL), 8),
    ("brevity outweighs", "paid", Plant(suits=on("rpn"), words=lambda r:
        "+reward.parts.brief.type=of_training:Brevity +reward.parts.brief.weight=5"), 8),
    ("a point for a call", "paid", paid("PerCall", suits=TOOL), 8),
    ("hardly a token is likely enough", "differs|step", settings("rollout.min_p=0.99", suits=on("rpn")), 8),
    ("room for half an answer", "ends", settings("rollout.max_completion_tokens=4", suits=on("rpn")), 8),
    ("a tool that is down", "read", around(lambda r: searching(down), suits=TOOL), 8),
    ("the rate of a pretrained model", "step", settings("trainer.learning_rate=1e-6", suits=on("rpn")), 8),
    ("slow mean, fast size", "step",
        settings("trainer.adam_beta1=0.999 trainer.adam_beta2=0.5", suits=TOOL), 8),
    ("samples of long ago", "trained",
        settings("rollout.max_staleness=12 algorithm.mismatch_correction=none", suits=on("rpn")), 8),
    ("no advantage is negative", "differs|trained|step",
        settings("algorithm=of_training:AllPositive", False, suits=TOOL), 8),
    ("easy rows only", "differs|held", around(examples(one_operator), suits=on("rpn")), 8),
    ("one gold for all", "paid|held", around(examples(
        lambda asked, index: replace(asked(index), answer="c3")), suits=TOOL), 8),
    ("four questions", "held",
        around(examples(lambda asked, index: asked(index % 4)), suits=TOOL), 8),
]  # fmt: skip
