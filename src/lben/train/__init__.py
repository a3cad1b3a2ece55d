"""Training: recipes, one loop for every network, and checkpoints from which it goes on; nothing is proved here."""

from lben.train.augment import Augmentation
from lben.train.judge import Data, Epoch, error_rate
from lben.train.loop import fit
from lben.train.losses import CrossEntropy, Emma, Loss, MeanSquare
from lben.train.recipe import OnLost, Optimizer, Schedule, TrainConfig

__all__ = [
    "Augmentation",
    "CrossEntropy",
    "Data",
    "Emma",
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
