"""The networks and methods that the paper compares with."""

from lben.baselines.feedforward import FeedForward
from lben.baselines.lipnn import pool, train_lipnn
from lben.baselines.lmt import LMT, LipschitzMargin

__all__ = ["LMT", "FeedForward", "LipschitzMargin", "pool", "train_lipnn"]
