"""Runs the checks of `rlvr doctor` in order."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rlvr.checks import (
    corpus,
    data,
    files,
    margins,
    numbers,
    probed,
    rewards,
    steps,
    template,
    tokens,
    tools,
    training,
    weights,
)
from rlvr.checks.patient import Patient, skip
from rlvr.config import Config
from rlvr.errors import ConfigError
from rlvr.models.settings import PretrainedModel
from rlvr.places import ENDPOINT
from rlvr.records.checks import Check
from rlvr.run.errors import in_the_users_words
from rlvr.run.opened import opened
from rlvr.run.policies import set_threads
from rlvr.run.ranks import quiet
from rlvr.run.sources import weights_of
from rlvr.tasks.base import Functions

CHECKS: tuple[Callable[[Patient], Check], ...] = (
    weights.weights_loaded,
    *files.CHECKS,
    template.prompt_renders,
    *tokens.CHECKS,
    *template.CHECKS,
    template.ids_are_kept,
    tokens.prompt_ends_whole,
    *data.CHECKS,
    *corpus.CHECKS,
    data.answers_fit,
    *tools.CHECKS,
    rewards.prompts_fit,
    *rewards.CHECKS,
    *probed.CHECKS,
    *margins.CHECKS,
    *numbers.CHECKS[:1],
    *weights.CHECKS,
    *tokens.STOPS,
    *numbers.CHECKS[1:],
    *steps.CHECKS,
    *training.CHECKS,
)

NO_TEMPLATE = "the tokenizer has no chat template: messages are joined line by line"

OnProgress = Callable[[int, int], None]


def trained_from(model: str, config: Config) -> Config:
    """The settings of a run that starts from `model`. ConfigError for an endpoint, UserError if it is not there."""
    if model.startswith(ENDPOINT):
        raise ConfigError(f"{model} is an endpoint, whose weights are not here: name a folder or a Hub id.")
    chosen = config.model.pretrained or PretrainedModel(name_or_path=model, dtype="float32")
    chosen = chosen.model_copy(update={"name_or_path": weights_of(model)})
    return quiet(config.model_copy(update={"model": chosen}))


def examine(
    config: Config, functions: Functions | None = None, on_progress: OnProgress = lambda i, n: None
) -> list[Check]:
    """Every check in order. UserError if the model or the data cannot be loaded."""
    with made_patient(config, functions) as patient:
        return list(examined(patient, on_progress))


@contextmanager
def made_patient(config: Config, functions: Functions | None = None) -> Iterator[Patient]:
    config.engine.check(None)
    # a reward that remembers is found out by the order of its calls, which several processes would share by chance
    alone = config.model_copy(update={"reward": config.reward.model_copy(update={"num_workers": 1})})
    with opened(alone, functions) as run:
        policy = run.load_model()
        set_threads(config, policy)
        patient = Patient(replace(run, config=config), policy)
        yield patient
        for one in {id(p): p for p in (patient, patient.as_run)}.values():
            if "engine" in vars(one):
                one.engine.close()


def examined(patient: Patient, on_progress: OnProgress = lambda i, n: None) -> Iterator[Check]:
    """The checks; one that raises has failed. The same error again is said once; so is what follows
    where no prompt fits, for then no example is left."""
    known: dict[str, str] = {}
    of_template = () if patient.policy.tokenizer.chat_template else template.CHECKS
    for number, check in enumerate(CHECKS):
        on_progress(number, len(CHECKS))
        begin, name = time.perf_counter(), check.__name__
        try:
            with in_the_users_words():
                result = skip(NO_TEMPLATE) if check in of_template else check(patient)
        except Exception as error:  # what users bring may fail anywhere
            line = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
            no_prompt = rewards.prompts_fit.__name__
            if line in known or no_prompt in known.values():
                result = skip(f"as {known.get(line, no_prompt)}, it cannot be checked")
            else:
                known[line] = name
                result = Check(
                    status="fail", says=line, remedy="correct what the error names; the checks above may say more"
                )
        yield replace(result, name=name, seconds=round(time.perf_counter() - begin, 3))
    on_progress(len(CHECKS), len(CHECKS))
