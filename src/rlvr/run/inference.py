"""Opens any kind of model for evaluation on a task."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from rlvr.config import Config
from rlvr.core.engine import LocalEngine
from rlvr.engines.openai import Endpoint, open_endpoint
from rlvr.evaluation.endpoint import EndpointPlayer
from rlvr.evaluation.players import LocalPlayer, Player
from rlvr.models.devices import choose_device, choose_products, frozen_copy
from rlvr.models.fingerprint import fingerprint
from rlvr.models.loading import load_for_inference, model_family
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import PretrainedModel
from rlvr.places import ENDPOINT
from rlvr.progress import progress
from rlvr.run.late import late_grader, refuse_late
from rlvr.run.policies import set_threads
from rlvr.run.sources import weights_of
from rlvr.run.tasks import Tasks, context_tokens, make_chat, open_tasks
from rlvr.tasks.base import Functions, Reads, Task

MARKS_OF = "llama"
"""Model family whose markers endpoint prompts use with prompt.markers=auto: they are plain text to any model."""
UNKNOWN = (
    "the endpoint's model is not known here: no example is left out for the length of its prompt, and "
    "prompt.markers=auto means those of Llama"
)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model, loaded once for several tasks: weights in this process, or an endpoint."""

    source: str  # folder or Hub id of the weights, or the endpoint
    model: HubPolicy | Endpoint
    fingerprint: str  # of everything that affects sampling; for an endpoint its address and name


@dataclass(frozen=True, kw_only=True)
class Inference:
    loaded: Loaded
    config: Config
    tasks: Tasks
    engine: LocalEngine | None  # None: an endpoint

    @property
    def notes(self) -> list[str]:
        """Notes about the data and about unusual prompt rendering."""
        model = self.loaded.model
        if isinstance(model, Endpoint):
            return [*self.tasks.notes, UNKNOWN]
        examples = [(task, example) for task in self.tasks.eval_sets for example in task.eval_examples(1)]
        rendered = [make_chat(self.config, model, task).note(example.messages) for task, example in examples]
        return [*self.tasks.notes, *dict.fromkeys(note for note in rendered if note is not None)]

    def player(self, task: Task) -> Player:
        model = self.loaded.model
        if isinstance(model, Endpoint):
            refuse_late(self.config, task)
            return EndpointPlayer(endpoint=model, stop_words=tuple(task.stop_words))
        assert self.engine is not None
        chat = make_chat(self.config, model, task)
        context = self.engine.max_context_tokens
        late = late_grader(self.config, model, chat, task, context)
        return LocalPlayer(engine=self.engine, chat=chat, max_context_tokens=context, late=late.episode)


@contextmanager
def open_model(model: str, settings: PretrainedModel | None = None, device: str = "auto") -> Iterator[Loaded]:
    """Open a run folder, checkpoint, model folder or Hub id with its weights loaded, or an endpoint that answers.

    `openai:http://127.0.0.1:8000/v1#NAME` is an OpenAI-compatible endpoint. `settings` set the dtype and quantization
    under an adapter; whole models are float32. `device` is as `trainer.device`. UserError if the model is missing or
    damaged, or the endpoint does not answer.
    """
    if model.startswith(ENDPOINT):
        endpoint = open_endpoint(model)
        yield Loaded(source=model, model=endpoint, fingerprint=endpoint.fingerprint)
        return
    source = weights_of(model)
    with progress(f"loading {source}"):
        policy = load_for_inference(source, settings, choose_device(device))
        loaded = Loaded(source=source, model=policy, fingerprint=fingerprint(policy))
    yield loaded


@contextmanager
def open_inference(
    model: str | Loaded, config: Config, functions: Functions | None = None, *, reads: Reads = "all"
) -> Iterator[Inference]:
    """Prepare a model, by name or already loaded, for the configuration's tasks. Verifier processes end with the block.
    `reads` limits the data to load: training data are large, and a user's own question needs none. UserError as for
    `open_model`, and for missing data.
    """
    with ExitStack() as stack:
        # data are read before weights: a file that is missing is told at once
        family = _family(model, config)
        tasks = stack.enter_context(open_tasks(config, family, functions or {}, reads=reads))
        if isinstance(model, str):
            model = stack.enter_context(open_model(model, config.model.pretrained, config.trainer.device))
        if isinstance(model.model, Endpoint):
            yield Inference(loaded=model, config=config, tasks=tasks, engine=None)
            return
        policy = model.model
        choose_products(policy.model.device, config.trainer.precision)
        set_threads(config, policy)
        context = context_tokens(policy)
        policy = tasks.fit(config, policy)
        loaded = _as_sampled(config, replace(model, model=policy))
        policy, most = loaded.model, config.engine.max_batch_size
        assert isinstance(policy, HubPolicy)
        engine = LocalEngine(policy.model, max_batch_size=most, max_context_tokens=context, prompts=policy.prompts)
        stack.callback(engine.close)
        yield Inference(loaded=loaded, config=config, tasks=tasks, engine=engine)


def _as_sampled(config: Config, loaded: Loaded) -> Loaded:
    """The model in the data type that the run samples with, so that its score is the run's own."""
    policy = loaded.model
    assert isinstance(policy, HubPolicy)
    dtype = config.engine.sampling_dtype(policy, config)
    if dtype == policy.dtype:
        return loaded
    copy = replace(policy, model=frozen_copy(policy.model, dtype))
    return replace(loaded, model=copy, fingerprint=f"{loaded.fingerprint}-{str(dtype).removeprefix('torch.')}")


def _family(model: str | Loaded, config: Config) -> str:
    """`model_type` of the model; without its weights, where they are not loaded yet."""
    if isinstance(model, Loaded):
        loaded = model.model
        return MARKS_OF if isinstance(loaded, Endpoint) else loaded.model.config.get_text_config().model_type
    if model.startswith(ENDPOINT):
        return MARKS_OF
    source = weights_of(model)
    settings = config.model.pretrained or PretrainedModel(name_or_path=source)
    return model_family(settings.model_copy(update={"name_or_path": source}))
