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
    """The parent of every error that lben raises on purpose.

    Each is also the built-in error that fits, such as a ValueError. Warnings are no errors: see `ConvergenceWarning`.

    Examples:
        One clause catches all of them.

        >>> try:
        ...     lben.LBEN(2, 4, 1, gamma=-1.0)
        ... except lben.LbenError as error:
        ...     print(error)
        gamma must be a finite number above 0, not -1.0.
    """


class InvalidInput(LbenError, ValueError):
    """An argument has a value, shape or dtype that cannot be used; the message names it. A ValueError, too.

    Examples:
        To mend it, give what the message asks for.

        >>> net = lben.LBEN(2, 4, 1, gamma=1.0)
        >>> net(torch.zeros(5, 3))
        Traceback (most recent call last):
        ...
        lben.errors.InvalidInput: x must have 2 features in its last dimension, but its shape is (5, 3).
    """


class NotFinite(InvalidInput):
    """A number is NaN or infinite: given as one, or become one on the way."""


class InvalidActivation(InvalidInput):
    """A function whose slope leaves [0, 1] was offered as an activation. An `InvalidInput`, too.

    To mend it, take another function, or scale its argument: sigma(v/s) has slopes that are s times smaller.

    Examples:
        >>> lben.Elementwise(torch.nn.functional.gelu)
        Traceback (most recent call last):
        ...
        lben.errors.InvalidActivation: ...
    """


class InvalidFile(LbenError, ValueError):
    """A file is not a model of this library, or not as it was written. A ValueError, too.

    To mend it, write the file again by `save`, or download it again. Nothing was loaded.

    Examples:
        >>> import pathlib
        >>> _ = pathlib.Path("broken.safetensors").write_text("nothing")
        >>> lben.load("broken.safetensors")
        Traceback (most recent call last):
        ...
        lben.errors.InvalidFile: ...
    """


class DataNotFound(LbenError, FileNotFoundError):
    """A data set is neither at hand nor can it be downloaded; the message says what to put where.

    A FileNotFoundError, too.

    Examples:
        >>> lben.data.mnist(".")
        Traceback (most recent call last):
        ...
        lben.errors.DataNotFound: '.' does not hold MNIST: ...
    """


class MissingExtra(LbenError, ImportError):
    """A function needs a package that is not among the core requirements; the message says what to install.

    An ImportError, too.

    Examples:
        ``pip install 'lben[attacks]'`` mends this one.

        >>> raise lben.MissingExtra("An attack needs the package foolbox: pip install 'lben[attacks]'.")
        Traceback (most recent call last):
        ...
        lben.errors.MissingExtra: An attack needs the package foolbox: pip install 'lben[attacks]'.
    """


class Diverged(LbenError, ArithmeticError):
    """Training left the finite numbers; the message says where, and why. An ArithmeticError, too.

    To mend it, lower the learning rate; the last checkpoint is as it was.

    Examples:
        >>> net = torch.nn.Linear(1, 1)
        >>> x = torch.ones(8, 1)
        >>> recipe = lben.train.TrainConfig(epochs=9, learning_rate=1e30, optimizer="sgd", schedule="constant")
        >>> lben.train.fit(net, (x, 0 * x), recipe, progress=False)
        Traceback (most recent call last):
        ...
        lben.errors.Diverged: ...
    """


class _Measured(LbenError):
    """An error with the number that caused it, which survives pickling."""

    def __init__(self, message: str, number: float) -> None:
        super().__init__(message, number)
        self.number = number

    def __str__(self) -> str:
        return str(self.args[0])


class NotWellPosed(_Measured, ValueError):
    """No metric proves that weights have exactly one equilibrium for every input (Condition `W`). A ValueError, too.

    To mend it, train an `LBEN` or a `MON`, or start from ``LBEN.initialize_from(weights)``.

    Attributes:
        eigenvalue: the offending one.

    Examples:
        >>> free = lben.UnconstrainedEN(2, 4, 1)
        >>> weights = free.weights().detach()
        >>> _ = weights.W.copy_(3 * torch.eye(4))
        >>> lben.tightest_bound(weights)
        Traceback (most recent call last):
        ...
        lben.errors.NotWellPosed: ...
    """

    @property
    def eigenvalue(self) -> float:
        return self.number


class BoundNotMet(_Measured, ValueError):
    """Weights do not satisfy Condition `lipschitz` for gamma. A ValueError, too.

    To mend it, ask for a larger gamma; ``LBEN.initialize_from(weights, gamma)`` moves the weights instead.

    Attributes:
        eigenvalue: the offending one of the matrix that must be positive definite.

    Examples:
        >>> weights = lben.LBEN(2, 4, 1, gamma=5.0).weights()
        >>> lben.LBEN.from_weights(weights, gamma=1e-3)
        Traceback (most recent call last):
        ...
        lben.errors.BoundNotMet: ...
    """

    @property
    def eigenvalue(self) -> float:
        return self.number


class NotConverged(_Measured, RuntimeError):
    """A solver stopped before its tolerance was met. A RuntimeError, too.

    To mend it, raise max_iterations, loosen the tolerance, use float64, or `Newton`; the message says which.

    Attributes:
        residual: the worst of the batch.

    Examples:
        >>> net = lben.LBEN(2, 4, 1, solver=lben.PeacemanRachford(tolerance=1e-6, max_iterations=1)).eval()
        >>> try:
        ...     net(torch.tensor([[1.0, -1.0]]))
        ... except lben.NotConverged as error:
        ...     print(error.residual > 1e-6)
        True
    """

    @property
    def residual(self) -> float:
        return self.number


class ConvergenceWarning(UserWarning):
    """A solver missed its tolerance and the caller asked to be warned only, or a fallback took over.

    Examples:
        In training mode a safe method finds what the solver has not.

        >>> import warnings
        >>> net = lben.LBEN(2, 4, 1, solver=lben.PeacemanRachford(tolerance=1e-6, max_iterations=1))
        >>> with warnings.catch_warnings(record=True) as said:
        ...     warnings.simplefilter("always", lben.ConvergenceWarning)
        ...     solution = net.solve(torch.tensor([[1.0, -1.0]]))
        >>> said[0].category is lben.ConvergenceWarning, solution.method, bool(solution)
        (True, 'PeacemanRachford, then Newton', True)
    """
