"""Solvers of equilibria: frozen records of a method and its options, run by one loop in `base`."""

from lben.solvers.anderson import Anderson
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import Solution, Solver
from lben.solvers.extragradient import Extragradient
from lben.solvers.fista import FISTA
from lben.solvers.forward_backward import ForwardBackward
from lben.solvers.newton import Newton
from lben.solvers.peaceman_rachford import DouglasRachford, PeacemanRachford

__all__ = [
    "FISTA",
    "Anderson",
    "BackSubstitution",
    "DouglasRachford",
    "Extragradient",
    "ForwardBackward",
    "Newton",
    "PeacemanRachford",
    "Solution",
    "Solver",
]
