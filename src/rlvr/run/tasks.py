"""The tasks of a run, for training and evaluation, and the model's chat codec for each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from rlvr import imports
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.errors import ConfigError, UserError
from rlvr.models.policy import HubPolicy
from rlvr.progress import progress
from rlvr.rewards.parts import PartsVerifier, make_verifier
from rlvr.rewards.sandbox import Sandbox
from rlvr.run.errors import in_the_users_words
from rlvr.samplers.base import Checked
from rlvr.tasks.base import Functions, Reads, Task, TaskContext
from rlvr.tasks.prompting import Prompter, resolve_markers
from rlvr.tasks.settings import TaskBundle
from rlvr.types import Example, Message, ToolSchema

NUM_SHOWN = 64
"""Demonstrations that are looked at for their working."""

NUM_TRIED = 100
"""Rows of which at least one must be paid for its own answer."""

NUM_ASKED = 4
"""Prompts whose text the model's computations are compared on."""


@dataclass(frozen=True, kw_only=True)
class Tasks:
    own: Task
    also: tuple[Task, ...]
    verifiers: Mapping[str, PartsVerifier]

    @property
    def eval_sets(self) -> tuple[Task, ...]:
        return (*self.own.eval_sets(), *self.also)

    @property
    def notes(self) -> list[str]:
        """Notes of loading: sizes, overlap, excluded examples."""
        return [*self.own.notes, *(f"{task.name}: {note}" for task in self.also for note in task.notes)]

    @property
    def places(self) -> list[str]:
        """Where the answers to the prompts of each part of the run's task are read, if that differs by prompt."""
        parts = self.own.eval_sets()
        said = {part.name: part.places for part in parts}
        return [f"{name}: {text}" if len(parts) > 1 else f"answers: {text}" for name, text in said.items() if text]

    def check_training(self, config: Config) -> Iterator[str]:
        """UserError if a training task has no training data, a function of its reward fails, or the sampler cannot
        start with it; yields warnings."""
        for part in self.own.eval_sets():
            part.train_example(0)
            if config.warm_start.enabled and config.warm_start.source == "demonstrations":
                yield from _lacks_working(part)
            verifier, solution = self.verifiers.get(part.name), next(iter(part.solutions(1)), None)
            if verifier is None or solution is None or len(solution.turns) > 1:
                continue
            if isinstance(text := solution.turns[0], str):
                max_error_share = config.reward.max_error_share
                yield from verifier.try_functions(solution.example, text, max_error_share=max_error_share)
                check_pays(part, verifier)
        Checked.started(config.sampler, self.own, config.seed)

    def fit(self, config: Config, policy: HubPolicy) -> HubPolicy:
        """Exclude examples whose prompt leaves too little room for a whole completion; the policy, which knows prompts.

        ConfigError if no prompt has room.
        """
        context, max_completion_tokens = context_tokens(policy), config.rollout.max_completion_tokens
        if max_completion_tokens >= context:
            raise ConfigError(
                f"rollout.max_completion_tokens={max_completion_tokens}: leaves no room for a prompt in the model's "
                f"context of {context} tokens; lower it."
            )
        for task in (self.own, *self.also):
            chat = make_chat(config, policy, task)

            def count_tokens(messages: Sequence[Message], tools: Sequence[ToolSchema] = (), chat: Chat = chat) -> int:
                return len(chat.encode_prompt(messages, tools))

            task.limit_prompts(count_tokens, context - max_completion_tokens)
        chat = make_chat(config, policy, self.own)
        asked = [(part, example) for part in self.own.eval_sets() for example in part.eval_examples(NUM_ASKED)]
        prompts = (first_prompt(chat, part, example) for part, example in asked[:NUM_ASKED])
        return replace(policy, prompts=tuple(filter(None, prompts)))


def first_prompt(chat: Chat, task: Task, example: Example) -> tuple[int, ...]:
    """The first prompt of an episode, with its tools; empty where an environment starts the dialogue."""
    return chat.encode_prompt(example.messages, task.env(example).tools) if example.messages else ()


