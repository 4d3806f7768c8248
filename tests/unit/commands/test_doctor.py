"""Every check of `rlvr doctor` fails on a fault; `benchmarks/faults/doctor.py` plants them on more architectures."""

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.checks import numbers, template, training
from rlvr.checks.patient import Patient
from rlvr.commands.doctor import body
from rlvr.core.engine import LocalEngine
from rlvr.models.policy import HubPolicy
from rlvr.records.checks import Check
from rlvr.tasks.dataset import DatasetTask
from rlvr.training import state
from rlvr.training.state import CheckpointSchedule
from rlvr.types import GradedAnswer, Group, TokenBatch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
NAMES = [check.__name__ for check in body.CHECKS]
SAYS = Path(__file__).with_name("doctor_says.tsv")
"""What each check says of a case; numbers that depend on rounding, chance or the clock, and places of code, are #."""
ROUNDED = re.compile(
    r"\d+(?= of 8 that were scored four times)|"  # a reward by chance may be the same four times
    r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?(?= s\b|%)|[-+]?\d+(\.\d+(e[-+]?\d+)?|e[-+]?\d+)|\b0\b|(?<=\()\S*/[^)]*(?=\))"
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The machinery of the benchmark: model folders with faults in them."""
    for folder in ("benchmarks/faults", "examples/own"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("patients")


def planted(name: str, case: Any) -> Any:
    """A fault of the benchmark's table in the case."""
    (fault,) = (fault for fault in importlib.import_module("doctor").TABLE if fault.name == name)
    return fault.made(case)


def only(bench: Any, monkeypatch: pytest.MonkeyPatch, case: Any, *names: str) -> dict[str, Check]:
    """These checks of a case."""
    monkeypatch.setattr(body, "CHECKS", tuple(check for check in body.CHECKS if check.__name__ in names))
    return {check.name: check for check in bench.examine(case)}


def says(case: str, found: Iterable[Check]) -> None:
    """Each says of the case what is written down: its counts and its reason."""
    lines = [f"{case}\t{check.name}\t{check.status}\t{ROUNDED.sub('#', check.says)}" for check in found]
    assert [line for line in lines if line not in SAYS.read_text().splitlines()] == []


