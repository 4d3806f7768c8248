"""What a component may know of the run around it: facts, without the sections that hold them.

`rlvr.config.Config` is a `RunView`. A fact that a component of yours needs and that is not here is added here.
"""

from collections.abc import Container, Mapping
from typing import Any, ClassVar, Protocol


class TaskView(Protocol):
    """Facts about the task that a run trains or evaluates."""

    @property
    def name(self) -> str: ...

    answer_kind: ClassVar[str]  # text, number or program
    brings_verifier: ClassVar[bool]
    has_documents: ClassVar[bool]
    rereads: ClassVar[bool]
    has_decompositions: ClassVar[bool]
    has_tests: ClassVar[bool]
    has_tools: ClassVar[bool]

    @property
    def longest_prompt(self) -> int | None: ...  # tokens; None: not limited by the task

    made_of_words: ClassVar[bool]

    @property
    def metric_uses_sandbox(self) -> bool: ...
    @property
    def retriever_reads(self) -> Container[str]: ...  # names of the fields of task.retrieval

    shows_calls: ClassVar[bool]
    writes_prompts: ClassVar[bool]


class PromptView(Protocol):
    @property
    def answer_in(self) -> str: ...
    @property
    def few_shot(self) -> int: ...
    @property
    def is_plain(self) -> bool: ...
    @property
    def system(self) -> str | None: ...
    @property
    def text(self) -> str: ...  # system and user message
    @property
    def tool_format(self) -> str: ...
    @property
    def user(self) -> str: ...


class ModelView(Protocol):
    @property
    def adapted(self) -> bool: ...
    @property
    def bits(self) -> int | None: ...  # of quantized weights

    from_scratch: ClassVar[bool]

    @property
    def name(self) -> str: ...

    tokens_are_words: ClassVar[bool]

    @property
    def weights_dtype(self) -> str: ...


class AlgorithmView(Protocol):
    compares_groups: ClassVar[bool]

    @property
    def divides_by_std(self) -> bool: ...  # so that a factor common to a group is lost
    @property
    def name(self) -> str: ...

    @property
    def refills(self) -> int | None: ...  # its own rounds of replacement for groups of equal rewards; None: keep them

    returns_per_token: ClassVar[bool]


class EngineView(Protocol):
    in_process: ClassVar[bool]  # False: servers sample

    @property
    def samples_in_half(self) -> bool: ...  # it is told to use 16 bits, whatever trains


class RolloutView(Protocol):
    @property
    def dead_groups(self) -> str: ...
    @property
    def group_size(self) -> int: ...
    @property
    def max_completion_tokens(self) -> int: ...
    @property
    def max_staleness(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def prompts_per_step(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def truncates(self) -> bool: ...


class TrainerView(Protocol):
    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def strategy(self) -> str: ...


class WarmStartView(Protocol):
    @property
    def enabled(self) -> Any: ...  # true or false


class RewardView(Protocol):
    @property
    def parts(self) -> Mapping[str, Any]: ...  # reward parts by name


class MarkersView(Protocol):
    @property
    def sets(self) -> Mapping[str, Any]: ...  # `Markers` by name


class TrackerView(Protocol):
    @property
    def report_to(self) -> Container[str]: ...


class RunView(Protocol):
    """A run with one task: a part of a mix sees the run as if it were the only one."""

    @property
    def algorithm(self) -> AlgorithmView: ...
    @property
    def engine(self) -> EngineView: ...
    @property
    def is_trained(self) -> bool: ...  # False for a task that is only evaluated
    @property
    def markers(self) -> MarkersView: ...
    @property
    def model(self) -> ModelView: ...
    @property
    def prompt(self) -> PromptView: ...
    @property
    def reward(self) -> RewardView: ...
    @property
    def rollout(self) -> RolloutView: ...
    @property
    def task(self) -> TaskView: ...
    @property
    def tracker(self) -> TrackerView: ...
    @property
    def trainer(self) -> TrainerView: ...
    @property
    def warm_start(self) -> WarmStartView: ...
