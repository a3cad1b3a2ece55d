"""What to use in place of a module whose bound is not known."""

from __future__ import annotations

from torch import nn

_SLOPES = "use an activation with slopes in [0, 1], such as nn.ReLU or nn.ELU"
_NORMS = "use nn.BatchNorm1d or nn.BatchNorm2d, which are linear in evaluation"
_LISTED = "use one of the modules that help(lben.Sequential) lists"
_KINDS: dict[str, str] = {
    **dict.fromkeys(
        ("Softmax", "Softmax2d", "LogSoftmax"),
        "leave it out, for what is certified are the logits in front of it",
    ),
    "MultiheadAttention": "attention multiplies what depends on its input, so use lben.SLL or lben.LBEN",
    "PReLU": "use nn.LeakyReLU with the slope that was learned",
    "PixelShuffle": _LISTED,
    "Bilinear": "it multiplies what depends on its input, so use nn.Linear",
    **dict.fromkeys(("ModuleList", "ModuleDict", "ParameterList"), "give its modules one by one, as layers in a row"),
}
_ROOMS: dict[str, str] = {
    "activation": _SLOPES,
    **dict.fromkeys(("normalization", "instancenorm", "batchnorm"), _NORMS),
    "pooling": "use nn.AvgPool2d, nn.AdaptiveAvgPool2d, or nn.MaxPool2d with stride = kernel_size",
    "conv": "use nn.Conv2d",
    "dropout": "use nn.Dropout, which does nothing in evaluation either",
    "padding": "use the padding of the nn.Conv2d behind it",
    "rnn": "use lben.REN, or lben.from_rnn for an nn.RNN",
}
"""By the file of torch.nn.modules that a class is from."""


def advice(module: nn.Module) -> str:
    """What to do in place of putting a module into a stack, as the end of a sentence."""
    kind, (home, _, room) = type(module), type(module).__module__.rpartition(".")
    if nn.utils.parametrize.is_parametrized(module):
        return "make its weights plain first, by nn.utils.parametrize.remove_parametrizations"
    special = _special(module)
    if special is not None:
        return special
    if f"{home}.".startswith("torch.nn."):
        return _KINDS.get(kind.__name__) or _ROOMS.get(room, _LISTED)
    if f"{home}.".startswith("lben."):
        return _LISTED
    return "it has code of its own, so read the whole network by lben.read(module, in_shape)"


def _special(module: nn.Module) -> str | None:
    """Of a class that is known, whose options are not."""
    kind = type(module)
    if kind is nn.MaxPool2d and isinstance(module, nn.MaxPool2d):
        return _max_pool(module)
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d):
        return "a batch norm is linear only where it keeps running statistics, so make it with track_running_stats=True"
    if kind is nn.PixelUnshuffle and isinstance(module, nn.PixelUnshuffle):
        return f"use lben.SpaceToDepth({module.downscale_factor}), which is the same"
    if kind is nn.ELU and isinstance(module, nn.ELU):
        return f"make it with an alpha in (0, 1], not {module.alpha}, for slopes must lie in [0, 1]"
    if kind is nn.Hardtanh:
        return "make it with a finite min_val, and a max_val that is not next to it"
    if kind is nn.Softplus and isinstance(module, nn.Softplus):
        return f"make it with beta > 0 and threshold >= 20, not {module.beta} and {module.threshold}"
    return None


def _max_pool(pool: nn.MaxPool2d) -> str:
    if pool.ceil_mode:
        return "make it with ceil_mode=False"
    if pool.return_indices:
        return "make it with return_indices=False"
    if pool.padding not in (0, (0, 0)):
        return "make it with padding=0"
    if pool.dilation not in (1, (1, 1)):
        return "make it with dilation=1"
    return "pools that overlap are not contractions, so use stride = kernel_size"
