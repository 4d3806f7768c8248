"""Checks of logprobs, loss, gradient and update."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlvr.checks.patient import Interview, Patient, difference, logprobs, skip, verdict
from rlvr.checks.slope import slope_of
from rlvr.checks.speech import end_of_turn
from rlvr.checks.texts import answered, awkward
from rlvr.core.batch import to_batch
from rlvr.core.engine.runner import CachedRunner
from rlvr.core.engine.select import probe, unfit
from rlvr.core.engine.shared_prefix import engine_attention
from rlvr.core.episode import ChatModel, run_episode
from rlvr.core.packing import microbatches
from rlvr.core.policy import forward
from rlvr.core.trainer import Trainer, scatter
from rlvr.models.adapters import adapter_weights
from rlvr.records.checks import Check
from rlvr.run.tasks import context_tokens
from rlvr.types import Episode, Group, Message, SamplingParams, TokenBatch

Gradient = list[tuple[torch.nn.Parameter, Tensor]]
NO_STEP = 1e-30  # a learning rate that changes no weight
SLOPE_TOLERANCE = 0.02
LARGEST_CHANGE, LARGEST_SHARE = 2e-2, 1e-2  # of a step along the gradient: of the loss, and in norms of the weights
RATES = (1e-4, 1e-3, 1e-2)  # of learning: the first whose step is larger than rounding


def weights_finite(patient: Patient) -> Check:
    bad: dict[str, list[int]] = {}
    for name, weight in (*patient.model.named_parameters(), *patient.model.named_buffers()):
        if weight.is_floating_point() and not (finite := torch.isfinite(weight)).all():
            bad[name] = torch.nonzero(~finite.flatten(1).all(1) if weight.dim() > 1 else ~finite)[:3, 0].tolist()
    return verdict(
        bool(bad),
        f"{len(bad)} weights or buffers hold NaN or infinity, first {next(iter(bad), '')}",
        "every weight is finite",
        "take an earlier checkpoint: this one diverged, or was written in float16",
        rows=bad,
    )


def passes_repeat(patient: Patient) -> Check:
    again = logprobs(patient.trainer(layout="rows"), patient.batch)
    gap, where = difference(patient.batch, patient.scored, again)
    return verdict(
        gap > patient.noise,
        f"two passes over the same rows differ by {gap:.2g} in a logprob: the model draws random numbers",
        "two passes over the same rows give the same logprobs",
        "switch dropout and other noise off in the model's code: rlvr keeps the model in eval mode",
        **where,
    )


@torch.no_grad()
def trainer_is_model(patient: Patient) -> Check:
    """Against the model's own forward pass over each row alone."""
    batch, temperature = patient.batch, patient.config.rollout.temperature
    plain = torch.zeros_like(batch.behavior_logprobs)
    for row, length in enumerate(batch.lengths.tolist()):
        ids = batch.ids[row : row + 1, :length].to(patient.model.device)
        logits = patient.model(input_ids=ids, use_cache=False).logits[0, :-1].float() / temperature
        plain[row, 1:length] = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].cpu()
    gap, where = difference(batch, patient.scored, plain)
    return verdict(
        gap > patient.tolerance,
        f"the trainer's logprobs differ by {gap:.2g} from the model's own forward pass",
        f"the trainer's logprobs are those of the model's own forward pass (largest difference {gap:.1g})",
        "the model's forward changes the logits (a scale, a cap, a temperature) in a way its config does not say: name "
        "it there (logit_scale, logits_scaling, final_logit_softcapping), or remove it",
        **where,
    )


@torch.no_grad()
def is_causal(patient: Patient) -> Check:
    """What follows a token does not change its logits."""
    _, ids = patient.prompt(0)
    ids = ids[: context_tokens(patient.policy)]
    if len(ids) < 2:
        return skip("the prompt has one token")
    vocabulary = int(patient.model.config.get_text_config().vocab_size)
    rows = torch.tensor([ids, (*ids[:-1], (ids[-1] + 1) % vocabulary)], device=patient.model.device)
    one, other = patient.model(input_ids=rows, use_cache=False).logits[:, :-1].float().log_softmax(-1).cpu()
    gap = float((one - other).abs().max())
    return verdict(
        not gap <= patient.noise,
        f"another last token changes the logprobs before it by {gap:.2g}: the model sees what it has to predict",
        f"another last token leaves the logprobs before it as they are ({gap:.1g})",
        "look at the attention mask, at convolutions and at shifts in the model's code: they must look back only",
    )


