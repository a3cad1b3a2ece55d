"""Tables: named columns of numbers or texts, from CSV, npz and Parquet files, without a gap anywhere."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from lben.checks import need
from lben.errors import InvalidFile, InvalidInput

Values = np.ndarray | tuple[str, ...]
"""The values of a column: float64 or bool, or texts, which those of a CSV file all are."""

_MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"}
_DELIMITERS = ",;\t|"


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length by their names, and a name for the whole; rows are counted from 1.

    Args:
        columns: numpy arrays of one dimension, or sequences of texts. A text may be a number in writing, and counts as
            one where numbers are wanted, or where all of a column are. What a column holds is looked at when it is
            used.
        source: what messages call the table, such as its file.

    Raises:
        InvalidInput: for a name that is empty, unprintable or there twice, for columns of different lengths, and for a
            table without rows.

    Examples:
        >>> table = lben.data.Table({"size": ("1", "2.5"), "colour": ("red", "blue")})
        >>> len(table), table.numbers("size"), table.numeric("colour")
        (2, array([1. , 2.5]), False)
    """

    columns: Mapping[str, Values]
    source: str = "The table"

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping) or not isinstance(self.source, str):
            raise InvalidInput("A Table is made of columns by their names, and a text that names it.")
        _check_names(self.source, list(self.columns))
        made = {name: _values(self.source, name, values) for name, values in self.columns.items()}
        first = next(iter(made))
        for name, values in made.items():
            if len(values) != len(made[first]):
                raise InvalidInput(
                    f"{self.source}: column {name!r} has {len(values)} rows, but {first!r} has {len(made[first])}."
                )
        if len(made[first]) == 0:
            raise InvalidInput(f"{self.source} has no rows.")
        object.__setattr__(self, "columns", made)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def require(self, name: str, purpose: str) -> None:
        """Pass a column that is there.

        Args:
            name: of the column.
            purpose: that it is needed for, which the error names.

        Raises:
            InvalidInput: if it is not there.
        """
        if not isinstance(name, str) or name not in self.columns:
            raise InvalidInput(f"{self.source} has no column {name!r}, {purpose}: it has {listed(self.columns)}.")

    def _column(self, name: str) -> Values:
        self.require(name, "which was asked for")
        return self.columns[name]

    def without(self, names: Sequence[str]) -> Table:
        """The table without some columns.

        Args:
            names: of columns that must be there.

        Returns:
            Another table.

        Raises:
            InvalidInput: if one is not there, or none is left.
        """
        for name in name_list("names", names):
            self.require(name, "which was to be ignored")
        left = {name: values for name, values in self.columns.items() if name not in names}
        if not left:
            raise InvalidInput(f"{self.source} has no columns left when {listed(names)} are ignored.")
        return Table(left, self.source)

    def numeric(self, name: str) -> bool:
        """Whether a column holds numbers, be they in writing; missing ones are among them.

        Args:
            name: of the column.

        Returns:
            A truth value.
        """
        values = self._column(name)
        if isinstance(values, np.ndarray):
            return True
        return all(_number(value) is not None or _missing(value) for value in values)

    def numbers(self, name: str) -> np.ndarray:
        """A column as numbers.

        Args:
            name: of the column.

        Returns:
            An array of float64.

        Raises:
            InvalidInput: naming the first value that is missing, or no finite number.
        """
        values = self._column(name)
        if isinstance(values, np.ndarray):
            if values.dtype.kind not in "biuf":
                raise InvalidInput(f"{self.source}: column {name!r} holds neither numbers nor texts ({values.dtype}).")
            made = values.astype(np.float64)
        else:
            made = np.array([self._written(name, index, value) for index, value in enumerate(values)])
        wrong = ~np.isfinite(made)
        if wrong.any():
            index = int(wrong.argmax())
            what = "the value is missing" if np.isnan(made[index]) else f"{made[index]} is not a finite number"
            raise InvalidInput(f"{self.cell(name, index)}: {what}.")
        return made

    def _written(self, name: str, index: int, value: str) -> float:
        self._there(name, index, value)
        number = _number(value)
        if number is None:
            point = _number(value.replace(",", ".")) is not None
            advice = ": write a point for the decimal comma" if point else ""
            raise InvalidInput(f"{self.cell(name, index)}: {shortened(value)} is not a number{advice}.")
        return number

    def texts(self, name: str) -> tuple[str, ...]:
        """A column of texts.

        Args:
            name: of the column.

        Returns:
            A tuple of texts.

        Raises:
            InvalidInput: naming the first that is missing, or if the column holds numbers.
        """
        values = self._column(name)
        if isinstance(values, np.ndarray):
            kind = "numbers" if values.dtype.kind in "biuf" else values.dtype
            raise InvalidInput(f"{self.source}: column {name!r} must hold texts, but holds {kind}.")
        for index, value in enumerate(values):
            self._there(name, index, value)
        return values

    def _there(self, name: str, index: int, value: str) -> None:
        if _missing(value):
            what = f" ({value!r} counts as that)" if value.strip() else ""
            raise InvalidInput(f"{self.cell(name, index)}: the value is missing{what}.")

    def cell(self, name: str, index: int) -> str:
        """A place in words.

        Args:
            name: of the column.
            index: of the row, from 0.

        Returns:
            A short text.
        """
        return f"{self.source}, row {index + 1}, column {name!r}"


