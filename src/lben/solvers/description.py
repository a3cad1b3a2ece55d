"""Solvers from their descriptions; nothing but those of the library is made."""

from __future__ import annotations

from lben.described import make_record, named
from lben.errors import InvalidFile
from lben.solvers.anderson import Anderson
from lben.solvers.back_substitution import BackSubstitution
from lben.solvers.base import Solver
from lben.solvers.extragradient import Extragradient
from lben.solvers.fista import FISTA
from lben.solvers.forward_backward import ForwardBackward
from lben.solvers.newton import Newton
from lben.solvers.peaceman_rachford import DouglasRachford, PeacemanRachford

SOLVERS: dict[str, type[Solver]] = {
    kind.__name__: kind
    for kind in (
        *(PeacemanRachford, DouglasRachford, ForwardBackward, FISTA),
        *(Extragradient, Newton, Anderson, BackSubstitution),
    )
}


def build_solver(description: object, depth: int = 0) -> Solver:
    name, options = named("solver", description, depth)
    if name not in SOLVERS:
        raise InvalidFile(f"there is no solver {name!r}.")
    if SOLVERS[name] is Anderson:
        options["method"] = build_solver(options.get("method"), depth + 1)
    if options.get("backward") is not None:
        options["backward"] = build_solver(options["backward"], depth + 1)
    made: Solver = make_record(SOLVERS[name], options)
    return made


def is_own_solver(solver: Solver) -> bool:
    """Whether it is the library's own, in all its parts, so that its description says all of it."""
    inner = [solver.backward, solver.method if isinstance(solver, Anderson) else None]
    return type(solver) in SOLVERS.values() and all(one is None or is_own_solver(one) for one in inner)