PLANTED = {  # a check, and the fault of the benchmarks that it finds
    "weights_loaded": "has no head in its file, and does not tie it",
    "weights_alive": "has a head of zeros",
    "weights_alive, some tokens": "has a head of zeros for half of its vocabulary",
    "prompt_renders": "wants a system message",
    "vocabulary_fits, ends": "ends with a token beyond its vocabulary",
    "reward_survives, patterns": "takes forever on long numbers",
    "reward_is_timeless": "doubles in every other second",
    "completions_vary": "gives one token all of the probability",
    "reads_prompt": "has a head of zeros",
    "ends_are_special": "ends completions with a line break",
    "rows_are_used": "asks the same with different answers",
    "task_informs": "tells the answer in the question",
    "answers_fit": "has answers longer than a completion",
    "reward_is_fast": "takes half a second",
    "reward_forgets": "compares with the answer of the call before",
    "reward_is_scaled": "gives 1e30 for what is right",
    "wrong_earns_nothing, long": "pays who does not end",
    "thoughts_are_passed_over": "opens reasoning, and the reward reads the whole completion",
    "roles_kept": "writes a user's later words as the assistant's",
    "vocabulary_fits": "has tokens that the model lacks",
    "text_survives": "lowers the case",
    "one_bos": "writes BOS twice",
    "same_every_day": "writes the date",
    "opens_completion": "ignores add_generation_prompt",
    "whole_messages": "truncates long messages",
    "ends_turns": "ends turns with a word that is no token",
    "whole_calls": "truncates arguments of calls",
    "tool_results": "renders tool results as the assistant's words",
    "appends_after_user": "adds a system prompt to the first question only",
    "appends_after_tools": "numbers the turns from the end",
    "keeps_reasoning": "drops the reasoning of earlier turns",
    "keeps_spaces": "strips the spaces of earlier turns",
    "prompts_fit": "has too little context",
    "gold_scores_full": "never pays the gold answer",
    "wrong_earns_nothing, empty": "pays the empty answer",
    "wrong_earns_nothing, any number": "pays any number",
    "wrong_earns_nothing, echo": "pays for repeating the question",
    "reward_repeats": "draws random numbers",
    "reward_survives": "raises on what is no number",
    "weights_finite": "has NaN in one row",
    "stop_is_possible": "never samples a stop token",
    "passes_repeat": "drops out in eval mode",
    "trainer_is_model": "divides its logits in forward only",
    "is_causal": "sees the next token",
    "cache_is_exact": "forgets what is eight tokens back behind a cache",
    "engine_is_trainer": "sees the next token",
    "three_turns": "sees the next token",
    "packed_alone": "sees neighbors in long lines",
    "weights_learn": "freezes a layer",
    "end_token_learns": "pads with the end of turns: its embedding is masked",
    "gradient_is_slope": "has a layer with a wrong backward",
    "saves_and_loads": "computes with a buffer that is not saved",
    "messages_are_plain": "are rendered already",
    "golds_are_plain": "have golds such as 5.0, compared as characters",
    "ends_are_special, thoughts": "ends completions with </think>",
    "completions_vary, sampling": "sample the likeliest token",
    "wrong_earns_nothing, beginning": "pays what begins like the answer",
    "silence_scores_less": "pays what it cannot read",
    "working_is_worth_it": "takes more for length than it pays",
    "step_is_sized, large": "have a learning rate of 0.3",
    "step_is_sized, small": "have a learning rate of 1e-13",
    "settings_are_usual, KL": "weigh the KL with 50",
    "turns_suffice": "has no turn behind it",
    "tools_answer, errors": "fails at each call",
    "tools_answer, room": "replies with more than the context",
    "tools_answer, state": "remembers other episodes",
    "mismatch, float16": "is sampled in float16 beyond 65,504",
    "weights_are_one_set": "has two sets of weights",
    "weights_are_one_set, shards": "has other weights in shards",
    "template_is_one": "is there twice",
    "template_is_there": "is missing",
    "config_is_possible, cap": "caps its logits at a half",
    "config_is_possible, epsilon": "has 1.0 as the epsilon of its norms",
    "rows_are_sized": "has rows of new tokens that are far larger",
    "specials_are_whole": "splits special tokens",
    "prompt_ends_whole": "follows a prompt that ends with a space",
    "texts_are_whole, encoding": "are in a broken encoding",
    "texts_are_whole, cut": "are cut off at 100 letters",
    "texts_are_whole, images": "ask about images",
    "golds_are_answers, missing": "have `nan` as a gold in a fifth of the rows",
    "golds_are_answers, options": "count options from 0 that are listed from 1",
    "golds_are_answers, words": "have golds in a sentence",
    "held_out_informs, labels": "have hidden labels in the held-out file",
    "held_out_informs, few": "hold out three rows",
    "held_out_informs, known": "hold out questions without their marks",
    "wrong_earns_nothing, near": "pays a tenth off",
    "wrong_earns_nothing, fraction": "rounds",
    "wrong_earns_nothing, list": "pays any number of a list",
    "right_is_paid, spaces": "compares every space",
    "asked_form_is_paid": "ask for steps and read all of the text",
    "penalties_bite": "punish length that cannot be reached",
    "reward_survives, digits": "raises for a superscript digit",
    "tools_inform, leaks": "tells the gold where it finds nothing",
    "tools_inform, errors": "replies with one error as a text",
    "rows_suffice": "train on 8 rows for 500 steps",
    "settings_are_usual, temperature": "sample at a temperature of 10",
    "settings_are_usual, entropy": "weigh the entropy with 1",
    "settings_are_usual, discount": "discount by a half at each token",
    "settings_are_usual, critic": "do not train the critic that they ask",
    "settings_are_usual, epochs": "pass 50 times over each batch",
    "settings_are_usual, betas": "have exchanged the betas of Adam",
    "settings_are_usual, adapters": "scale adapters by 1/256",
    "sampler_sees_right": "leave out prompts solved at 0.9, where a right answer earns 0.5",
    "sampler_sees_right, part": "leave out prompts whose form is right",
    "teacher_differs": "distill from the model itself",
    "each_gold_counts": "pays all where the gold cannot be read",
    "answer_outweighs_form": "pays twenty times more for the form",
    "asked_form_is_paid, lines": "reads one line",
    "asked_form_is_paid, two forms": "ask for another form than the prompt",
    "gold_scores_full, thoughts": "wants the <think> that the template opens",
    "golds_are_answers, letters": "have their options in another column",
    "golds_are_answers, places": "have the place of the option as gold",
    "template_is_trained": "has rows of the mean for the template's tokens",
    "task_is_shown": "drops the system message beside tools",
    "named_tools_are_there": "name a tool that is not there",
    "ends_are_special, none": "has no end token",
}


