"""What is to be learned from a table: what its columns say, and which rows are to train on and to test on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lben import checks
from lben.data.columns import MOST_TEXTS, Column, Columns, Target, Task, class_names, whole
from lben.data.records import ClassificationData, RegressionData
from lben.data.tables import Table, check_table, listed, name_list, reads_as_number, shortened
from lben.errors import InvalidInput

_FEW = 20  # different whole numbers that are still classes
_LARGEST = 1e37  # of single precision, with a decade to spare


@dataclass(frozen=True, eq=False)
class TableData:
    """A table to learn from: its columns, its rows as data, and what standardises the network's inputs.

    `table_data` returns it.

    Attributes:
        columns: what the network must know of the table, for `lben.save`.
        data: for `lben.train.fit`; inputs in their own units, targets as `columns` has them.
        mean: of the inputs in the rows to train on, for `lben.Normalize`, of shape (width,), float64; 0 for texts.
        std: the same; 1 for texts.

    Examples:
        >>> import numpy as np
        >>> size = np.arange(10.0)
        >>> found = lben.data.table_data(lben.data.Table({"size": size, "price": 3.5 * size}), ["price"])
        >>> net = lben.LBEN(found.columns.width, 4, found.columns.outputs, gamma=2.0, dtype=torch.float64,
        ...                 normalize=lben.Normalize(found.mean, found.std, dtype=torch.float64))
        >>> lben.save(net, "price.safetensors", columns=found.columns)
    """

    columns: Columns
    data: ClassificationData | RegressionData
    mean: Tensor
    std: Tensor


def columns_of(table: Table, targets: Sequence[str], *, task: Task | None = None) -> Columns:
    """The columns of a table: all that are no targets are inputs.

    Args:
        table: without a gap.
        targets: names of columns; several for regression alone.
        task: "classification" or "regression"; None: seen from the first target: texts, booleans, and whole numbers of
            which at most 20 differ, are classes. Means and stds of targets are those of all rows.

    Returns:
        A `Columns`.

    Raises:
        InvalidInput: for a column that is constant, for a target that is missing or of one class, for texts of which
            more than 100 differ, for a missing value, and where nothing is left as an input.

    Examples:
        >>> table = lben.data.Table({"size": ("1", "2", "3"), "kind": ("cat", "dog", "cat")})
        >>> columns = lben.data.columns_of(table, ["kind"])
        >>> columns.task, columns.classes, columns.width
        ('classification', ('cat', 'dog'), 1)
    """
    check_table(table)
    name_list("targets", targets)
    if task is not None:
        checks.choice("task", task, ("classification", "regression"))
    if not targets:
        raise InvalidInput("A target is needed: the name of the column to predict.")
    if len(set(targets)) < len(targets):
        raise InvalidInput(f"Each target must be named once, but they are {listed(targets)}.")
    for name in targets:
        table.require(name, "the target")
    seen = task or _task(table, targets[0])
    if seen == "classification" and len(targets) > 1:
        raise InvalidInput(f"Classification has one target, but there are {len(targets)}: {listed(targets)}.")
    found = tuple(_target(table, name, seen) for name in targets)
    inputs = tuple(_input(table, name) for name in table.columns if name not in targets)
    if not inputs:
        raise InvalidInput(f"{table.source} has no column beside the target.")
    return Columns(inputs, found)


def table_data(
    table: Table,
    targets: Sequence[str],
    *,
    task: Task | None = None,
    test: Table | None = None,
    holdout: float = 0.2,
    seed: int = 0,
) -> TableData:
    """A table as something to learn from, with a network that standardises its inputs.

    Make the network with ``normalize=Normalize(found.mean, found.std, dtype=torch.float64)`` and
    ``dtype=torch.float64``, and train it by ``fit(net, found.data)``.

    Args:
        table: without a gap.
        targets: as `columns_of` takes them.
        task: as `columns_of` takes it.
        test: another table, whose rows are tested on; None: a share `holdout` of the rows.
        holdout: the share that is kept from training and tested on, between 0 and 1.
        seed: that draws it.

    Returns:
        A `TableData`.

    Raises:
        InvalidInput: for all that `columns_of` refuses, and for a test table that does not fit.

    Examples:
        >>> import numpy as np
        >>> size = np.arange(10.0)
        >>> found = lben.data.table_data(lben.data.Table({"size": size, "price": 3.5 * size}), ["price"], holdout=0.3)
        >>> len(found.data), found.columns.task
        (7, 'regression')
    """
    columns = columns_of(table, targets, task=task)
    x = columns.encode(table)
    if test is None:
        trained, tested = _parts(len(table), holdout, seed)
    else:
        trained, tested = torch.arange(len(table)), torch.arange(0)
    mean, std = _statistics(table, columns, x[trained])
    if columns.task == "regression":
        columns = replace(columns, targets=tuple(_scaled(table, target, trained) for target in columns.targets))
    y = columns.answers(table)
    others = (x[tested], y[tested]) if test is None else (columns.encode(test), columns.answers(test))
    kind = ClassificationData if columns.task == "classification" else RegressionData
    return TableData(columns, kind(x[trained], y[trained], *others), mean, std)


def _parts(count: int, holdout: float, seed: int) -> tuple[Tensor, Tensor]:
    share = checks.number("holdout", holdout)
    if not 0 < share < 1:
        raise InvalidInput(f"holdout must be a share between 0 and 1, not {holdout}.")
    tested = max(1, round(share * count))
    if count - tested < 2:
        raise InvalidInput(f"Of {count} rows, {tested} are kept to test on, and fewer than two are left to train on.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(checks.seed(seed)))
    return order[tested:].sort().values, order[:tested].sort().values


def _statistics(table: Table, columns: Columns, x: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = torch.zeros(columns.width, dtype=torch.float64), torch.ones(columns.width, dtype=torch.float64)
    for column in columns.inputs:
        (first, *_) = place = columns.places[column.name]
        if column.texts is None:
            _check_varies(table, column.name, x[:, first].numpy(), " to train on")
            mean[place], std[place] = x[:, first].mean(), x[:, first].std(correction=0)
    return mean, std


def _scaled(table: Table, target: Target, rows: Tensor) -> Target:
    values = table.numbers(target.name)[rows.numpy()]
    _check_varies(table, target.name, values, " to train on")
    return replace(target, mean=float(values.mean()), std=float(values.std()))


def _task(table: Table, name: str) -> Task:
    values = table.columns[name]
    if not table.numeric(name) or (isinstance(values, np.ndarray) and values.dtype.kind == "b"):
        return "classification"
    numbers = table.numbers(name)
    return "classification" if whole(numbers).all() and len(np.unique(numbers)) <= _FEW else "regression"


def _input(table: Table, name: str) -> Column:
    if table.numeric(name):
        _check_varies(table, name, table.numbers(name))
        return Column(name)
    values = table.texts(name)
    texts = sorted(set(values))
    if len(texts) == 1:
        raise _constant(table, name, shortened(texts[0]))
    if len(texts) > MOST_TEXTS:
        index = next(index for index, value in enumerate(values) if not reads_as_number(value))
        raise InvalidInput(
            f"{table.source}: column {name!r} holds {len(texts)} different texts, and {MOST_TEXTS} is the most; "
            f"the first that is no number is {shortened(values[index])} in row {index + 1}."
        )
    if all(reads_as_number(text.replace(",", ".")) for text in texts):
        raise InvalidInput(
            f"{table.cell(name, 0)}: {shortened(values[0])} has a decimal comma: write a point in this column."
        )
    return Column(name, tuple(texts))


def _target(table: Table, name: str, task: Task) -> Target:
    if task == "regression":
        numbers = table.numbers(name)
        _check_varies(table, name, numbers)
        return Target(name, None, float(numbers.mean()), float(numbers.std()))
    classes = class_names(table, name)
    in_order: Callable[[str], float | str] = float if all(map(reads_as_number, classes)) else str
    known = sorted(set(classes), key=in_order)
    if len(known) == 1:
        raise InvalidInput(
            f"{table.source}: the target {name!r} has one class, {shortened(known[0])}, in every row: there is nothing "
            "to tell apart."
        )
    if len(known) > MOST_TEXTS:
        raise InvalidInput(
            f"{table.source}: the target {name!r} has {len(known)} classes, and {MOST_TEXTS} is the most."
        )
    return Target(name, tuple(known))


def _check_varies(table: Table, name: str, numbers: np.ndarray, which: str = "") -> None:
    """Refuse a column that cannot be standardised; `which` says which rows these are."""
    if (numbers == numbers[0]).all():
        raise _constant(table, name, f"{numbers[0]:g}", which)
    largest = float(np.abs(numbers).max())
    if largest > _LARGEST or numbers.std() < 1 / _LARGEST:
        what = f"numbers as large as {largest:g}" if largest > _LARGEST else "numbers that hardly differ"
        raise InvalidInput(f"{table.source}: column {name!r} holds {what}: use another unit.")


def _constant(table: Table, name: str, value: str, which: str = "") -> InvalidInput:
    return InvalidInput(
        f"{table.source}: column {name!r} is {value} in every row{which}, and tells nothing: leave it out (--ignore)."
    )
