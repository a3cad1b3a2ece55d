"""lben: Lipschitz-bounded equilibrium networks in PyTorch."""

from importlib.metadata import PackageNotFoundError, version

from lben import baselines, data, train
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
from lben.attacks import Attack, AttackMethod, Lengths, attack
from lben.certify.certificate import Certificate
from lben.certify.contraction import Contraction, FrequencyTest, contraction, frequency_test
from lben.certify.enclose import Enclosure, enclose
from lben.certify.gain import IncrementalGain, incremental_gain
from lben.certify.lmi import certify, product_bound
from lben.certify.lower import LowerBound, lipschitz_lower_bound
from lben.certify.radius import CertifiedAccuracy, CertifiedRadius, certified_accuracy, certified_radius
from lben.certify.sdp import tightest_bound
from lben.certify.wellposed import WellPosedness, well_posed
from lben.convert import Residual, from_sequential
from lben.convolutional import ConvLBEN, ConvMON, ConvNetwork, ConvUnconstrainedEN
from lben.convweights import ConvWeights, Geometry, Metric
from lben.errors import (
    BoundNotMet,
    ConvergenceWarning,
    DataNotFound,
    Diverged,
    InvalidActivation,
    InvalidFile,
    InvalidInput,
    LbenError,
    MissingExtra,
    NotConverged,
    NotWellPosed,
)
from lben.files import load, save
from lben.layered import LayeredNetwork
from lben.multivariable import Blocks, GroupSoftThreshold, Projection, Softmax
from lben.networks import LBEN, MON, EquilibriumNetwork, Start, UnconstrainedEN
from lben.normalize import Normalize
from lben.ode import ODE, ContractingODE
from lben.sets import Ball, Box, Polyhedron, Simplex
from lben.solvers import (
    FISTA,
    Anderson,
    BackSubstitution,
    DouglasRachford,
    Extragradient,
    ForwardBackward,
    Newton,
    PeacemanRachford,
    Solution,
    Solver,
)
from lben.weights import Weights

try:
    __version__ = version("lben")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "unknown"

__all__ = [
    "ELU",
    "FISTA",
    "LBEN",
    "MON",
    "ODE",
    "Activation",
    "Anderson",
    "Arctan",
    "Attack",
    "AttackMethod",
    "BackSubstitution",
    "Ball",
    "Blocks",
    "BoundNotMet",
    "Box",
    "Certificate",
    "CertifiedAccuracy",
    "CertifiedRadius",
    "ContractingODE",
    "Contraction",
    "ConvLBEN",
    "ConvMON",
    "ConvNetwork",
    "ConvUnconstrainedEN",
    "ConvWeights",
    "ConvergenceWarning",
    "DataNotFound",
    "Diverged",
    "DouglasRachford",
    "Elementwise",
    "Enclosure",
    "EquilibriumNetwork",
    "Extragradient",
    "ForwardBackward",
    "FrequencyTest",
    "Geometry",
    "GroupSoftThreshold",
    "HardTanh",
    "Identity",
    "IncrementalGain",
    "InvalidActivation",
    "InvalidFile",
    "InvalidInput",
    "LayeredNetwork",
    "LbenError",
    "LeakyReLU",
    "Lengths",
    "LowerBound",
    "Metric",
    "MissingExtra",
    "Newton",
    "Normalize",
    "NotConverged",
    "NotWellPosed",
    "PeacemanRachford",
    "PerUnit",
    "Polyhedron",
    "Projection",
    "ReLU",
    "Residual",
    "Sigmoid",
    "Simplex",
    "Softmax",
    "Softplus",
    "Solution",
    "Solver",
    "Start",
    "Tanh",
    "UnconstrainedEN",
    "Weights",
    "WellPosedness",
    "__version__",
    "attack",
    "baselines",
    "certified_accuracy",
    "certified_radius",
    "certify",
    "contraction",
    "data",
    "enclose",
    "frequency_test",
    "from_sequential",
    "incremental_gain",
    "lipschitz_lower_bound",
    "load",
    "product_bound",
    "save",
    "tightest_bound",
    "train",
    "well_posed",
]
