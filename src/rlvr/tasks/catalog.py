"""From the settings of a task, its reward and its prompt to the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlvr.config import schema
from rlvr.rewards.factory import make_verifier
from rlvr.rewards.judging import FinqaJudge, FinqaProgramJudge, NumericJudge
from rlvr.rewards.reasoning_gym import ReasoningGymPart
from rlvr.seeding import derive_seed
from rlvr.tasks.base import Task
from rlvr.tasks.columns import load_hub, load_jsonl
from rlvr.tasks.dataset import Data, DatasetTask
from rlvr.tasks.finqa import load_finqa
from rlvr.tasks.generator import Functions, load_generator
from rlvr.tasks.gsm8k import load_gsm8k
from rlvr.tasks.judges import Judge, PartJudge, make_judge
from rlvr.tasks.mix import MixTask
from rlvr.tasks.multihop_task import make_multihop, prompt_fields
from rlvr.tasks.prompting import Prompter, resolve_markers
from rlvr.tasks.reasoning_gym import load_reasoning_gym
from rlvr.tasks.rpn import RpnTask
from rlvr.tasks.two_hop import TwoHopTask
from rlvr.tasks.verifiers import VerifiersTask

if TYPE_CHECKING:
    from rlvr.rewards.pool import VerifierPool

OpenPool = Callable[[schema.PartsReward], "VerifierPool"]

LOADERS = {
    schema.Gsm8kTask: load_gsm8k,
    schema.FinqaTask: load_finqa,
    schema.JsonlTask: load_jsonl,
    schema.HubTask: load_hub,
    schema.ReasoningGymTask: load_reasoning_gym,
}


def make_task(
    bundle: schema.Config | schema.TaskBundle,
    *,
    name: str,
    seed: int,
    markers: schema.Markers,
    family: str | None,
    open_pool: OpenPool,
    functions: Functions | None = None,
) -> Task:
    """The task, its data loaded.

    Args:
        bundle: has the settings `task`, `reward` and `prompt`.
        name: what its metrics are called.
        seed: the run's.
        markers: all sets of markers; the prompt chooses one.
        family: `model_type` of the model, for `prompt.markers=auto`.
        open_pool: gives the processes for verifiers that can hang.
        functions: import path -> function, for functions that no import could find.

    Raises:
        ConfigError: settings, prompt, markers or data do not fit together, or there is no such data.
        UserError: the data cannot be had, or is damaged.
    """
    settings = bundle.task
    if isinstance(settings, schema.MixTask):
        made = {
            key: make_task(
                part,
                name=key,
                seed=derive_seed(seed, "mix", key),
                markers=markers,
                family=family,
                open_pool=open_pool,
                functions=functions,
            )
            for key, part in settings.parts.items()
        }
        return MixTask(name=name, parts={key: (made[key], p.weight) for key, p in settings.parts.items()}, seed=seed)
    if isinstance(settings, schema.RpnTask):
        assert isinstance(bundle.reward, schema.RpnReward)
        return RpnTask(settings, seed, bundle.reward, name=name)
    if isinstance(settings, schema.VerifiersTask):
        return VerifiersTask(settings, seed, name=name)
    assert isinstance(bundle.reward, schema.PartsReward)
    prompter = Prompter(bundle.prompt, resolve_markers(bundle.prompt, markers, family), prompt_fields(settings))
    if isinstance(settings, schema.TwoHopTask):
        verifier = make_verifier(bundle.reward, prompter.answer_format, open_pool(bundle.reward), functions)
        return TwoHopTask(settings, seed, prompter, verifier, name=name)
    if isinstance(settings, schema.MultiHopTask):
        pool = open_pool(bundle.reward)
        return make_multihop(settings, bundle.reward, prompter, pool, name=name, seed=seed, functions=functions)
    data = _load(settings, seed, functions)
    pool = open_pool(bundle.reward)
    return DatasetTask(
        name=name,
        data=data,
        prompter=prompter,
        verifier=make_verifier(bundle.reward, prompter.answer_format, pool, functions),
        judge=_judge(settings, prompter, pool),
        seed=seed,
        few_shot=bundle.prompt.few_shot,
        max_prompt_tokens=settings.max_prompt_tokens,
    )


def _load(settings: Any, seed: int, functions: Functions | None) -> Data:
    if isinstance(settings, schema.GeneratorTask):
        return load_generator(settings, seed, functions)
    return LOADERS[type(settings)](settings, seed)


def _judge(settings: schema.SingleTask, prompter: Prompter, pool: VerifierPool) -> Judge:
    form = prompter.answer_format
    if isinstance(settings, schema.Gsm8kTask):
        return NumericJudge(format=form)
    if isinstance(settings, schema.FinqaTask):
        return FinqaProgramJudge(format=form) if settings.answer == "program" else FinqaJudge(format=form)
    if isinstance(settings, schema.ReasoningGymTask):
        return PartJudge(format=form, part=ReasoningGymPart(pool=pool, format=form))
    assert isinstance(settings, schema.JsonlTask | schema.HubTask | schema.GeneratorTask)
    return make_judge(settings.metric, form, pool)
