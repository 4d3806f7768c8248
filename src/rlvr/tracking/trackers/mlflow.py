"""MLflow: parameters, metrics, tags, artifacts, model; in a local store, or on a server."""

import getpass
import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import model_validator

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.settings import Text, setting
from rlvr.tracking.trackers.base import Row, RunFacts, Started, Status, Tracker, flatten, without_password

MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 8000  # MLflow's limits in characters


@register("tracker", "mlflow")
class Mlflow(Tracker):
    """MLflow: a local store, or a server."""

    title: ClassVar[str] = "MLflow"
    needs_package: ClassVar[str] = "mlflow"
    tracking_uri: Text | None = setting(
        None,
        "store or server, e.g. http://host:5000; null: MLFLOW_TRACKING_URI, else mlflow.db in the folder that contains "
        "the folder of the run, or of its sweep",
    )
    experiment: Text | None = setting(None, "experiment of the run; null: the configuration's name")
    log_model: bool = setting(True, "also log the final model, as the artifact `final`")
    _uri: str = ""
    _artifacts: str | None = None  # next to a database; MLflow's default is the working directory
    _client: Any = None
    _run_id: str = ""
    _steps: Any = None  # the last step of each metric in the store

    @model_validator(mode="after")
    def _holds_no_password(self) -> Self:
        if re.search(r"://[^/@]*:[^/@]*@", self.tracking_uri or ""):  # the message must not repeat it
            raise ConfigError(
                "tracker.mlflow.tracking_uri: holds a password, which config.yaml would show; give the address in the "
                "environment, MLFLOW_TRACKING_URI=..."
            )
        return self

    @property
    def display_name(self) -> str:
        return f"{self.title} at {self.tracking_uri}" if self.tracking_uri else self.title

    @property
    def keeps_model(self) -> bool:
        return self.log_model

    def load(self) -> None:
        """Disable usage statistics, and retries that take minutes."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")
        super().load()

    def prepare(self, run: RunFacts) -> None:
        """Create the tables of a local database. OSError if it is not writable."""
        import mlflow

        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(max(1, round(run.timeout_s))))
        self._uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or default_store(run)
        if self._uri.startswith("sqlite:///"):
            database = Path(self._uri.removeprefix("sqlite:///")).absolute()
            database.parent.mkdir(parents=True, exist_ok=True)
            database.open("ab").close()  # MLflow would retry for two minutes
            self._artifacts = (database.parent / "mlflow_artifacts").as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=self._uri)
        if self._artifacts:
            self._client.search_experiments(max_results=1)

    def start(self, run: RunFacts) -> Started:
        store = without_password(self._uri)
        experiment = self._experiment(self.experiment or run.experiment)
        known = self._known(run, store)
        self._run_id = known.id if known else self._client.create_run(experiment, run_name=run.name).info.run_id
        # a killed process may have sent more than it recorded
        self._steps = {one.key: one.step for one in self._client.get_run(self._run_id).data._metric_objs}
        self._describe(run)
        if self._uri.startswith("http"):
            where = f"{store.rstrip('/')}/#/experiments/{experiment}/runs/{self._run_id}"
        else:
            where = f"mlflow ui --backend-store-uri {store}"
        return Started(id=self._run_id, store=store, where=where, last_step=known.last_step if known else -1)

    def log(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        named = [(allowed(name), value, step) for step, values in rows for name, value in values.items()]
        metrics = [Metric(name, value, now, step) for name, value, step in named if step > self._steps.get(name, -1)]
        self._client.log_batch(self._run_id, metrics=metrics)

    def completions(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        """A table for each step; the run's page shows the last one."""
        path = f"completions/step_{step:06d}.json"
        table = {"columns": list(rows[0]), "data": [list(row.values()) for row in rows]}
        self._client.log_dict(self._run_id, table, path)
        self._client.set_tag(self._run_id, "mlflow.loggedArtifacts", json.dumps([{"path": path, "type": "table"}]))

    def files(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._client.log_artifact(self._run_id, path)

    def model(self, folder: str) -> None:
        self._client.log_artifacts(self._run_id, folder, "final")

    def finish(self, status: Status) -> None:
        self._client.set_terminated(self._run_id, status.upper())

    def _experiment(self, name: str) -> str:
        from mlflow import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        try:
            return experiment.experiment_id if experiment else self._client.create_experiment(name, self._artifacts)
        except MlflowException:
            experiment = self._client.get_experiment_by_name(name)  # another run has just created it
            if experiment is None:
                raise
            return experiment.experiment_id

    def _known(self, run: RunFacts, store: str) -> Started | None:
        from mlflow import MlflowException

        if run.known is None or run.known.store != store:
            return None
        try:
            is_there = self._client.get_run(run.known.id).info.lifecycle_stage == "active"
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            is_there = False
        return run.known if is_there else None

    def _describe(self, run: RunFacts) -> None:
        """Log name, tags and parameters; a parameter changed on resume keeps its first value, as MLflow requires."""
        from mlflow.entities import Param, RunTag

        self._client.update_run(self._run_id, status="RUNNING", name=run.name)
        tags = {"mlflow.source.name": "rlvr train", "mlflow.source.type": "LOCAL", "mlflow.runName": run.name}
        with suppress(OSError, KeyError, ImportError):  # the system may not know the user's name
            tags["mlflow.user"] = getpass.getuser()
        tags |= {"rlvr.version": run.version, "rlvr.run_dir": run.folder}
        tags |= {"group": run.group} if run.group else {}
        tags |= dict(split_tag(tag) for tag in run.tags)
        there = self._client.get_run(self._run_id).data.params
        texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in flatten(run.config).items()}
        params = {allowed(name): text[:MAX_PARAM] for name, text in texts.items()}
        self._client.log_batch(
            self._run_id,
            params=[Param(name, value) for name, value in params.items() if name not in there],
            tags=[RunTag(allowed(name), value[:MAX_TAG]) for name, value in tags.items()],
        )


def default_store(run: RunFacts) -> str:
    """`mlflow.db` beside the run, or beside the sweep of its group; an existing one with the run is kept."""
    folder = Path(run.folder).parent
    beside, above = (f"sqlite:///{one / 'mlflow.db'}" for one in (folder, folder.parent))
    if run.known is not None and run.known.store in (beside, above):
        return run.known.store
    return above if run.group == folder.name else beside


def allowed(name: str) -> str:
    """A name valid in MLflow: letters, digits and `_ - . space : /`, and no parent folders."""
    plain = re.sub(r"[^\w\-. :/]", "_", name)[:MAX_NAME]
    return "/".join("_" if set(part) <= {"."} else part for part in plain.split("/"))


def split_tag(tag: str) -> tuple[str, str]:
    """`team:nlp` is a name with a value; a plain tag has the value `true`."""
    name, sign, value = tag.partition(":")
    return (name, value) if sign and name and value else (tag, "true")
