"""The composition root: the only place that knows every component. A configuration comes in, a run comes out."""

from rlvr.app.chats import make_chat
from rlvr.app.evaluation import evaluate_all, evaluate_into, origin_of
from rlvr.app.inference import Inference, Loaded, inference_config, open_inference, open_model, run_of
from rlvr.app.train import TrainResult, assemble, train

__all__ = [
    "Inference",
    "Loaded",
    "TrainResult",
    "assemble",
    "evaluate_all",
    "evaluate_into",
    "inference_config",
    "make_chat",
    "open_inference",
    "open_model",
    "origin_of",
    "run_of",
    "train",
]
