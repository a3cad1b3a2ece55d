"""One call of a public name, with arguments good and bad: a result or an LbenError, and nothing else.

See one again: `python -m tests.adversary.guard tests.adversary.fuzzing SEED 1 FOLDER`, and FOLDER/results.json.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import lben
from lben import baselines, data, train
from tests.adversary import values
from tests.adversary.guard import TooLong, hurry
from tests.adversary.tally import Tally

_MORE: dict[str, Any] = {
    **{f"train.{name}": getattr(train, name) for name in ("fit", "error_rate", "TrainConfig", "CrossEntropy")},
    **{f"data.{name}": getattr(data, name) for name in ("ImageData", "ClassificationData", "RegressionData")},
    **{f"data.{name}": getattr(data, name) for name in ("pixels", "mnist", "svhn", "Table", "Column", "Target")},
    **{f"data.{name}": getattr(data, name) for name in ("Columns", "read_table", "read_columns", "columns_of")},
    "data.table_data": data.table_data,
    **{f"baselines.{name}": getattr(baselines, name) for name in baselines.__all__},
}
_HOOKS = {  # public for the library's own loops, which call them with objects of their own making
    *("begin", "first_burst", "next_burst", "reshape", "error_bound_for", "rows", "groups", "gain", "reflection"),
    *(
        "total_potential",
        "inject",
        "readout",
        "of",
        "spread",
        "operator",
        "symbols",
        "metric_entries",
        "project",
        "jacobian",
        "contains",
    ),
    *("batch", "test_batches", "errors", "words", "step_size", "automatic_alpha", "require", "cell", "check_fits"),
}
_RARE = {"attack", "train.fit", "baselines.train_lipnn", "lipschitz_lower_bound", "Elementwise", "incremental_gain"}
_PATHS = {"path", "folder", "root"}


@cache
def targets() -> list[tuple[str, Callable[[], Any]]]:
    """Names, and how to get at what they name: functions, classes, and methods of good instances."""
    named = {name: getattr(lben, name) for name in lben.__all__} | _MORE
    found: list[tuple[str, Callable[[], Any]]] = []
    for name, value in named.items():
        if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, BaseException | UserWarning)):
            found += [(name, lambda value=value: value)] * (1 if name in _RARE else 8)  # type: ignore[misc]
    makers = [*values.NETWORKS, *values.ACTIVATIONS, *values.SETS, *values.SOLVERS]
    makers += [values.weights, values.conv_weights, values.images, lambda: lben.Normalize(0.5, 0.5)]
    makers += [lambda: values.lben_net().solve(torch.rand(2, 3)), lambda: lben.certify(values.lben_net())]
    makers += [values.ren, lambda: values.ren().weights(), lambda: lben.Passive(0.1, 0.1)]
    makers += [lambda: train.TrainConfig(), lambda: baselines.LMT(3, 4, 2), values.table, values.columns]
    for make in makers:
        kind = type(make())
        for method in dir(kind):
            function = inspect.getattr_static(kind, method)
            function = getattr(function, "__func__", function)
            own = inspect.isfunction(function) and function.__module__.startswith("lben")
            if own and method not in _HOOKS and (method == "__call__" or not method.startswith("_")):
                found.append((f"{kind.__name__}.{method}", lambda m=make, n=method: getattr(m(), n)))  # type: ignore[misc]
    return found


def arguments(r: Random, function: Any, folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """Values for the parameters of a function; some calls have none that is bad."""
    share = r.choice((0.0, 0.2, 0.4, 0.8))
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or (parameter.default is not parameter.empty and r.random() < 0.5):
            continue
        if name in _PATHS:
            value = values.paths(r, folder)
        elif r.random() < share:
            value = values.bad(r, name)
        else:
            value = values.good(r, name, str(parameter.annotation))
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            positional.append(value)
        else:
            named[name] = value
    return positional, named


def describe(value: Any) -> str:
    if isinstance(value, Tensor):
        layout = "" if value.layout == torch.strided else ", sparse"
        text = f"tensor({str(value.dtype)[6:]}{list(value.shape)}, {value.device}{layout})"
        plain = value.device.type == "cpu" and not layout and 0 < value.numel() < 3
        return text + (f"={value.tolist()}" if plain else "")
    if isinstance(value, nn.Module):
        return type(value).__name__ + "()"
    return repr(value)[:120].replace("\n", " ")


def use(result: Any, r: Random) -> None:
    """Do with a result what anybody would do next."""
    if isinstance(result, lben.EquilibriumNetwork | lben.ConvNetwork) and result.in_features <= 10**6:
        result.eval()(torch.rand(2, result.in_features))
    elif isinstance(result, lben.Activation):
        lben.LBEN(3, 4, 2, gamma=1.0, activation=result)(torch.rand(2, 3))
    elif isinstance(result, lben.Solver) and result.max_iterations <= 10**5:
        net = lben.LBEN(3, 4, 2, gamma=1.0)
        net.solver = result
        net(torch.rand(2, 3)).sum().backward()
    elif isinstance(result, lben.Weights | lben.ConvWeights):
        r.choice((lben.certify, lben.tightest_bound, lben.product_bound))(result)


def trial(seed: int, tally: Tally, folder: Path) -> None:
    """One call, and what follows from it."""
    r = Random(f"call {seed}")
    torch.manual_seed(seed)
    name, get = r.choice(targets())
    function = get()
    positional, named = arguments(r, function, folder)
    inside = [*map(describe, positional), *(f"{key}={describe(value)}" for key, value in named.items())]
    where = f"seed {seed}: {name}({', '.join(inside)})"
    (folder / "current.txt").write_text(where)
    tally.count("calls")
    try:
        hurry(True)
        result = function(*positional, **named)
        if not inspect.isclass(function):
            str(result)
        use(result, r)
        tally.count("answered")
    except lben.LbenError:
        tally.count("refused")
    except TooLong:
        tally.fail(f"{name}: longer than allowed", where)
    except Exception as error:  # everything else is what is looked for
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "tests/adversary" not in f.filename]
        if isinstance(error, TypeError) and not frames:
            tally.count("arguments that Python itself refuses")
        else:
            own = [f for f in frames if "/lben/" in f.filename] or frames or [traceback.extract_stack()[-1]]
            at = f"{Path(own[-1].filename).name}:{own[-1].name}"
            tally.fail(
                f"{name}: {type(error).__name__} at {at}", f"{where}: {type(error).__name__}: {str(error)[:200]}"
            )
    finally:
        hurry(False)
