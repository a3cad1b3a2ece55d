"""lben: Lipschitz-bounded equilibrium networks in PyTorch."""

from lben.activations import (
    ELU,
    Activation,
    Arctan,
    Elementwise,
    HardTanh,
    Identity,
    LeakyReLU,
    PerUnit,
    ReLU,
    Sigmoid,
    Softplus,
    Tanh,
)
from lben.errors import (
    BoundNotMet,
    ConvergenceWarning,
    InvalidActivation,
    InvalidFile,
    InvalidInput,
    LbenError,
    NotConverged,
    NotWellPosed,
)
from lben.files import load, save
from lben.networks import LBEN, MON, EquilibriumNetwork, UnconstrainedEN
from lben.normalize import Normalize
from lben.solvers import FISTA, Anderson, DouglasRachford, ForwardBackward, Newton, PeacemanRachford, Solution, Solver
from lben.weights import Weights

__all__ = [
    "ELU",
    "FISTA",
    "LBEN",
    "MON",
    "Activation",
    "Anderson",
    "Arctan",
    "BoundNotMet",
    "ConvergenceWarning",
    "DouglasRachford",
    "Elementwise",
    "EquilibriumNetwork",
    "ForwardBackward",
    "HardTanh",
    "Identity",
    "InvalidActivation",
    "InvalidFile",
    "InvalidInput",
    "LbenError",
    "LeakyReLU",
    "Newton",
    "Normalize",
    "NotConverged",
    "NotWellPosed",
    "PeacemanRachford",
    "PerUnit",
    "ReLU",
    "Sigmoid",
    "Softplus",
    "Solution",
    "Solver",
    "Tanh",
    "UnconstrainedEN",
    "Weights",
    "load",
    "save",
]