@torch.no_grad()
def cache_is_exact(patient: Patient) -> Check:
    """Keys and values that are kept give what a plain forward pass gives."""
    if unfit(patient.model.config) is not None:
        return skip("the model keeps a state instead of keys and values: the engine samples without a cache, slowly")
    with engine_attention(patient.model):
        reason = probe(patient.model, CachedRunner, patient.policy.prompts) or ""
    if not reason:  # the run's own engine may sample in another data type, and a server has caches of its own
        reason = getattr(patient.engine, "without_cache", None) or ""
    if reason and "differ" not in reason:
        return skip(f"{reason}: the engine samples without one, slowly")
    return verdict(
        bool(reason),
        f"with kept keys and values the model has {reason}: the engine samples without a cache, slowly",
        "with kept keys and values the model has the logprobs of a plain forward pass",
        "look for code of the model that treats a cache, a mask or positions in another way than a plain forward pass; "
        "other samplers use the cache and would sample from another model",
    )


def _engine_is_trainer(patient: Patient, temperature: float) -> Check:
    batch = to_batch(patient.sample(temperature))
    gap, where = difference(batch, batch.behavior_logprobs, logprobs(patient.trainer(temperature, "rows"), batch))
    how = f"at temperature {temperature:g}, with {len(batch.ids)} completions of shared prompts on 3 slots"
    return verdict(
        gap > patient.tolerance_in(batch),
        f"engine and trainer differ by {gap:.2g} in a logprob {how}",
        f"engine and trainer agree {how} (largest difference {gap:.1g})",
        "the ratio of the update starts beside 1: look for code of the model that treats a cache, a mask or positions "
        "in another way than a plain forward pass, and report the architecture",
        **where,
    )


def engine_is_trainer(patient: Patient) -> Check:
    return _engine_is_trainer(patient, 1.0)


def engine_is_trainer_cooler(patient: Patient) -> Check:
    return _engine_is_trainer(patient, 0.7)


def three_turns(patient: Patient) -> Check:
    """The engine keeps keys and values from turn to turn. About a quarter of the vocabulary ends a turn."""
    example = patient.task.train_example(0)
    messages = tuple(message for message in example.messages if not message.tool_calls)
    ends = frozenset(range(3, len(patient.policy.tokenizer), 4)) | patient.chat.stop_ids
    model = ChatModel(engine=patient.engine, chat=patient.chat, max_context_tokens=patient.engine.max_context_tokens)

    def sampling(number: int) -> Callable[[int], SamplingParams]:
        return lambda turn: replace(patient.params(10 * number + turn, 1.0, 24), stop_ids=ends)

    async def play() -> list[Episode]:
        patient.engine.load_weights(0)
        asked = [
            run_episode(example, Interview(messages), model, sampling(n), sample_index=n, seed=n) for n in range(4)
        ]
        return list(await asyncio.gather(*asked))

    episodes = asyncio.run(play())
    batch = to_batch([Group(example=example, episodes=tuple(episodes))])
    gap, where = difference(batch, batch.behavior_logprobs, logprobs(patient.trainer(1.0, "rows"), batch))
    turns = sum(len(episode.turns) for episode in episodes)
    return verdict(
        gap > patient.tolerance_in(batch),
        f"engine and trainer differ by {gap:.2g} in a logprob of episodes of several turns",
        f"engine and trainer agree over {turns} turns of 4 episodes in {len(batch.ids)} rows (largest difference "
        f"{gap:.1g})",
        "what the engine keeps from turn to turn is not what a plain forward pass computes: report the architecture",
        **where,
    )


def packed_alone(patient: Patient) -> Check:
    """A packed row must not see its neighbor, and must have the logprobs of the row alone."""
    if patient.layout == "rows" and (why := unfit(patient.model.config)):
        return skip(f"the model has {why}: it is trained in single rows, slower")
    batch = patient.batch
    longest = int(batch.lengths.sub(batch.prompt_lengths).argmax())
    ids = torch.where(
        batch.loss_mask, (batch.ids + 1) % int(patient.model.config.get_text_config().vocab_size), batch.ids
    )
    changed = replace(batch, ids=torch.where(torch.arange(len(ids))[:, None] == longest, ids, batch.ids))
    rest = replace(batch, loss_mask=batch.loss_mask & (torch.arange(len(ids))[:, None] != longest))
    try:
        trainer = patient.trainer(layout="shared")
        before, after = (logprobs(trainer, one) for one in (batch, changed))
    except (TypeError, ValueError, RuntimeError, StopIteration) as error:
        return skip(f"the model takes no packed rows ({_line(error)}): it is trained in single rows, slower")
    leak, where = difference(rest, before, after)
    shift, place = difference(batch, before, patient.scored)
    bound = patient.tolerance
    if leak > bound:
        says, where = f"a neighbor's tokens change a packed row's logprob by {leak:.2g}: attention leaks", where
    else:
        says, where = f"a packed row's logprob differs by {shift:.2g} from the row alone: positions leak", place
    return verdict(
        max(leak, shift) > bound,
        says,
        f"packed rows have the logprobs of the rows alone, whatever their neighbors are ({leak:.1g}, {shift:.1g})",
        SLOWER,
        **where,
        layout=patient.layout,
    )