def read_table(path: str | os.PathLike[str]) -> Table:
    r"""Read a table from a file whose name ends in .csv or .tsv, .npz, or .parquet (extra `parquet`).

    CSV is UTF-8, with or without a byte order mark; the first line has the names of the columns; cells are separated by
    commas, semicolons, tabs or bars, whichever the first line has most of, and may be quoted. Of npz every array of one
    dimension is a column; a matrix X gives the columns X0, X1, and so on; no pickles. Parquet has columns of booleans,
    whole or floating-point numbers, or strings. Missing values (empty, NaN, null, NA, N/A, None or ?) are refused by
    row and column when they are used.

    Args:
        path: of the file.

    Returns:
        A `Table`.

    Raises:
        InvalidInput: for what the table says.
        InvalidFile: where it cannot be read.

    Examples:
        >>> import pathlib
        >>> _ = pathlib.Path("rooms.csv").write_text("size,price\n20,100\n35,180\n")
        >>> table = lben.data.read_table("rooms.csv")
        >>> list(table.columns), table.numbers("price")
        (['size', 'price'], array([100., 180.]))
    """
    try:
        file = Path(path)
        if not file.is_file():
            raise InvalidInput(f"{str(path)!r} is not a file.")
    except (OSError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path!r} is not a file.") from error
    readers = {".csv": _csv, ".tsv": _csv, ".npz": _npz, ".parquet": _parquet}
    read = readers.get(file.suffix.lower())
    if read is None:
        raise InvalidInput(f"{str(path)!r} is not a table: its name must end in {', '.join(readers)}.")
    names, columns = read(file)
    _check_names(str(path), names)
    return Table(dict(zip(names, columns, strict=True)), str(path))


def listed(names: Any) -> str:
    """The first names in quotes, and how many more there are."""
    known = [repr(name) for name in names]
    return ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")


def name_list(what: str, names: Sequence[str]) -> list[str]:
    """The names of some columns."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{what} must be a list of names of columns, not {names!r}.")
    return list(names)


def check_table(table: Table) -> Table:
    """`table` if it is one."""
    if not isinstance(table, Table):
        raise InvalidInput(f"A table is needed, an lben.data.Table, not {type(table).__name__}.")
    return table


def shortened(value: str) -> str:
    """A text in quotes, of which a long one shows its beginning."""
    return repr(value if len(value) <= 40 else f"{value[:40]}...")


def reads_as_number(text: str) -> bool:
    """Whether a text is a number in writing."""
    return _number(text) is not None


def _csv(path: Path) -> tuple[list[str], list[Any]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{path} is not UTF-8 text: byte {error.start} is no part of any letter.") from error
    except OSError as error:
        raise InvalidFile(f"{path} cannot be read: {error.strerror or error}.") from error
    lines = StringIO(text, newline="")
    first = next(lines, "").strip("\r\n")
    try:
        # the one that finds the most cells in the first line; the earlier of two
        delimiter = max(_DELIMITERS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
        rows = [
            [cell.strip() for cell in row]
            for row in csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
        ]
    except csv.Error as error:
        raise InvalidFile(f"{path} is no CSV file: {error}.") from error
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise InvalidInput(f"{path} is empty.")
    names, cells = rows[0], rows[1:]
    if names and all(_number(name) is not None for name in names):
        raise InvalidInput(f"The first line of {path} must have the names of the columns, but has {listed(names)}.")
    for index, row in enumerate(cells):
        if len(row) != len(names):
            raise InvalidInput(f"{path}, row {index + 1} has {len(row)} cells, but there are {len(names)} columns.")
    return names, [tuple(column) for column in zip(*cells, strict=True)] if cells else [()] * len(names)


def _npz(path: Path) -> tuple[list[str], list[Any]]:
    names: list[str] = []
    columns: list[Any] = []
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except Exception as error:  # numpy raises whatever the damage leads to, and for pickles
        raise InvalidFile(f"{path} cannot be read as arrays: {error}") from error
    for name, array in found.items():
        if array.ndim == 2:
            names += [f"{name}{number}" for number in range(array.shape[1])]
            columns += list(array.T)
        elif array.ndim == 1:
            names.append(name)
            columns.append(array)
        else:
            raise InvalidInput(f"{path}: array {name!r} has {array.ndim} dimensions; a column has 1, and columns 2.")
    return names, columns


def _parquet(path: Path) -> tuple[list[str], list[Any]]:
    parquet = need("pyarrow.parquet", "A table in Parquet", extra="parquet")
    types = need("pyarrow.types", "A table in Parquet", extra="parquet")
    known = (types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string)
    try:
        table = parquet.ParquetFile(path).read()
        names, columns = list(table.column_names), []
        for column in table.columns:
            kind = column.type.value_type if types.is_dictionary(column.type) else column.type
            readable = any(fits(kind) for fits in known)
            columns.append(_plain(column.to_pylist()) if readable else np.empty(len(column), object))
    except Exception as error:  # pyarrow raises whatever the damage leads to
        raise InvalidFile(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from error
    return names, columns


def _plain(values: list[Any]) -> Values:
    """Values of one type as an array or as texts; what is missing as NaN, or as an empty text."""
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, str) for value in there):
        return tuple("" if value is None else value for value in values)
    if there and len(there) == len(values) and all(isinstance(value, bool) for value in there):
        return np.array(values)
    return np.array([math.nan if value is None else float(value) for value in values])


def _check_names(source: str, names: list[Any]) -> None:
    if not names:
        raise InvalidInput(f"{source} has no columns.")
    seen = set()
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InvalidInput(f"{source}: column {index + 1} has no name of printable letters, but {name!r}.")
        if name in seen:
            raise InvalidInput(f"{source} has two columns named {name!r}.")
        seen.add(name)


def _values(source: str, name: str, values: Any) -> Values:
    """The values of a column: an array of one dimension, but of texts a tuple."""
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return tuple(values.tolist()) if values.dtype.kind == "U" else values
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        return tuple(values)
    raise InvalidInput(f"{source}: column {name!r} must be an array of one dimension or texts, one a row.")


def _missing(text: str) -> bool:
    return text.strip().lower() in _MISSING


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
