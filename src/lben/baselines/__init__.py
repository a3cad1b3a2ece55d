"""The networks and methods that the paper compares with; what compares them is in `experiments`."""

from lben.baselines.feedforward import FeedForward
from lben.baselines.halving import Halving, halving_search
from lben.baselines.lipnn import pool, train_lipnn
from lben.baselines.lmt import LMT, LipschitzMargin

__all__ = ["LMT", "FeedForward", "Halving", "LipschitzMargin", "halving_search", "pool", "train_lipnn"]
