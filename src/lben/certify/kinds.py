"""What is examined, as a subject: one equilibrium, or a stack of stages."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from lben import checks
from lben.activations.base import Activation, check_activation
from lben.activations.scalar import Identity, ReLU
from lben.certify.records import equilibrium_subject
from lben.certify.stack import StackSubject
from lben.certify.subject import Examined, Subject
from lben.errors import InvalidInput
from lben.weights.record import Record, same
from lben.weights.stages import Stack


def _kept_stack(net: nn.Module, subject: StackSubject) -> StackSubject:
    """The subject with the links that were examined before, and know their bounds, if nothing changed since."""
    kept: StackSubject | None = getattr(net, "kept_stack", None)
    if kept is not None and same(kept.weights, subject.weights, biases=True):
        return replace(subject, weights=kept.weights, links=kept.links)
    setattr(net, "kept_stack", subject)  # noqa: B010 (a note on the network, which need not know of it)
    return subject


def _advice(net: object) -> str:
    """How a module that is not known becomes a stack, as the end of a sentence."""
    if not isinstance(net, nn.Module):
        return ""
    if isinstance(net, nn.Sequential) and type(net).forward is nn.Sequential.forward:
        return ": make a stack of it, by lben.Sequential(*module)"
    if type(net).__module__.startswith(("torch.nn.", "lben.")):
        return ": put it in a stack, by lben.Sequential(module)"
    return ": lben.read(module, in_shape) makes a stack of it"


def subject_of(net: Examined, activation: Activation | None = None) -> Subject:
    """A network's weights, activation and normalisation; or bare weights with an activation, ReLU if not given."""
    if isinstance(net, Record):
        sigma = check_activation(ReLU() if activation is None else activation, net.hidden_features)
        return equilibrium_subject(net, sigma, None)
    if activation is not None:
        raise InvalidInput("activation is for bare weights: a network has its own.")
    if isinstance(net, Stack):
        return StackSubject.of(net, Identity(), None)
    if not (isinstance(net, nn.Module) and callable(getattr(net, "weights", None))):
        raise InvalidInput(f"An equilibrium network or lben.Weights is needed, not {type(net).__name__}{_advice(net)}.")
    check = checks.untouched if isinstance(net, nn.Sequential) else checks.untouched_within  # stages: as they are read
    check(f"The network, {type(net).__name__},", net)
    with torch.no_grad():
        weights = net.weights()
    normalize = None if net.normalize is None else copy.deepcopy(net.normalize).to("cpu", torch.float64).validate()
    if isinstance(weights, Stack):
        return _kept_stack(net, StackSubject.of(weights, Identity(), normalize))
    own = check_activation(getattr(net, "activation", None), weights.hidden_features)  # type: ignore[arg-type]
    return equilibrium_subject(weights, own, normalize)
