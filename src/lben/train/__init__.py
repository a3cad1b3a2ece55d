"""Training: recipes, one loop for every network, and checkpoints from which it goes on; nothing is proved here."""

from lben.train.judge import Data, Epoch, error_rate
from lben.train.loop import fit
from lben.train.recipe import CrossEntropy, Loss, MeanSquare, OnLost, Optimizer, Schedule, TrainConfig

__all__ = [
    "CrossEntropy",
    "Data",
    "Epoch",
    "Loss",
    "MeanSquare",
    "OnLost",
    "Optimizer",
    "Schedule",
    "TrainConfig",
    "error_rate",
    "fit",
]
