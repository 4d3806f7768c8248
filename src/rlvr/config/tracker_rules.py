"""Rules of trackers: what a tracker that is not reported to cannot know, and what does not belong into a file."""

import re

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, Mlflow, Tensorboard, Wandb

SECTIONS = {"mlflow": Mlflow, "wandb": Wandb, "tensorboard": Tensorboard}
OF_ALL = ("run_name", "group", "tags", "max_completions", "timeout_s")


def _unused(config: Config) -> tuple[str, ...]:
    """The keys of the trackers that are not reported to."""
    others = [name for name in SECTIONS if name not in config.tracker.report_to]
    return tuple(f"tracker.{name}.{key}" for name in others for key in SECTIONS[name].model_fields)


def _uploads_no_model(config: Config) -> bool:
    tracker = config.tracker
    keeps = {"mlflow": tracker.mlflow.log_model, "wandb": tracker.wandb.log_model}
    return not any(keeps.get(name, False) for name in tracker.report_to)


def _names_a_password(config: Config) -> bool:
    return re.search(r"://[^/@]*:[^/@]*@", config.tracker.mlflow.tracking_uri or "") is not None


TRACKER_RULES = (
    Rule(
        lambda c: len(set(c.tracker.report_to)) < len(c.tracker.report_to),
        "tracker.report_to: names a tracker twice; name each once.",
    ),
    Rule(
        lambda c: not c.tracker.report_to,
        "with tracker.report_to=[]; name a tracker, e.g. tracker.report_to=[mlflow]",
        idle=tuple(f"tracker.{key}" for key in OF_ALL),
    ),
    Rule(
        lambda c: bool(_unused(c)),
        "where tracker.report_to does not name that tracker; add it to the list",
        idle=_unused,
    ),
    Rule(
        lambda c: c.tracker.rollouts_every is None,
        "with tracker.rollouts_every=null",
        idle=("tracker.max_completions",),
    ),
    Rule(
        _uploads_no_model,
        "where no tracker keeps the model; set tracker.mlflow.log_model=true or tracker.wandb.log_model=true",
        idle=("tracker.upload_timeout_s",),
    ),
    Rule(
        _names_a_password,
        "tracker.mlflow.tracking_uri: holds a password, which would stand in the run's config.yaml; give the address "
        "in the environment, MLFLOW_TRACKING_URI=...",
    ),
)
