"""The exceptions of the library: every one is an `LbenError` and also the built-in error that fits."""

from __future__ import annotations

__all__ = [
    "BoundNotMet",
    "ConvergenceWarning",
    "InvalidActivation",
    "InvalidFile",
    "InvalidInput",
    "LbenError",
    "NotConverged",
    "NotWellPosed",
]


class LbenError(Exception):
    """The parent of every error that lben raises on purpose."""


class InvalidInput(LbenError, ValueError):
    """An argument has a value, shape or dtype that cannot be used."""


class InvalidActivation(InvalidInput):
    """A function whose slope leaves [0, 1] was offered as an activation."""


class InvalidFile(LbenError, ValueError):
    """A file is not a model of this library, or not as it was written."""


class NotWellPosed(LbenError, ValueError):
    """Weights do not satisfy Condition `W`; `eigenvalue` is the offending one."""

    def __init__(self, message: str, eigenvalue: float) -> None:
        super().__init__(message)
        self.eigenvalue = eigenvalue


class BoundNotMet(LbenError, ValueError):
    """Weights do not satisfy Condition `lipschitz` for gamma; `eigenvalue` is the offending one."""

    def __init__(self, message: str, eigenvalue: float) -> None:
        super().__init__(message)
        self.eigenvalue = eigenvalue


class NotConverged(LbenError, RuntimeError):
    """A solver stopped before its tolerance was met; `residual` is the worst of the batch."""

    def __init__(self, message: str, residual: float) -> None:
        super().__init__(message)
        self.residual = residual


class ConvergenceWarning(UserWarning):
    """A solver missed its tolerance and the caller asked to be warned only, or a fallback took over."""
