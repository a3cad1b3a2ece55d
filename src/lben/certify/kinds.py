"""The kinds of weights that can be certified: a new one is a line here."""

from __future__ import annotations

import copy

import torch
from torch import nn

from lben.activations.base import Activation, check_activation
from lben.activations.scalar import ReLU
from lben.certify.convolutional import ConvSubject
from lben.certify.dense import DenseSubject
from lben.certify.image import ImageSubject
from lben.certify.subject import Examined, Subject
from lben.errors import InvalidInput
from lben.weights.convolutional import ConvWeights
from lben.weights.dense import Weights
from lben.weights.image import ImageWeights
from lben.weights.record import Record

KINDS: dict[type[Record], type[Subject]] = {
    Weights: DenseSubject,
    ConvWeights: ConvSubject,
    ImageWeights: ImageSubject,
}


def subject_of(net: Examined, activation: Activation | None = None) -> Subject:
    """A network's weights, activation and normalisation; or bare weights with an activation, ReLU if not given."""
    if isinstance(net, Record):
        sigma = check_activation(ReLU() if activation is None else activation, net.hidden_features)
        return _kind(net).of(net, sigma, None)
    if not (isinstance(net, nn.Module) and callable(getattr(net, "weights", None))):
        advice = ": lben.from_sequential(module) reads it" if isinstance(net, nn.Sequential) else ""
        raise InvalidInput(f"An equilibrium network or lben.Weights is needed, not {type(net).__name__}{advice}.")
    if activation is not None:
        raise InvalidInput("activation is for bare weights: a network has its own.")
    with torch.no_grad():
        weights = net.weights()
    normalize = None if net.normalize is None else copy.deepcopy(net.normalize).to("cpu", torch.float64).validate()
    return _kind(weights).of(weights, net.activation, normalize)


def _kind(weights: object) -> type[Subject]:
    for record, subject in KINDS.items():
        if isinstance(weights, record):
            return subject
    raise InvalidInput(f"Weights must be an lben.Weights or another record of lben's, not {type(weights).__name__}.")