SLOWER = (
    "let the model's code use the attention_mask and position_ids it is given; where the short probe at the start of a "
    "run notices, training goes on with the slower layout of single rows"
)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


@torch.no_grad()
def _loss(trainer: Trainer, batch: TokenBatch) -> float:
    weights, total = trainer.objective.loss_weights(batch), 0.0
    for microbatch in microbatches(batch, range(len(batch.ids)), trainer.packing):
        predicted = forward(trainer.policy, microbatch, trainer.objective.temperature)
        place = (microbatch.rows, microbatch.columns)
        whole = predicted.map(lambda x, place=place: scatter(x, place, weights.shape))
        own = torch.zeros_like(weights).index_put(place, weights[place])
        total += float(trainer.objective.loss(batch, own, whole).loss)
    return total


def _gradient(patient: Patient, trainer: Trainer, batch: TokenBatch) -> Gradient:
    trainer.update(batch, 0)
    trainer.optimizer.state.clear()  # twice the weights
    return [(p, p.grad) for p in patient.policy.parameters() if p.grad is not None]


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float((tensor.cpu().double() ** 2).sum()) for tensor in tensors) ** 0.5


def _moved_loss(trainer: Trainer, batch: TokenBatch, gradient: Gradient, factor: float) -> float:
    """The loss where `factor` times the gradient was added to the weights, which are then as before."""
    before = [p.detach().clone() for p, _ in gradient]
    with torch.no_grad():
        for p, g in gradient:
            p.add_(g, alpha=factor)
        loss = _loss(trainer, batch)
        for (p, _), value in zip(gradient, before, strict=True):
            p.copy_(value)
    return loss


def gradient_is_slope(patient: Patient) -> Check:
    """The loss, moved along its gradient, changes as the gradient says."""
    if patient.policy.dtype != torch.float32:
        return skip("the frozen weights are not in float32: a finite difference would measure rounding")
    with patient.unchanged():
        trainer = patient.trainer(learning_rate=NO_STEP, max_grad_norm=1e30)
        batch = patient.judged(trainer)
        gradient = _gradient(patient, trainer, batch)
        norm = _norm(g for _, g in gradient)
        if norm == 0:
            return Check(status="fail", says="the gradient of the loss is 0", remedy=LEARNS)
        middle = _loss(trainer, batch)
        largest = min(LARGEST_CHANGE, LARGEST_SHARE * _norm(p.detach() for p, _ in gradient) * norm)
        slope, quotients = slope_of(lambda x: _moved_loss(trainer, batch, gradient, x / norm**2) - middle, largest)
    return verdict(
        not abs(slope - 1) < SLOPE_TOLERANCE,
        f"the loss changes by {slope:.3g} times what its gradient says (finite differences)",
        f"the loss changes by {slope:.4f} times what its gradient says (finite differences)",
        "the backward of a layer is not the derivative of its forward: look for custom autograd functions, hooks on "
        "gradients, or kernels of your own in the model's code",
        slopes=quotients,
        gradient_norm=norm,
    )


LEARNS = (
    "look for requires_grad_(False), detach() or torch.no_grad() in the model's code; for adapters, for matrices A and "
    "B that are both 0"
)


def _of_text(model: Any) -> Callable[[str], bool]:
    """Whether a tensor takes part in reading text: what sees or hears beside the language model never learns here."""
    if model.config.get_text_config() is model.config:
        return lambda name: True
    parts = (model.get_decoder(), model.get_output_embeddings())
    inside = tuple(f"{name}." for name, module in model.named_modules() if any(module is part for part in parts))
    return lambda name: name.startswith(inside)