@pytest.mark.filterwarnings("ignore:LlamaForCausalLM has logprobs that differ")  # the check itself has to find it
@pytest.mark.filterwarnings("ignore:model.attn_implementation=sdpa")  # of Gemma 2, which caps its logits
@pytest.mark.parametrize(("check", "fault"), PLANTED.items())
def test_a_check_finds_its_fault(check: str, fault: str, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = check.partition(",")[0]
    found = only(bench, monkeypatch, planted(fault, bench.Case(architecture="llama")), name)[name]
    assert found.status == "fail", found
    assert found.remedy
    says(fault, [found])


# ------------------------------------------------------------------------------------- faults of the product itself


def wrong_mask(groups: Any) -> TokenBatch:
    batch = template_to_batch(groups)
    return replace(batch, loss_mask=batch.loss_mask.roll(1, 1))


template_to_batch = template.to_batch
sampled, trainer_of = Patient.sample, Patient.trainer


def noisy(patient: Patient, temperature: float = 1.0) -> tuple[Group, ...]:
    """The sampler's logprobs are off by one nat."""

    def shifted(episode: Any) -> Any:
        (turn,) = episode.turns
        behind = tuple(logprob + 1 for logprob in turn.completion.behavior_logprobs)
        return replace(episode, turns=(replace(turn, completion=replace(turn.completion, behavior_logprobs=behind)),))

    return tuple(replace(g, episodes=tuple(map(shifted, g.episodes))) for g in sampled(patient, temperature))


async def all_wrong(task: DatasetTask, attempt: Any) -> GradedAnswer:
    return GradedAnswer(answer="?", correct=False)


def unstoppable(patient: Patient, index: int, temperature: float, max_tokens: int) -> Any:
    return replace(params(patient, index, temperature, max_tokens), stop_ids=frozenset())


params = Patient.params

OURS: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "ids_are_kept": (template, "to_batch", wrong_mask, {}),
    "metric_agrees": (DatasetTask, "grade_attempt", all_wrong, {}),
    "stop_tokens_stop": (Patient, "params", unstoppable, {}),
    "engine_is_trainer_cooler": (
        Patient,
        "trainer",
        lambda patient, temperature=None, *rest, **more: trainer_of(patient, 1.0, *rest, **more),
        {},
    ),
    "mismatch": (Patient, "sample", noisy, {}),
    "weights_reach_engine": (
        HubPolicy,
        "trained_weights",
        lambda policy: iter(()),
        {"rollout.max_staleness": 1, "algorithm.mismatch_correction": "truncate"},
    ),
    "resume_is_equal": (CheckpointSchedule, "_load_optimizer", lambda *arguments: None, {}),
    "resume_is_equal, weights": (state, "load_weights", lambda *arguments: None, {}),
}


