"""lben: Lipschitz-bounded equilibrium networks in PyTorch.

`help` of any public name, such as ``help(lben.LBEN)``, describes its arguments and shows an example. Examples begin
where ``import lben`` and ``import torch`` have been said.

Examples:
    >>> import lben, torch
    >>> net = lben.LBEN(2, 8, 3, gamma=1.0)  # a torch.nn.Module, 1-Lipschitz whatever its parameters are
    >>> x = torch.randn(5, 2)
    >>> net(x).shape
    torch.Size([5, 3])
    >>> bool(lben.certify(net))  # proved from its weights alone
    True
    >>> lben.certified_radius(net, x).radius.shape  # how far each x may move before its class can change
    torch.Size([5])
"""

from importlib.metadata import PackageNotFoundError, version

from lben import data, train
from lben.activations.base import Activation
from lben.activations.blocks import Blocks, GroupSoftThreshold, Projection, Softmax
from lben.activations.framed import Framed
from lben.activations.scalar import (
    ELU,
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
from lben.activations.sets import Ball, Box, Polyhedron, Simplex
from lben.attacks import Attack, AttackMethod, Lengths, attack
from lben.certify.certificate import Certificate, LowerBound
from lben.certify.contraction import Contraction, FrequencyTest, contraction, frequency_test
from lben.certify.dissipation import dissipation
from lben.certify.enclose import Enclosure, enclose
from lben.certify.gain import IncrementalGain, incremental_gain
from lben.certify.interval import CertifiedInterval, certified_interval
from lben.certify.lipschitz import certify, product_bound, tightest_bound, well_posed
from lben.certify.local import LocalBound, local_bound
from lben.certify.lower import lipschitz_lower_bound
from lben.certify.radius import CertifiedAccuracy, CertifiedRadius, certified_accuracy, certified_radius
from lben.certify.recurrent import Dissipation
from lben.certify.verify import Verification, verify
from lben.certify.wellposed import WellPosedness
from lben.dynamics.contracting import ContractingODE
from lben.dynamics.imported import from_rnn
from lben.dynamics.ode import ODE
from lben.dynamics.ren import REN, Simulation, Step
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
from lben.experiments import baselines
from lben.export.domains import InBall, InBox
from lben.export.network import Exported, export
from lben.export.pages import write_page
from lben.files import Card, load, pretrained, save
from lben.layers.equilibrium import ImageLBEN
from lben.layers.graph import read
from lben.layers.parallel import Parallel
from lben.layers.sandwich import ConvSandwich, Sandwich
from lben.layers.shapes import MaxMin, PadChannels, SpaceToDepth
from lben.layers.sll import SLL, ConvSLL
from lben.layers.stack import Sequential
from lben.networks.convolutional import ConvLBEN, ConvMON, ConvNetwork, ConvUnconstrainedEN
from lben.networks.dense import LBEN, MON, EquilibriumNetwork, Start, UnconstrainedEN
from lben.networks.imported import Residual, from_sequential
from lben.networks.layered import LayeredNetwork
from lben.networks.published import Imported, import_checkpoint
from lben.networks.solution import Solution
from lben.normalize import Normalize
from lben.parameterize.behaviours import Behaviour, Contracting, Dissipative, Lipschitz, Passive
from lben.solvers.anderson import Anderson
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import Solver
from lben.solvers.extragradient import Extragradient
from lben.solvers.fista import FISTA
from lben.solvers.forward_backward import ForwardBackward
from lben.solvers.newton import Newton
from lben.solvers.peaceman_rachford import DouglasRachford, PeacemanRachford
from lben.weights.convolutional import ConvWeights, Geometry, Metric
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights
from lben.weights.recurrent import RENWeights, Supply

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
    "REN",
    "SLL",
    "Activation",
    "Anderson",
    "Arctan",
    "Attack",
    "AttackMethod",
    "BackSubstitution",
    "Ball",
    "Behaviour",
    "Blocks",
    "BoundNotMet",
    "Box",
    "Card",
    "Certificate",
    "CertifiedAccuracy",
    "CertifiedInterval",
    "CertifiedRadius",
    "Contracting",
    "ContractingODE",
    "Contraction",
    "ConvLBEN",
    "ConvMON",
    "ConvNetwork",
    "ConvSLL",
    "ConvSandwich",
    "ConvUnconstrainedEN",
    "ConvWeights",
    "ConvergenceWarning",
    "DataNotFound",
    "Dissipation",
    "Dissipative",
    "Diverged",
    "DouglasRachford",
    "Elementwise",
    "Enclosure",
    "EquilibriumNetwork",
    "Exported",
    "Extragradient",
    "ForwardBackward",
    "Framed",
    "FrequencyTest",
    "Geometry",
    "GroupSoftThreshold",
    "HardTanh",
    "Identity",
    "ImageLBEN",
    "ImageWeights",
    "Imported",
    "InBall",
    "InBox",
    "IncrementalGain",
    "InvalidActivation",
    "InvalidFile",
    "InvalidInput",
    "LayeredNetwork",
    "LbenError",
    "LeakyReLU",
    "Lengths",
    "Lipschitz",
    "LocalBound",
    "LowerBound",
    "MaxMin",
    "Metric",
    "MissingExtra",
    "Newton",
    "Normalize",
    "NotConverged",
    "NotWellPosed",
    "PadChannels",
    "Parallel",
    "Passive",
    "PeacemanRachford",
    "PerUnit",
    "Polyhedron",
    "Projection",
    "RENWeights",
    "ReLU",
    "Residual",
    "Sandwich",
    "Sequential",
    "Sigmoid",
    "Simplex",
    "Simulation",
    "Softmax",
    "Softplus",
    "Solution",
    "Solver",
    "SpaceToDepth",
    "Start",
    "Step",
    "Supply",
    "Tanh",
    "UnconstrainedEN",
    "Verification",
    "Weights",
    "WellPosedness",
    "__version__",
    "attack",
    "baselines",
    "certified_accuracy",
    "certified_interval",
    "certified_radius",
    "certify",
    "contraction",
    "data",
    "dissipation",
    "enclose",
    "export",
    "frequency_test",
    "from_rnn",
    "from_sequential",
    "import_checkpoint",
    "incremental_gain",
    "lipschitz_lower_bound",
    "load",
    "local_bound",
    "pretrained",
    "product_bound",
    "read",
    "save",
    "tightest_bound",
    "train",
    "verify",
    "well_posed",
    "write_page",
]
