"""What a network knows of the table it learned from: its columns, what they hold, and its targets."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lben import checks
from lben.data.tables import Table, check_table, listed, shortened
from lben.described import take
from lben.disk import WRONG, read_tensors
from lben.errors import InvalidFile, InvalidInput

Task = Literal["classification", "regression"]
MOST_TEXTS = 100
"""Different texts of a column, and classes of a target, at most."""
_LARGEST = 2.0**53  # whole number that a double tells from its neighbours


@dataclass(frozen=True)
class Column:
    """A column of inputs: numbers, or one of some texts, each of which becomes an entry that is 0 or 1.

    Args:
        name: as the table has it.
        texts: from 2 to 100 different ones, in the order of their entries; None for a column of numbers.

    Raises:
        InvalidInput: for another name or other texts.

    Examples:
        >>> lben.data.Column("colour", ("blue", "red")).width, lben.data.Column("size").width
        (2, 1)
    """

    name: str
    texts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.texts is not None:
            _check_texts(self.name, self.texts)

    @property
    def width(self) -> int:
        """How many of the network's inputs it is."""
        return 1 if self.texts is None else len(self.texts)


@dataclass(frozen=True)
class Target:
    """What is predicted: one of some classes, or a number.

    Args:
        name: as the table has it.
        classes: from 2 to 100 different ones, in the order of the network's outputs; None for numbers.
        mean: the network's output is (value - mean)/std, for numbers.
        std: above 0, for numbers.

    Raises:
        InvalidInput: for values outside these ranges, or classes with a mean or a std.

    Examples:
        >>> lben.data.Target("price", mean=10.0, std=2.0).classes is None
        True
    """

    name: str
    classes: tuple[str, ...] | None = None
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not math.isfinite(checks.number("mean", self.mean)):
            raise InvalidInput(f"mean must be a finite number, not {self.mean}.")
        checks.positive("std", self.std)
        if self.classes is not None:
            _check_texts(self.name, self.classes)
            if (self.mean, self.std) != (0.0, 1.0):
                raise InvalidInput(f"The target {self.name!r} has classes, and so neither a mean nor a std.")


@dataclass(frozen=True)
class Columns:
    """The columns of a network's inputs, in its order, and its targets: one with classes, or some of numbers.

    A table is read by the names of its columns: their order there does not matter, and others are ignored.

    Args:
        inputs: at least one `Column`.
        targets: at least one `Target`; several must all be numbers.

    Raises:
        InvalidInput: if there are none, two have one name, or one of several targets has classes.

    Examples:
        >>> columns = lben.data.Columns((lben.data.Column("size"), lben.data.Column("colour", ("blue", "red"))),
        ...                             (lben.data.Target("price"),))
        >>> columns.encode(lben.data.Table({"colour": ("red",), "size": ("2.5",)}))
        tensor([[2.5000, 0.0000, 1.0000]], dtype=torch.float64)
        >>> columns.places
        {'size': [0], 'colour': [1, 2]}
    """

    inputs: tuple[Column, ...]
    targets: tuple[Target, ...]

    def __post_init__(self) -> None:
        for name, kind in (("inputs", Column), ("targets", Target)):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or not parts or not all(isinstance(part, kind) for part in parts):
                raise InvalidInput(
                    f"{name} must be a tuple of at least one {kind.__name__}, not {shortened(repr(parts))}."
                )
        names = self.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"There are two columns named {twice!r}.")
        if len(self.targets) > 1 and any(target.classes is not None for target in self.targets):
            raise InvalidInput("Several targets must all be numbers, but one of them has classes.")

    @property
    def names(self) -> list[str]:
        """Those of inputs and targets."""
        return [column.name for column in self.inputs] + [target.name for target in self.targets]

    @property
    def task(self) -> Task:
        return "regression" if self.targets[0].classes is None else "classification"

    @property
    def classes(self) -> tuple[str, ...]:
        """Those of the target; none for regression."""
        return self.targets[0].classes or ()

    @property
    def width(self) -> int:
        """The number of the network's inputs."""
        return sum(column.width for column in self.inputs)

    @property
    def outputs(self) -> int:
        """The number of the network's outputs."""
        return len(self.classes) or len(self.targets)

    @property
    def places(self) -> dict[str, list[int]]:
        """The numbers of the network's inputs that each column is."""
        ends = np.cumsum([column.width for column in self.inputs]).tolist()
        return {
            column.name: list(range(end - column.width, end)) for column, end in zip(self.inputs, ends, strict=True)
        }

    def encode(self, table: Table) -> Tensor:
        """The inputs of a table as rows of numbers in their own units, and texts as 0 and 1.

        Args:
            table: with all columns of inputs.

        Returns:
            A tensor of shape (rows, width), float64.

        Raises:
            InvalidInput: with row and column, for a column that is not there or a value that does not fit.
        """
        checks.affordable("The table", len(check_table(table)), self.width)
        for column in self.inputs:
            table.require(column.name, "which the network takes")
        return torch.cat([torch.from_numpy(_encoded(table, column)) for column in self.inputs], dim=1)

    def answers(self, table: Table) -> Tensor:
        """The targets of a table as the network is to give them.

        Args:
            table: with all targets.

        Returns:
            Classes by number, of shape (rows,); or (value - mean)/std, of shape (rows, targets), float64.

        Raises:
            InvalidInput: with row and column, for a column that is not there or a value that does not fit.
        """
        check_table(table)
        for target in self.targets:
            table.require(target.name, "the target")
        if self.task == "classification":
            return torch.tensor(_labels(table, self.targets[0]))
        values = np.stack([table.numbers(target.name) for target in self.targets], axis=1)
        mean, std = (np.array([getattr(target, name) for target in self.targets]) for name in ("mean", "std"))
        return torch.from_numpy((values - mean) / std)

    def unused(self, table: Table) -> list[str]:
        """The columns of a table that are neither inputs nor targets.

        Args:
            table: any.

        Returns:
            Their names.
        """
        return [name for name in check_table(table).columns if name not in self.names]

    def check_fits(self, in_features: int, out_features: int) -> None:
        """Refuse a network of other sizes.

        Args:
            in_features: of the network.
            out_features: of the network.

        Raises:
            InvalidInput: if they are others.
        """
        if (in_features, out_features) != (self.width, self.outputs):
            raise InvalidInput(
                f"These columns are {self.width} inputs and {self.outputs} outputs, but the network has {in_features} "
                f"and {out_features}."
            )

    def describe(self) -> dict[str, Any]:
        """All of it in plain values, as JSON has them.

        Returns:
            A dictionary.
        """
        return {
            "inputs": [
                {"name": column.name, "texts": None if column.texts is None else list(column.texts)}
                for column in self.inputs
            ],
            "targets": [
                {
                    "name": target.name,
                    "classes": None if target.classes is None else list(target.classes),
                    "mean": target.mean,
                    "std": target.std,
                }
                for target in self.targets
            ],
        }

    @classmethod
    def read(cls, description: Any) -> Columns:
        """The columns that `describe` describes.

        Args:
            description: a dictionary.

        Returns:
            A `Columns`.

        Raises:
            LbenError: for anything else.
        """
        parts = take("columns", description, "inputs", "targets")
        for part in parts:
            if not isinstance(part, list):
                raise InvalidFile(f"inputs and targets must be lists, not {shortened(repr(part))}.")
        inputs = [take("an input", part, "name", "texts") for part in parts[0]]
        targets = [take("a target", part, "name", "classes", "mean", "std") for part in parts[1]]
        return cls(
            tuple(Column(name, _tuple(texts)) for name, texts in inputs),
            tuple(Target(name, _tuple(classes), mean, std) for name, classes, mean, std in targets),
        )


