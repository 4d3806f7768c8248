"""The composition root: the only place that knows every component. A configuration comes in, a run comes out."""

from rlvr.build.chats import make_chat
from rlvr.build.evaluation import evaluate_all, evaluate_into, origin_of
from rlvr.build.inference import Inference, Loaded, inference_config, open_inference, open_model, run_of
from rlvr.build.train import TrainResult, assemble, train

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
