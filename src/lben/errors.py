"""The exceptions of the library: every one is an `LbenError` and also the built-in error that fits."""

from __future__ import annotations

__all__ = [
    "BoundNotMet",
    "ConvergenceWarning",
    "DataNotFound",
    "Diverged",
    "InvalidActivation",
    "InvalidFile",
    "InvalidInput",
    "LbenError",
    "MissingExtra",
    "NotConverged",
    "NotWellPosed",
]


class LbenError(Exception):
    """The parent of every error that lben raises on purpose."""


class InvalidInput(LbenError, ValueError):
    """An argument has a value, shape or dtype that cannot be used."""


class NotFinite(InvalidInput):
    """A number is NaN or infinite: given as one, or become one on the way."""


class InvalidActivation(InvalidInput):
    """A function whose slope leaves [0, 1] was offered as an activation."""


class InvalidFile(LbenError, ValueError):
    """A file is not a model of this library, or not as it was written."""


class DataNotFound(LbenError, FileNotFoundError):
    """A data set is neither at hand nor can it be downloaded; the message says what to put where."""


class MissingExtra(LbenError, ImportError):
    """A function needs a package that is not among the core requirements; the message says what to install."""


class Diverged(LbenError, ArithmeticError):
    """Training left the finite numbers; the message says where, and why."""


class _Measured(LbenError):
    """An error with the number that caused it, which survives pickling."""

    def __init__(self, message: str, number: float) -> None:
        super().__init__(message, number)
        self.number = number

    def __str__(self) -> str:
        return str(self.args[0])


class NotWellPosed(_Measured, ValueError):
    """Weights do not satisfy Condition `W`; `eigenvalue` is the offending one."""

    @property
    def eigenvalue(self) -> float:
        return self.number


class BoundNotMet(_Measured, ValueError):
    """Weights do not satisfy Condition `lipschitz` for gamma; `eigenvalue` is the offending one."""

    @property
    def eigenvalue(self) -> float:
        return self.number


class NotConverged(_Measured, RuntimeError):
    """A solver stopped before its tolerance was met; `residual` is the worst of the batch."""

    @property
    def residual(self) -> float:
        return self.number


class ConvergenceWarning(UserWarning):
    """A solver missed its tolerance and the caller asked to be warned only, or a fallback took over."""
