"""The networks and methods that the paper compares with, one a file here: `lben.baselines`."""

from lben.experiments.feedforward import FeedForward
from lben.experiments.halving import Halving, halving_search
from lben.experiments.lipnn import pool, train_lipnn
from lben.experiments.lmt import LMT, LipschitzMargin

__all__ = ["LMT", "FeedForward", "Halving", "LipschitzMargin", "halving_search", "pool", "train_lipnn"]