def read_columns(path: str | os.PathLike[str]) -> Columns | None:
    """The columns in a file that ``lben.save(net, path, columns=...)`` wrote.

    Args:
        path: of the file.

    Returns:
        A `Columns`; None if the file was written without any.

    Raises:
        InvalidFile: for anything that is no such file.

    Examples:
        >>> columns = lben.data.Columns((lben.data.Column("size"),), (lben.data.Target("price"),))
        >>> lben.save(lben.LBEN(1, 4, 1, gamma=1.0), "price.safetensors", columns=columns)
        >>> lben.data.read_columns("price.safetensors") == columns
        True
    """
    description, _ = read_tensors(path, "lben", "a network")
    if description.get("columns") is None:
        return None
    try:
        return Columns.read(description["columns"])
    except WRONG as error:
        raise InvalidFile(f"{path} does not describe its columns: {error}") from error


def whole(numbers: np.ndarray) -> np.ndarray:
    """Which of them are whole numbers, as doubles tell them apart."""
    found: np.ndarray = (numbers == np.floor(numbers)) & (np.abs(numbers) < _LARGEST)
    return found


def class_names(table: Table, name: str) -> list[str]:
    """What a target is called in each row; whole numbers as such, whatever their writing."""
    values = table.columns[name]
    if isinstance(values, np.ndarray) and values.dtype.kind == "b":
        return [str(bool(value)) for value in values]
    if not table.numeric(name):
        return list(table.texts(name))
    numbers = table.numbers(name)
    wrong = ~whole(numbers)
    if wrong.any():
        index = int(wrong.argmax())
        raise InvalidInput(f"{table.cell(name, index)}: {numbers[index]:g} is neither a text nor a whole number.")
    return [str(int(number)) for number in numbers]


def _labels(table: Table, target: Target) -> list[int]:
    """The number of each row's class, by its text as it is, or else as a whole number."""
    known = {text: number for number, text in enumerate(target.classes or ())}
    values = table.columns[target.name]
    texts = list(values) if isinstance(values, tuple) and set(values) <= set(known) else class_names(table, target.name)
    for index, text in enumerate(texts):
        if text not in known:
            raise InvalidInput(f"{table.cell(target.name, index)}: {shortened(text)} is not among {listed(known)}.")
    return [known[text] for text in texts]


def _encoded(table: Table, column: Column) -> np.ndarray:
    if column.texts is None:
        return table.numbers(column.name)[:, None]
    known = {text: number for number, text in enumerate(column.texts)}
    values = table.texts(column.name)
    for index, value in enumerate(values):
        if value not in known:
            raise InvalidInput(f"{table.cell(column.name, index)}: {shortened(value)} is not among {listed(known)}.")
    return np.eye(len(known))[[known[value] for value in values]]


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidInput(f"A column needs a name of printable letters, not {shortened(repr(name))}.")


def _check_texts(name: str, texts: Any) -> None:
    if not isinstance(texts, tuple) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidInput(f"The texts of column {name!r} must be a tuple of texts, not {shortened(repr(texts))}.")
    if not 2 <= len(set(texts)) == len(texts) <= MOST_TEXTS:
        raise InvalidInput(
            f"Column {name!r} must have from 2 to {MOST_TEXTS} texts, all different, but has {len(texts)} of which "
            f"{len(set(texts))} differ."
        )


def _tuple(texts: Any) -> Any:
    return tuple(texts) if isinstance(texts, list) else texts
