"""Composition, the round trip through config.yaml, the user's own folder, and errors of settings."""

import re
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.config.compose import load_config, to_run_yaml, to_yaml
from rlvr.config.config import CHOICES
from rlvr.errors import ConfigError
from rlvr.registry import ours

CONF = Path(rlvr.__file__).parent / "conf"
CONFIGS = tuple(sorted(file.stem for file in CONF.glob("*.yaml")))


def message(*overrides: str, **options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides, **options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


HF = ("model=hf", "model.name_or_path=somewhere")
DATA = {task: (f"task={task}", *HF) for task in ("gsm8k", "finqa", "reasoning_gym")}
QA = ("task=musique", *HF)
OF_GSM8K = "financial_reasoning financial_program math_reasoning gsm8k finqa hub jsonl reasoning_gym"
NEEDS = {  # other settings that a choice needs
    "model=hf": HF[1:],
    "model=scratch_bpe": DATA["gsm8k"][:1],
    "task=gsm8k": HF,
    "task=finqa": HF,
    "task=hub": (*HF, "task.path=owner/name"),
    "task=jsonl": (*HF, "task.path=rows.jsonl"),
    "task=dates": HF,
    "task=generator": (*HF, "task.source=module:function"),
    "task=reasoning_gym": (*HF, "task.dataset=chain_sum"),
    "task=mix": (*HF, "task.parts={gsm8k: 2, finqa: 1}"),
    "task=code": (*HF, "task.path=rows.jsonl"),
    "reward=code": (*HF, "task=code", "task.path=rows.jsonl"),
    "reward=reasoning_gym": (*DATA["reasoning_gym"], "task.dataset=chain_sum"),
    "reward=finqa": DATA["finqa"],
    "reward=finqa_program": (*DATA["finqa"], "task.answer=program", "prompt=financial_program"),
    "reward=mix": (*HF, "task=mix", "task.parts={gsm8k: 1}"),
    "prompt=given": (*HF, "task=jsonl", "task.path=rows.jsonl"),
    "reward=custom": (*DATA["gsm8k"], "reward.parts.custom.function=module:function"),
    **{f"reward={name}": DATA["gsm8k"] for name in ("gsm8k", "generator", "hub", "jsonl", "math", "numeric", "text")},
    **{f"prompt={name}": DATA["gsm8k"] for name in OF_GSM8K.split()},
    **{f"prompt={name}": (*DATA["gsm8k"], "reward=numeric") for name in ("boxed", "short_answer")},
    **{f"{group}={name}": QA for group in ("reward", "prompt") for name in ("musique", "hotpotqa", "wiki2")},
    **{f"reward={name}": QA for name in ("musique_spec", "musique_later")},
    **{f"{group}=two_hop": ("task=two_hop",) for group in ("reward", "prompt")},
    "reward=keep_one": ("task=keep_one",),
    "sampler=by_tag": ("sampler.weights={1_operators: 2}",),
    "algorithm=distill": ("algorithm.teacher=other",),
    "prompt=musique_tags": (*QA, "task.tools=[retrieve_documents,get_document]"),
    **{f"task={name}": HF for name in ("musique", "hotpotqa", "wiki2")},
}


@pytest.mark.slow
@pytest.mark.parametrize("section", CHOICES)
def test_every_choice_of_every_group_composes(section: str) -> None:
    rewards = [file.stem for file in sorted((CONF / "reward").glob("*.yaml"))]
    for choice in rewards if section == "reward" else ours(section):
        overrides = [f"{section}={choice}", *NEEDS.get(f"{section}={choice}", ())]
        chosen = getattr(load_config(overrides), section)
        assert getattr(chosen, "name", choice) == choice


def test_values_are_overridden_and_types_come_from_the_schema() -> None:
    config = load_config(["trainer.learning_rate=1", "seed=7", "task.operators=[+]", "trainer.checkpoint_every=null"])
    assert config.trainer.learning_rate == 1.0
    assert isinstance(config.trainer.learning_rate, float)
    assert (config.seed, config.task.operators, config.trainer.checkpoint_every) == (7, ("+",), None)
    assert load_config([], config_name="rpn_ppo.yaml").algorithm.name == "ppo"


def test_a_group_size_of_the_user_beats_that_of_the_algorithm() -> None:
    distill = ["algorithm=distill", "algorithm.teacher=other"]
    assert load_config(distill).rollout.group_size == 1
    assert load_config([*distill, "rollout.group_size=4"]).rollout.group_size == 4


def test_a_whole_list_of_choices_may_leave_the_sampler_out(tmp_path: Path) -> None:
    choices = {"task": "rpn", "model": "scratch", "algorithm": "grpo", "engine": "local"}
    text = "".join(f"  - {group}: {name}\n" for group, name in choices.items())
    (tmp_path / "mine.yaml").write_text(f"defaults:\n{text}  - _self_\n")
    for words, name in (([], "uniform"), (["sampler=pass_rate", "sampler.floor=0.5"], "pass_rate")):
        assert load_config(words, config_name="mine", config_dir=str(tmp_path)).sampler.name == name


ERRORS = {
    "trainer.learnin_rate=1": ["trainer.learnin_rate=1", "did you mean trainer.learning_rate?"],
    "+trainer.learnin_rate=1": ["trainer.learnin_rate=1", "did you mean trainer.learning_rate?"],
    "task.settings.size=3": ["task=rpn has no such key; task=generator or task=reasoning_gym has"],
    "markers.sets.mine={a: b}": ["5 settings are wrong. markers.sets.mine.reasoning_start: has no default; say"],
    "prompt.user=Hello": ["prompt.user=Hello: must have the right form (user message; holds {question}"],
    "trainer.microbatch_tokens=0": ["=0: must be greater than or equal to 1 or 'auto' (tokens per forward"],
    "max_steps=3": ["max_steps=3", "did you mean trainer.max_steps?"],
    "algoritm=grpo": ["algoritm=grpo", "did you mean algorithm?"],
    "nonsense=3": ["nonsense=3: there is no key nonsense; `rlvr train --help-config` prints all keys."],
    "algorithm=grp": ["algorithm=grp: there is no such algorithm; did you mean grpo? (there are cispo, dapo, dist"],
    "task=arithmetic": ["task=arithmetic", "finqa, generator, gsm8k, hotpotqa, hub, jsonl, k_hop, "],
    "reward.reward_functions[0].params.correct_reward=5.0": ["reward.parts.<name>.weight", "parts.correct.weight=5"],
    "model.lora_config.lora_dropout=0.1": ["model.lora_config.lora_dropout=0.1: is not a setting here; it is 0"],
    "evaluation.also=3": ["evaluation.also=3", "must name tasks"],
    "evaluation.also=[nothing]": ["evaluation.also.nothing: task=nothing", "there is no such task"],
    "evaluation.also={a:{set:3}}": ["evaluation.also.a: may have task and set"],
    "evaluation.also={gsm8k:{set:['seed=3']}}": ["set may change task, reward and prompt, and seed=3"],
    "evaluation.also=[jsonl]": [
        "evaluation.also.jsonl.task.path: has no default; say evaluation.also.jsonl.task.path="
    ],
    "trainer=3": ["trainer=3: must be a section with keys."],
    "algorithm=null": ["algorithm=null", "grpo"],
    "+algorithm.target_kl=1": ["algorithm.target_kl=1: algorithm=grpo has no such key; algorithm=ppo has"],
    "algorithm.name=ppo": ["algorithm.name=ppo", "choose with algorithm=ppo"],
    "trainer.max_steps=-1": ["trainer.max_steps=-1", "greater than or equal to 0"],
    'trainer.max_steps="5"': ['trainer.max_steps="5": must be a whole number'],
    "trainer.learning_rate=1,5e-3": ["make a sweep; add --multirun", "a decimal point, not a comma"],
    f"trainer.max_steps={'1' * 5000}": ["trainer.max_steps=111", "a number has more than 4,300 digits"],
    "=5": ["=5: an override is written key=value"],
    "nothing/such=5": ["nothing/such=5: there is no key nothing/such"],
    "trainer.max_steps=many": ["trainer.max_steps=many", "whole number"],
    "trainer.keep_best=1": ["trainer.keep_best=1", "true or false"],
    "trainer.learning_rate=nan": ["trainer.learning_rate", "finite"],
    "trainer.schedule=constnt": ["trainer.schedule=constnt", "did you mean constant?"],
    "name=123": ["name=123", "quotes"],
    "name=a/b": ["name=a/b", "letters, digits"],
    "seed.x=3": ['seed={"x":3}: must be a whole number (the one seed; every other is deri'],
    "task.operators=[+,/]": ["task.operators[1]=/", "'+', '-' or '*'"],
    "task.operators=+": ["task.operators=+", "must be a list, e.g. [1,3]"],
    "task.complexity_range=[3,1]": ["task.complexity_range=[3,1]", "write [1,3]"],
    "task.complexity_range=[1,2,3]": ["=[1,2,3]: must have at most 2 items (fewest and most operators in an expr"],
    "~rollout": ["--config-name rpn: Could not delete from config. 'rollout' does not exist."],
    "model=hf": ["model.name_or_path", "say model.name_or_path="],
    "name=a,b": ["--multirun", "name=[...]", """'name="a,b"'"""],
    "seed=1..10": ["seed=1..10", "--multirun"],
    "hydra/launcher=joblib": ["hydra/launcher=joblib", "no effect"],
    "seed": ["seed", "key=value", "without spaces"],
    "name=[1,2": ["name=[1,2", "quotes"],
    "seed=${nowhere}": ["seed", "nowhere"],
    "train.learning_rate=1e-5": ["train.learning_rate=1e-05", "trainer.learning_rate"],
    "ppo_epochs=4": ["ppo_epochs=4", "algorithm.num_epochs"],
    "data_component=finqa": ["data_component=finqa", "called task here"],
    "rollout.group_size=1": ["rollout.group_size=1", "algorithm=grpo", "at least 2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("override", ERRORS)
def test_an_error_names_the_key_its_value_and_the_remedy(override: str) -> None:
    text = message(override)
    assert [part for part in ERRORS[override] if part not in text] == []


def test_errors_of_where_the_configuration_comes_from(tmp_path: Path) -> None:
    assert "did you mean rpn_ppo?" in message(config_name="rpn_pp")
    assert "--config-dir /nowhere/at/all" in message(config_dir="/nowhere/at/all")


IN_DEFAULTS = "--config-name mine: {} in a defaults list"
NO_MODEL = ["model: has no default; say model=..."]
BOMB = "\n".join(["a0: &a0 []", *(f"a{n + 1}: &a{n + 1} [{','.join(9 * [f'*a{n}'])}]" for n in range(20))])
TRACKER = ["tracker: wandb in a defaults list", "write tracker: {report_to: [wandb]}"]  # as in rlvr 0.1.0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: [1", ["mine"]),
        (
            "trainer:\n\tmax_steps: 3",
            ["mine.yaml: line 2, column 1: a tab begins it, and YAML is indented with spaces"],
        ),
        ("trainer: {max_steps: " + 5000 * "1" + "}", ["mine.yaml: a number has more than 4,300 digits"]),
        (
            "defaults: [rpn, {override taks: rpn}, _self_]",
            ["mine: override taks in a defaults list: there is no such choice; did you mean task?"],
        ),
        (
            "defaults: [{override task: rpn}, _self_]",
            ["mine: override task in a defaults list: nothing before it chooses one; put a file that does before"],
        ),
        *((text, ["mine.yaml: its aliases (*name) stand for more than"]) for text in (BOMB, "a: &a {b: *a}")),
        (
            "defaults: [rpn, {override algorithm: grp}, _self_]",
            [IN_DEFAULTS.format("algorithm: grp") + ": there is no such algorithm; did you mean grpo?"],
        ),
        ("defaults: [rpm]", [IN_DEFAULTS.format("rpm") + ": there is no such configuration; did you mean rpn?"]),
        ("defaults: [rpn, {tracker: wandb}]", TRACKER),
        ("defaults: [rpn, {override tracker: wandb}]", TRACKER),
        (
            "defaults: [rpn, {override hydra/job_logging: none}]",
            [IN_DEFAULTS.format("hydra/job_logging: none") + ": Hydra's own settings have no effect here."],
        ),
        *(
            (text, ["model: has no default; say model=..."])
            for text in ("prompt: plain", "algorithm: ppo", "task: [1]")
        ),
        *((text, ["model: has no default; say model=..."]) for text in ("evaluation: {also: [gsm8k]}", "")),
    ],
)
def test_errors_of_a_file_of_the_user(text: str, parts: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    said = message(config_name="mine", config_dir=str(tmp_path))
    assert [part for part in parts if part not in said] == []


OWN = """
from pathlib import Path
from typing import Any
from rlvr.tasks.generator import ExamplesTask


class Odd(ExamplesTask):
    folder: Path = Path("data")

    def examples(self):
        yield "1 + 1", 2


class Silent(Odd):
    prompt = None
"""


def test_an_own_task_with_a_default_or_a_prompt_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "odd_tasks.py").write_text(OWN)
    assert "Odd: a default that YAML cannot hold" in message("task=odd_tasks:Odd", config_dir=str(tmp_path))
    assert "Silent.prompt=None: there is no such" in message("task=odd_tasks:Silent", config_dir=str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_resolved_yaml_gives_the_same_configuration(name: str, tmp_path: Path) -> None:
    assert load_config([], config_name=name).name == name
    config = load_config(["seed=5", "name=1e5x"], config_name=name)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load_config([], config_name="config", config_dir=str(tmp_path)) == config


def test_the_yaml_of_a_run_folder_repeats_the_run_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    config = load_config([f"run_dir={tmp_path}", "resume=true", "name='007'", "algorithm=ppo"])
    (tmp_path / "config.yaml").write_text(to_run_yaml(config))
    again = load_config([], config_name="config", config_dir=str(tmp_path))
    assert again == config.model_copy(update={"run_dir": None, "resume": False})
    assert again.name == "007"


def test_a_resolved_configuration_takes_values_but_no_choices(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_run_yaml(load_config([])))
    options = {"config_name": "config", "config_dir": str(tmp_path)}
    assert load_config(["trainer.max_steps=3"], **options).trainer.max_steps == 3
    text = message("algorithm=ppo", **options)
    assert "algorithm=ppo" in text
    assert "resolved" in text


def test_the_users_folder_adds_configurations_and_choices(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults:\n  - rpn\nname: mine\ntrainer:\n  max_steps: 3\n")
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm" / "two_epochs.yaml").write_text("defaults:\n  - grpo\nnum_epochs: 2\n")
    config = load_config(["algorithm=two_epochs"], config_name="mine", config_dir=str(tmp_path))
    assert (config.name, config.trainer.max_steps, config.algorithm.num_epochs) == ("mine", 3, 2)
    assert load_config(["algorithm=two_epochs"], config_dir=str(tmp_path)).name == "rpn"


def test_another_choice_drops_values_of_the_first() -> None:
    config = load_config(
        ["model=scratch_bpe", "rollout.max_completion_tokens=32", "model.num_layers=2"], config_name="gsm8k"
    )
    assert (config.model.name, config.model.num_layers) == ("scratch_bpe", 2)  # type: ignore[union-attr]
    assert "did you mean" in message("model=scratch_bpe", "model.num_layer=2", config_name="gsm8k")
    text = message("model=scratch_bpe", "model.name_or_path=x", config_name="gsm8k")
    assert text == "model.name_or_path=x: model=scratch_bpe has no such key; model=hf or model=smollm2 has."


@pytest.mark.parametrize(
    ("said", "line", "note"),
    [
        ("algorithm: {target_kl: 0.1}", "algorithm=reinforce_pp", "algorithm.target_kl=0.1"),
        ("reward: {parts: {boxed: {weight: 0.7}}}", "reward=custom", "reward.parts.boxed.weight=0.7"),
    ],
)
def test_values_of_a_replaced_choice_are_a_note(said: str, line: str, note: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"defaults:\n  - rpn_small\n  - _self_\n{said}\n")
    lines = [line, "reward.parts.custom.function=my:f"] if line == "reward=custom" else [line]
    config = load_config(lines, config_name="mine", config_dir=str(tmp_path))
    assert f"{note} ({tmp_path / 'mine.yaml'}): has no effect with {line}" in config.notes


@pytest.mark.parametrize("multiplies", [True, False])
def test_rates_and_precision_fit_what_is_trained(multiplies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.models.devices.has_bf16", lambda device: multiplies)
    given = ["task=gsm8k", "model=hf", "model.name_or_path=x"]
    assert load_config([]).trainer.learning_rate == 4e-4
    whole = load_config([*given, "trainer.device=cpu"])
    assert (whole.trainer.learning_rate, whole.trainer.precision) == (1e-6, "fp32")
    adapted = load_config([*given, "model.lora.enabled=true", "trainer.device=cpu"])
    dtype = "bfloat16" if multiplies else "float32"  # a CPU without bfloat16 products takes ten times as long
    assert (adapted.trainer.learning_rate, adapted.model.dtype) == (1e-5, dtype)  # type: ignore[union-attr]
    assert adapted.trainer.precision == "auto"


def test_the_run_folder_may_hold_the_time(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [rpn, _self_]\nrun_dir: runs/${now:%Y}_${name}_${seed}\n")
    run_dir = load_config(["seed=7"], config_name="mine", config_dir=str(tmp_path)).run_dir
    assert re.fullmatch(r"runs/2\d{3}_rpn_7", run_dir or "")


TINY = "rpn, override model: scratch_bpe"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        ([], ("plain", 0.25)),
        (["prompt=math_reasoning"], ("math_reasoning", 0.25)),
        (["reward=math"], ("plain", 1.0)),
        (["task=jsonl", "task.path=sums.jsonl"], ("math_reasoning", 1.0)),
    ],
)
def test_reward_and_prompt_follow_a_task_of_the_users_file(
    lines: list[str], chosen: tuple[str, float], tmp_path: Path
) -> None:
    files = {
        "task/sums": "defaults: [jsonl]\npath: sums.jsonl",
        "reward/sums": "defaults: [numeric]\nparts: {correct: {close_credit: 0.25}}",
        "prompt/sums": "defaults: [plain]",
        "mine": f"defaults: [{TINY}, override task: sums, _self_]",
        "pinned": f"defaults: [{TINY}, override task: sums, override prompt: math_reasoning, _self_]",
        "around": "defaults: [pinned, _self_]",
        "mixed": f"defaults: [{TINY}, override task: mix, _self_]\ntask: {{parts: {{sums: {{}}}}}}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")

    def config(name: str, *lines: str) -> Any:
        return load_config([*lines, "model.max_context_tokens=2048"], config_name=name, config_dir=str(tmp_path))

    found = config("mine", *lines)
    assert (found.prompt.name, getattr(found.reward.parts["correct"], "close_credit", 1.0) or 1.0) == chosen
    assert config("pinned", *lines).prompt.name == "math_reasoning"
    assert config("around", *lines).prompt.name == "math_reasoning"
    assert config("mixed").task.bundles["sums"].prompt.name == "plain"


@pytest.mark.parametrize("folder", ["runs/Übung", "runs/Kurs Übung 2", "runs/東京"])
def test_letters_of_any_language_need_no_quotes(folder: str) -> None:
    assert load_config([f"run_dir={folder}"]).run_dir == folder
