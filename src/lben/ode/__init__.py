"""The neural ODE v' = -v + W sigma(v) + U x(t) + bz, y = Wo sigma(v) + by (Equation `neural-ode`)."""

from lben.ode.contracting import Contracting, ContractingODE
from lben.ode.dynamics import ODE, Dynamics

__all__ = ["ODE", "Contracting", "ContractingODE", "Dynamics"]
