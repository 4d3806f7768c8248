"""Where a run is reported to beside its own folder."""

from typing import Annotated, Literal

from pydantic import Field

from rlvr.config.schema.base import Section

Text = Annotated[str, Field(min_length=1)]
TrackerName = Literal["mlflow", "wandb", "tensorboard"]


class Mlflow(Section):
    """MLflow: a store on this machine, or a server."""

    tracking_uri: Text | None = Field(
        description="store or server, e.g. http://host:5000; null: MLFLOW_TRACKING_URI, else mlflow.db in the folder "
        "that the run folder lies in"
    )
    experiment: Text | None = Field(description="experiment that the run belongs to; null: the configuration's name")
    log_model: bool = Field(description="also keep the final model there, as the artifact `final`")


class Wandb(Section):
    """Weights & Biases, with or without an account."""

    project: Text = Field(description="project of the run")
    entity: Text | None = Field(description="user or team; null: the account's default")
    mode: Literal["auto", "online", "offline"] = Field(
        description="offline: files in RUN/wandb, for `wandb sync`; auto: WANDB_MODE, else online where there is an "
        "API key (wandb login, WANDB_API_KEY)"
    )
    log_model: bool = Field(description="also keep the final model there, as an artifact of type `model`")


class Tensorboard(Section):
    """TensorBoard: event files on this machine."""

    folder: Text | None = Field(description="folder of the event files; null: RUN/tensorboard")