def _lacks_working(task: Task) -> Iterator[str]:
    solutions = task.solutions(NUM_SHOWN)
    if solutions and all(solution.is_bare for solution in solutions):
        yield (
            f"warm start: the demonstrations of {task.name} are bare answers, as its data have no working; "
            "task.demonstration_field names a field with whole completions"
        )


def check_pays(task: Task, verifier: PartsVerifier) -> None:
    """ConfigError if the parts that read answers pay none of the first rows for its own gold: nothing can be learnt."""
    tried, why = 0, ""
    for num in (1, NUM_TRIED):  # usually the first one is paid, and no other is read
        for solution in task.solutions(num)[tried:]:
            texts = [solution.turns[-1], task.answered(solution.example.answer)]
            found = verifier.why_unpaid(solution.example, [text for text in texts if isinstance(text, str)])
            if not found:
                return
            tried, why = tried + 1, why or found
    raise ConfigError(
        f"the reward pays none of {tried} rows of {task.name} for its own answer ({why}): choose the reward and the "
        "task.metric that read these answers, a prompt that asks for them where they are read, or correct the data."
    )


def context_tokens(policy: HubPolicy) -> int:
    return int(policy.model.config.get_text_config().max_position_embeddings)


def make_chat(config: Config, policy: HubPolicy, task: Task) -> Chat:
    """The policy's chat codec for a task: the run's own, a part of a mix, or one of `evaluation.also`."""
    bundle = config.bundles.get(task.name)
    tool_format = own_tool_format(config) if bundle is None else bundle.prompt.tool_format
    return Chat(policy.tokenizer, task.stop_words, model=policy.model, tool_format=tool_format)


def own_tool_format(config: Config) -> str:
    """The common `prompt.tool_format` of the training tasks with tools."""
    return next((bundle.prompt.tool_format for bundle in config.trained.values() if bundle.task.has_tools), "auto")


@dataclass(frozen=True, kw_only=True)
class TaskOpener:
    """Opens tasks of a configuration; their verifier processes end with `stack`."""

    config: Config
    family: str | None  # of the model, for prompt.markers=auto
    functions: Functions
    stack: ExitStack
    reads: Reads = "all"
    verifiers: dict[str, PartsVerifier] = field(default_factory=dict)

    def open(self, bundle: Config | TaskBundle, name: str, seed: int) -> Task:
        """The task called `name`, its data loaded."""
        reward, prompt = bundle.reward, bundle.prompt
        sandbox = self.stack.enter_context(
            Sandbox(num_workers=reward.num_workers, timeout_s=reward.timeout_s, max_memory_mb=reward.max_memory_mb)
        )
        markers = resolve_markers(prompt, self.config.markers, self.family)
        prompter = Prompter(prompt, markers, bundle.task.prompt_fields)
        verifier = make_verifier(reward, prompter.answer_format, sandbox, self.functions) if reward.parts else None
        if verifier is not None:
            self.verifiers[name] = verifier
        context = TaskContext(
            name=name,
            seed=seed,
            prompt=prompt,
            prompter=prompter,
            reward=verifier,
            sandbox=sandbox,
            functions=self.functions,
            open=lambda part, seed: self.open(bundle.task.bundles[part], part, seed),
            reads="all" if prompt.few_shot else self.reads,  # few-shot examples come from training data
        )
        try:
            with imports.code_of(bundle.task, f"task={bundle.task.name}: opening its data"):
                return bundle.task.open(context)
        except UserError as error:
            if imports.is_ours(bundle.task):
                raise
            raise ConfigError(str(error)) from error


@contextmanager
def open_tasks(config: Config, family: str | None, functions: Functions, *, reads: Reads = "all") -> Iterator[Tasks]:
    """Open the tasks of a configuration, loading the data that `reads` selects; verifier processes end with the
    block. Its errors name the user's keys, also those of core."""
    with in_the_users_words(), ExitStack() as stack:
        opener = TaskOpener(config=config, family=family, functions=functions, stack=stack, reads=reads)
        with progress("reading data"):
            also = tuple(opener.open(bundle, name, config.seed) for name, bundle in config.evaluation.also.items())
            own = opener.open(config, config.set_name, config.seed)
        for part in own.eval_sets():
            for other in also:
                part.hold_out_for(other)
        yield Tasks(own=own, also=also, verifiers=opener.verifiers)