@pytest.mark.parametrize("fault_of", OURS)
def test_a_check_finds_a_fault_of_ours(fault_of: str, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, fault, settings = OURS[fault_of]
    name = fault_of.partition(",")[0]
    case = bench.Case(architecture="llama", settings=settings)
    assert only(bench, monkeypatch, case, name)[name].status == "ok"
    monkeypatch.setattr(where, attribute, fault)
    (found,) = bench.examine(case)
    assert found.status == "fail"
    says("ours", [found])


def test_a_step_that_moves_nothing_shows_no_resume(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"trainer.learning_rate": 1e-30}
    found = only(bench, monkeypatch, bench.Case(architecture="llama", settings=settings), "resume_is_equal")
    assert found["resume_is_equal"].status == "fail"


def counts_its_passes(policy: HubPolicy) -> None:
    """A state of the model's code, which no checkpoint holds."""
    passes = []

    def hook(module: Any, given: Any, logits: torch.Tensor) -> torch.Tensor:
        passes.append(0.01 * torch.is_grad_enabled())
        return logits * (1 + sum(passes))

    policy.model.get_output_embeddings().register_forward_hook(hook)


def test_a_resume_without_the_models_own_state_is_found(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = bench.Case(architecture="llama", loaded=counts_its_passes)
    assert only(bench, monkeypatch, case, "resume_is_equal")["resume_is_equal"].status == "fail"


@pytest.mark.filterwarnings("ignore:Qwen3NextForCausalLM has layers of kind")
def test_a_mixture_of_experts_jumps_where_tokens_change_theirs(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At this seed a loss jumps within each step of 3e-5 of the weights' norm and more."""
    case = bench.Case(architecture="qwen3_next")
    examine = partial(bench.examine, seed=1)
    monkeypatch.setattr(body, "CHECKS", (numbers.gradient_is_slope,))
    (found,) = examine(case)
    assert found.status == "ok", found
    assert examine(planted(PLANTED["gradient_is_slope"], case))[0].status == "fail"


@pytest.mark.parametrize("factor", [0.9, 0.97, 1.03, 1.1])
def test_a_gradient_that_is_a_little_wrong_is_found(bench: Any, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    def scale(policy: HubPolicy) -> None:
        for parameter in policy.model.parameters():
            parameter.register_hook(lambda gradient: factor * gradient)

    found = only(bench, monkeypatch, bench.Case(architecture="llama", loaded=scale), "gradient_is_slope")
    assert found["gradient_is_slope"].status == "fail"


def test_an_update_that_moves_nothing_shows_nothing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same logprobs before and after it, and in the engine: whether weights reach it was not seen."""
    monkeypatch.setattr(training, "difference", lambda batch, first, second: (0.0, {}))
    found = only(bench, monkeypatch, bench.Case(architecture="llama"), "weights_reach_engine")
    assert found["weights_reach_engine"].status == "fail"


OF_MODELS: dict[str, Callable[[Any], None]] = {
    "dtypes": lambda policy: policy.model.to(torch.bfloat16),
    "update_follows_reward": lambda policy: (
        [parameter.register_hook(torch.neg) for parameter in policy.model.parameters()] and None
    ),
}


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_check_finds_a_fault_of_the_loaded_model(name: str, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = bench.Case(architecture="llama")
    assert only(bench, monkeypatch, case, name)[name].status == "ok"
    assert bench.examine(replace(case, loaded=OF_MODELS[name]))[0].status == "fail"


def test_where_right_answers_earn_nothing_no_others_are_compared(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = planted(PLANTED["gold_scores_full"], bench.Case(architecture="llama"))
    names = ("gold_scores_full", "wrong_earns_nothing", "right_is_paid", "reward_survives")
    found = only(bench, monkeypatch, case, *names)
    assert [found[name].status for name in names] == ["fail", "skipped", "skipped", "skipped"]


def test_every_check_has_a_fault() -> None:
    assert sorted({name.partition(",")[0] for name in (*PLANTED, *OURS, *OF_MODELS)}) == sorted(NAMES)


# ------------------------------------------------------------------------------------------------------ all of them


SOUND = {  # what looks like a fault, and the check that must stay silent
    "letters of options": "golds_are_answers",
    "texts of options": "golds_are_answers",
    "counts of a list": "golds_are_answers",
    "a unit that is asked for": "golds_are_answers",
    "SQL": "golds_are_answers",
    "lists that are asked for": "golds_are_answers",
    "German": "texts_are_whole",
    "LaTeX": "texts_are_whole",
    "code": "texts_are_whole",
    "the same weights twice": "weights_are_one_set",
    "the same template twice": "template_is_one",
    "unsolved": "sampler_sees_right",
    "ppo": "settings_are_usual",
    "gspo": "settings_are_usual",
    "a discount of 0.999": "settings_are_usual",
    "adapters": "settings_are_usual",
    "a little entropy": "settings_are_usual",
    "min_p": "settings_are_usual",
    "boxed": "asked_form_is_paid",
    "a penalty of length": "penalties_bite",
    "tags over several lines": "asked_form_is_paid",
    "options below the question": "golds_are_answers",
    "a tool by its name": "named_tools_are_there",
}


@pytest.mark.parametrize(("name", "check"), SOUND.items())
def test_what_looks_like_a_fault_is_none(name: str, check: str, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = planted(name, bench.Case(architecture="llama"))
    found = only(bench, monkeypatch, case, check)[check]
    assert found.status == "ok", found.says


@pytest.mark.parametrize(
    ("architecture", "more"), [("llama", {}), ("qwen3", {"with_tools": True}), ("gpt_neox", {"template": None})]
)
def test_a_healthy_model_passes(architecture: str, more: dict[str, Any], bench: Any) -> None:
    checks = bench.examine(bench.Case(architecture=architecture, **more))
    assert [check.name for check in checks] == NAMES
    assert [check for check in checks if check.status == "fail"] == []
    assert sum(check.status == "ok" for check in checks) >= (25 if more.get("template", "") is None else 37)
    says(f"healthy {architecture}", checks)


def outliers(model: Any, folder: Path) -> None:
    """A few columns are 50 times as large, as in pretrained models: of a feed-forward matrix and of the embeddings."""
    inner = [weight for name, weight in model.named_parameters() if "mlp" in name and weight.dim() == 2]
    with torch.no_grad():
        for weight in (inner[0], model.get_input_embeddings().weight):
            weight[:, [3, 11]] *= 50


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3", "phi3", "olmo2"])
def test_outlier_weights_raise_no_alarm(architecture: str, bench: Any) -> None:
    """Numbers are compared in the model's own rounding noise, which they raise."""
    checks = bench.examine(bench.Case(architecture=architecture, saved=outliers))
    assert [f"{check.name}: {check.says}" for check in checks if check.status == "fail"] == []


def test_no_weight_is_changed(bench: Any) -> None:
    policies = []
    bench.examine(bench.Case(architecture="llama", loaded=lambda p: policies.append((p, checksum(p)))))
    ((policy, before),) = policies
    assert checksum(policy) == before
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def checksum(policy: HubPolicy) -> list[float]:
    return [float(parameter.detach().double().sum()) for parameter in policy.model.parameters()]


def test_adapters_alone_get_gradients(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = bench.Case(architecture="llama", settings=bench.LORA)
    found = only(bench, monkeypatch, case, "weights_learn")["weights_learn"]
    assert found.status == "ok"
    assert "adapter matrices" in found.says


def test_an_error_is_a_failed_check_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(patient: Patient) -> Check:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(body, "CHECKS", (broken, broken, numbers.weights_finite))
    first, second, third = bench.examine(bench.Case(architecture="llama"))
    assert (first.status, first.says) == ("fail", "RuntimeError: two lines")
    assert (second.status, second.says) == ("skipped", "as broken, it cannot be checked")
    assert third.status == "ok"


def test_where_no_prompt_fits_what_follows_from_it_is_skipped(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = bench.Case(architecture="llama", config={"max_position_embeddings": 30})
    found = only(bench, monkeypatch, case, "prompts_fit", "reward_is_fast", "weights_finite", "three_turns")
    assert {name: check.status for name, check in found.items()} == {
        "prompts_fit": "fail",
        "reward_is_fast": "skipped",
        "weights_finite": "ok",
        "three_turns": "skipped",
    }
    assert "the prompts of all" in found["prompts_fit"].says
    assert found["reward_is_fast"].says == "as prompts_fit, it cannot be checked"


def test_a_changed_history_does_not_matter_for_one_turn(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(planted(PLANTED["keeps_reasoning"], bench.Case(architecture="llama")), with_tools=False)
    assert only(bench, monkeypatch, case, "keeps_reasoning")["keeps_reasoning"].status == "skipped"


def test_the_engine_is_the_runs_own(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact checks use the policy's own weights, those of the run what its settings say."""
    made: list[LocalEngine] = []
    monkeypatch.setattr(body, "CHECKS", (lambda p: made.extend([p.engine, p.as_run.engine]) or numbers.skip(""),))
    body.CHECKS[0].__name__ = "engines"
    bench.examine(bench.Case(architecture="llama", settings=OURS["weights_reach_engine"][3]))
    exact, own = made
    assert exact._weights is None
    assert own._weights is not None