def weights_learn(patient: Patient) -> Check:
    """Gradients reach every trained tensor, and no other."""
    with patient.unchanged():
        trainer = patient.trainer(epochs=1, learning_rate=NO_STEP)
        gradient = {id(p) for p, g in _gradient(patient, trainer, patient.judged(trainer)) if g.any()}
    adapters = {} if patient.policy.adapters is None else adapter_weights(patient.model)
    of_text = _of_text(patient.model)
    wanted = {name: p for name, p in (adapters or dict(patient.model.named_parameters())).items() if of_text(name)}
    live = {name for name, p in wanted.items() if id(p) in gradient}
    # a new adapter's B is 0, so A has no gradient yet
    dead = sorted(n for n in wanted if n not in live and n.replace(".lora_A.", ".lora_B.") not in live)
    extra = sorted(n for n, p in patient.model.named_parameters() if p.requires_grad and n not in wanted and of_text(n))
    faults = [f"{len(dead)} never learn, first {dead[0]}"] if dead else []
    faults += [f"{len(extra)} more should be frozen, first {extra[0]}"] if extra else []
    what = "adapter matrices" if adapters else "weight tensors"
    return verdict(
        bool(dead or extra),
        f"of {len(wanted)} {what} {', and '.join(faults)}",
        f"all {len(wanted)} {what} get a gradient" + (", the model under them none" if adapters else ""),
        LEARNS if dead else "freeze the base model: requires_grad_(False) on everything that is no adapter",
        without_gradient=dead[:10],
        trained_by_mistake=extra[:10],
    )


def end_token_learns(patient: Patient) -> Check:
    """An embedding's padding row has no gradient."""
    padding = getattr(patient.model.get_input_embeddings(), "padding_idx", None)
    if patient.policy.adapters is not None:
        return skip("embeddings are frozen")
    end = end_of_turn(patient.chat, Message(role="assistant", content="")) if patient.several_turns else ()
    texts = [*answered(patient), *(() if patient.task.vocabulary is not None else awkward(patient.config.seed))]
    inside = [text for text in texts if padding in patient.coder.encode(text)]
    what = "ends a turn" if padding in end else "stands inside texts"
    return verdict(
        padding in end or bool(inside),
        f"the token {padding} {what} and is the padding of the embedding, whose row gets no gradient",
        "the padding of the embedding ends no turn, and stands in no text",
        "set pad_token_id in config.json to another token: rlvr needs none, and masks by length",
        padding_id=padding,
        end_of_turn=list(end),
        texts=[text[:100] for text in inside[:3]],
    )


def _stepped(patient: Patient, **settings: Any) -> tuple[Trainer, TokenBatch, Tensor]:
    """A trainer, the batch of its step, and its logprobs after the step."""
    with patient.unchanged():
        trainer = patient.trainer(epochs=1, **settings)
        judged = patient.judged(trainer)
        trainer.update(judged, 0)
        return trainer, judged, logprobs(patient.trainer(layout="rows"), patient.batch)


def update_follows_reward(patient: Patient) -> Check:
    """After an update on one rewarded completion in each group, it is likelier beside the others."""
    if getattr(patient.config.algorithm, "reward_coef", 1) == 0:
        return skip("algorithm.reward_coef=0: it learns from its teacher alone")
    batch, before = patient.batch, patient.scored
    trainer, judged, after = _stepped(patient)
    for rate in RATES:
        if difference(batch, before, after)[0] <= patient.tolerance:
            trainer, judged, after = _stepped(patient, learning_rate=rate)
    moved, rewarded = (after - before) * batch.loss_mask, batch.rewards > 0
    advantages = judged.advantages if judged.advantages is not None else torch.zeros_like(moved)
    # losses weight completions in other ways (by length): the step follows their sum
    gain = float((moved * advantages * trainer.objective.loss_weights(judged)).sum())
    change = moved.sum(1) / batch.loss_mask.sum(1)
    up, down = float(change[rewarded].mean()), float(change[~rewarded].mean())
    inverted = not float(advantages[rewarded].sum()) > float(advantages[~rewarded].sum())
    return verdict(
        inverted or not (up > down or gain > 0),
        "rewarded completions have the lower advantages"
        if inverted
        else f"one update moved the logprob of a rewarded token by {up:+.2g}, of another by {down:+.2g}",
        f"one update moved the logprob of a rewarded token by {up:+.2g}, of another by {down:+.2g}",
        "the gradient points the wrong way: see gradient_is_slope and weights_learn, and the learning rate",
        rewarded=up,
        others=down,
        gain=gain,
    )


CHECKS = (
    weights_finite,
    passes_repeat,
    trainer_is_model,
    is_causal,
    cache_is_exact,
    engine_is_trainer,
    engine_is_trainer_cooler,
    packed_alone,
    three_turns,
    weights_learn,
    end_token_learns,
    gradient_is_slope,
    update_follows_reward,
)
