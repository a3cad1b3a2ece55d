"""A subject at work, for the verbs that need its outputs."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lben import checks
from lben.activations.base import Activation
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.evaluation import Evaluation
from lben.certify.kinds import subject_of
from lben.certify.subject import Examined, Subject
from lben.errors import InvalidInput
from lben.numerics.rounding import undisturbed
from lben.solvers.base import Solved, Solver
from lben.solvers.peaceman_rachford import PeacemanRachford

D = TypeVar("D")
PRECISE = PeacemanRachford(tolerance=1e-12)
_ROUGH = PeacemanRachford(tolerance=1e-4)


class Evaluator(nn.Module):
    """A subject in double precision on the CPU. Where its weights carry no metric, one is looked for.

    Calling it returns y for x of shape (..., d), differentiable in x, by its `solver`, which may be assigned.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject.settled()
        self.weights = self.subject.weights
        self.solver: Solver = PRECISE

    @staticmethod
    def of(net: Examined, activation: Activation | None = None) -> Evaluator:
        return Evaluator(subject_of(net, activation))

    @property
    def proved(self) -> bool:
        """Whether it is proved that there is one output for every input."""
        return self.subject.proved

    def require_proof(self) -> None:
        """Refuse weights of which nothing is proved."""
        if not self.proved:
            raise self.subject.refusal()

    def flat(self, x: Tensor) -> Tensor:
        """A user's inputs with their features in one dimension, the last."""
        return self.subject.flat(x)

    def inputs(self, x: Tensor) -> Tensor:
        """A user's inputs as rows of doubles."""
        flat = checks.finite("x", self.flat(x))
        return flat.to("cpu", torch.float64, copy=True).reshape(-1, flat.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        y = self.subject.outputs(x.reshape(-1, x.shape[-1]), self.solver)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    @torch.no_grad()
    def evaluate(self, x: Tensor, solver: Solver = PRECISE) -> Evaluation:
        """Outputs for rows x, with the errors that the solver and rounding leave."""
        return self.subject.evaluate(x, solver)

    def classify(self, x: Tensor) -> Tensor:
        """The class of each row, -1 where there is no equilibrium; most show theirs long before machine precision."""
        if not self.proved:
            return self.evaluate(x).predicted
        rough = self.evaluate(x, _ROUGH)
        predicted = rough.y.argmax(dim=-1)
        gap = rough.y.gather(1, predicted[:, None]) - rough.y - rough.pair_error(predicted)
        gap[torch.arange(len(x)), predicted] = torch.inf
        unclear = ~(gap.amin(dim=-1) > 0)
        if bool(unclear.any()):
            predicted[unclear] = self.evaluate(x[unclear]).predicted
        return predicted


def placed(result: D, device: torch.device) -> D:
    """A record of results with its tensors on `device`, where the caller's inputs are."""

    def there(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device)
        return placed(value, device) if is_dataclass(value) else value

    changed = {f.name: there(getattr(result, f.name)) for f in fields(result)}  # type: ignore[arg-type] # a dataclass
    return replace(result, **changed)  # type: ignore[type-var]


@undisturbed
def hidden_error(
    found: Solved, net: Examined, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None
) -> Tensor:
    """A proved bound on |z - z*| in the norm of Lambda, per sample: `Solution.error_bound`."""
    evaluator = Evaluator.of(net, activation)
    subject = evaluator.subject
    if not isinstance(subject, EquilibriumSubject):
        raise InvalidInput("A hidden layer has an error where there is one: ask the stages of a stack one by one.")
    inputs, batch, n = evaluator.inputs(x), evaluator.flat(x).shape[:-1], subject.weights.hidden_features
    if found.z.shape != (*batch, n):
        raise InvalidInput(
            f"For these inputs a hidden layer has shape {(*batch, n)}, but that of the solution is "
            f"{tuple(found.z.shape)}."
        )
    z, v = (part.detach().to("cpu", torch.float64).reshape(-1, n) for part in (found.z, found.v))
    outside = None
    if bias is not None:
        checks.finite("bias", checks.width("bias", checks.floating("bias", bias), n))
        try:
            outside = bias.detach().to("cpu", torch.float64).expand(*batch, n).reshape(-1, n)
        except RuntimeError as wrong:
            raise InvalidInput(f"bias of shape {tuple(bias.shape)} does not fit shape {(*batch, n)}.") from wrong
    with torch.no_grad():
        return subject.distance(z, v, inputs, outside).reshape(batch).to(x.device)
