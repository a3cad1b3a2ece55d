"""The kinds of equilibria that can be certified: a new one is a line here."""

from __future__ import annotations

from lben.activations.base import Activation
from lben.certify.convolutional import ConvSubject
from lben.certify.dense import DenseSubject
from lben.certify.equilibria import EquilibriumSubject
from lben.certify.image import ImageSubject
from lben.errors import InvalidInput
from lben.normalize import Normalize
from lben.weights.convolutional import ConvWeights
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights
from lben.weights.record import Record
from lben.weights.recurrent import RENWeights

KINDS: dict[type[Record], type[EquilibriumSubject]] = {
    Weights: DenseSubject,
    ConvWeights: ConvSubject,
    ImageWeights: ImageSubject,
}


def equilibrium_subject(weights: Record, activation: Activation, normalize: Normalize | None) -> EquilibriumSubject:
    """The subject of the kind of these weights."""
    for record, subject in KINDS.items():
        if isinstance(weights, record):
            return subject.of(weights, activation, normalize)
    if isinstance(weights, RENWeights):
        raise InvalidInput(
            "This is for networks without a state; of a recurrent one, weights().step() are the weights of one step."
        )
    raise InvalidInput(f"Weights must be an lben.Weights or another record of lben's, not {type(weights).__name__}.")
