"""The composition root: the only place that knows every component. A configuration comes in, a run comes out."""

from rlvr.build.chats import make_chat
from rlvr.build.evaluation import evaluate_all
from rlvr.build.inference import Inference, inference_config, open_inference, run_of
from rlvr.build.train import TrainResult, assemble, train

__all__ = [
    "Inference",
    "TrainResult",
    "assemble",
    "evaluate_all",
    "inference_config",
    "make_chat",
    "open_inference",
    "run_of",
    "train",
]
