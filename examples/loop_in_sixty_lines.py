"""Your own training loop with `rlvr.core` alone: a model with random weights learns sums modulo 5 in seconds.

python examples/loop_in_sixty_lines.py
"""

import asyncio

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlvr.algorithms.grpo import Grpo
from rlvr.algorithms.objective import Objective
from rlvr.core.batch import to_batch
from rlvr.core.engine.engine import LocalEngine
from rlvr.core.policy import Policy
from rlvr.core.settings import TrainerSettings
from rlvr.core.trainer import Trainer
from rlvr.types import Episode, Example, Group, SamplingParams, Score, Turn

STOP, PLUS, EQUALS = 5, 6, 7  # digits are tokens 0..4; the answer to `3 4 + =` is `2 STOP`


async def attempt(engine: LocalEngine, prompt: tuple[int, ...], number: int, seed: int) -> Episode:
    """Sample one completion and score it: 1 for the right digit and then STOP, else 0."""
    sampling = SamplingParams(max_tokens=2, stop_ids=frozenset({STOP}), seed=seed)
    completion = await engine.generate(prompt, sampling)
    right = completion.token_ids == ((prompt[0] + prompt[1]) % 5, STOP)
    episode = {"example_id": str(prompt), "sample_index": number, "seed": seed, "stop_reason": completion.stop_reason}
    turn = Turn(prompt_ids=prompt, completion=completion)
    return Episode(turns=(turn,), score=Score(value=float(right)), **episode)


async def attempts(engine: LocalEngine, prompt: tuple[int, ...], seed: int, group_size: int = 16) -> Group:
    """The group of episodes for one sum."""
    episodes = await asyncio.gather(*(attempt(engine, prompt, i, seed + i) for i in range(group_size)))
    return Group(example=Example(id=str(prompt), messages=(), answer=""), episodes=tuple(episodes))


async def sample(engine: LocalEngine, step: int) -> list[Group]:
    """All 25 sums; concurrent requests form one batch of the engine."""
    pairs = [(a, b) for a in range(5) for b in range(5)]
    first = 1000 * step  # first seed of the step
    return await asyncio.gather(*(attempts(engine, (a, b, PLUS, EQUALS), first + 100 * a + 20 * b) for a, b in pairs))


torch.manual_seed(0)
torch.set_num_threads(1)  # enough for a model this small
shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=8, initializer_range=0.1, **shape))  # pyright: ignore[reportArgumentType]
objective = Objective(algorithm=Grpo(), max_completion_tokens=2, temperature=1.0)
settings = TrainerSettings(learning_rate=2e-3, warmup_steps=0)
trainer = Trainer(policy=Policy(model=model), objective=objective, settings=settings, seed=0)
engine = LocalEngine(model, max_batch_size=400, max_context_tokens=6)
for step in range(60):
    batch = to_batch(asyncio.run(sample(engine, step)))  # tokens, mask, rewards
    batch = objective.advantages(trainer.score(batch))  # rewards -> an advantage per token
    metrics, batch = trainer.update(batch, step)  # one optimizer step
    engine.load_weights(step + 1)  # drop keys and values of the old weights
    if step % 10 == 9:
        print(f"step {step + 1}: reward {batch.rewards.mean():.2f}, loss {metrics['loss/total']:+.3f}")
