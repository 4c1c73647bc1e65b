"""Models: the included ones by name, mlp, cnn and chargpt, and your own.

A model is a function of the batch size that returns a module, a batch and a loss. Write one in a file, such as model.py:

    import numpy as np
    from gradcore import nn

    def build(batch_size):
        net = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))
        x, y = np.zeros((batch_size, 20), "float32"), np.zeros(batch_size, int)
        return net, (x, y), lambda m, x, y: nn.functional.cross_entropy(m(x), y)

It is named model.py:build, or package.module:build if it can be imported, also from the current folder; for a file, ":build" is
the default, and it may import what is beside it. Without a loss, cross-entropy is used.

A batch is a tuple, or a dict whose keys are names of the loss's parameters. Each of its parts is an array, a list, tuple or
dict of arrays, or any other value. Arrays have one row per sample. Instead of a batch, the model may return a function of the
batch size that makes it, in any shapes; to predict a batch that is too large to make, each dimension must be linear in the
number of samples.

Instead of a module it may return a function, as "step, batch": a whole training step, which is called with the parts of the
batch, and has its own optimizers.

The function runs with --device as the default device. If it has parameters named "device" or "dataset", it is given the device,
and the data set of --data, too.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradcore
from gradcore import data
from gradcore.data.dataset import Dataset
from gradcore.data.text import Text
from gradcore.devices.device import Device, get_device
from gradcore.errors import OutOfMemory
from gradcore.models import chargpt, cnn, mlp
from gradcore.models.examples import MADE
from gradcore.models.workload import OwnStep, Workload, as_workload
from gradcore.nn import Module


@dataclass(frozen=True)
class Model:
    """A built-in model: how to build it for a data set and a device, and its default training options."""

    build: Callable[[Any, Any], Workload]
    data: str
    optimizer: str
    lr: float | None = None
    #: The default limit of steps of a run.
    steps: int = 2000


_models = {"mlp": Model(mlp.build, "digits", "sgd"), "cnn": Model(cnn.build, "digits", "sgd"),
           "chargpt": Model(chargpt.build, "python-docs", "adamw", 2e-3, 600)}


def defaults(name: str) -> Model:
    """The model called ``name``, with its default training options; those of the MLP for a user's model."""
    return _models.get(name, _models["mlp"])


def names() -> tuple[str, ...]:
    """The names that :func:`load` knows."""
    return tuple(_models)


def load(name: str, batch_size: int, dataset: str | Dataset | Text | None = None, device: Any = None) -> Workload | OwnStep:
    """The model called ``name``, built for batches of ``batch_size``, or the training step that it is.

    ``dataset`` gives a built-in model its sizes and samples (None for its default data). A user's function gets ``dataset`` and
    ``device`` if it has parameters of these names; it runs with ``device`` as the default device, or, if it cannot, on the CPU,
    and the module is moved; a training step cannot be, so that the first error is raised. Raises ValueError for an unknown name
    or unsuitable data, FileNotFoundError, ImportError or AttributeError for a missing file, module or function, TypeError for a
    function that returns something else.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a positive integer, but got {batch_size!r}")
    if dataset is None:
        dataset = defaults(name).data
    if name in _models:
        return _models[name].build(_loaded(dataset), device)
    function = _find(name)
    if isinstance(function, Module):
        raise TypeError(f"{name} is a module: expected a function of the batch size that returns a module, a batch and a loss "
                        "(see gradcore measure --help)")
    wanted = inspect.signature(function).parameters
    options: dict[str, Any] = {}
    if "dataset" in wanted:
        options["dataset"] = _loaded(dataset)
    if "device" in wanted:
        options["device"] = device
    try:
        inspect.signature(function).bind(batch_size, **options)
    except TypeError as error:
        raise TypeError(f"{name} is called with the batch size, but its arguments do not fit: {error}") from None
    build = lambda: as_workload(function(batch_size, **options), name, batch_size)
    workload = build() if device is None or device == "cpu" else _built_on(get_device(device), name, batch_size, build)
    if device is not None and isinstance(workload, Workload):
        workload.module.to(device)
    return workload


def _loaded(dataset: str | Dataset | Text) -> Dataset | Text:
    return data.load(dataset) if isinstance(dataset, str) else dataset


def takes_data(name: str) -> bool:
    """Does the model called ``name`` depend on a data set? A user's function does if it has a parameter ``dataset``."""
    return name in _models or "dataset" in inspect.signature(_find(name)).parameters


def _built_on(device: Device, name: str, batch_size: int, build: Callable[[], Workload | OwnStep]) -> Workload | OwnStep:
    """What ``build`` returns with ``device`` as the default device, so that weights are created there, as a built-in model's.

    Weights moved from the CPU would leave other gaps in memory, and a prediction would reserve other bytes than a run.
    """
    try:
        with device:
            workload = build()
        if workload.any_size:
            # The example may convert tensors that the function made to NumPy, which fails on a GPU.
            workload.example(min(batch_size, MADE))
        return workload
    except OutOfMemory:
        raise
    except Exception as error:
        # The function may read values, or mix in CPU tensors: below, it runs on the CPU and the module is moved. An error of
        # its own is raised there again. The locals of this one's frames would keep what was allocated.
        traceback.clear_frames(error.__traceback__)
        why = error
    gradcore.empty_cache(device)
    try:
        workload = build()
        if isinstance(workload, OwnStep):
            why.add_note(f"{name} returns a training step, whose tensors cannot be moved, so it is built with {device} as the "
                         "default device; it is given the device, too, if it has a parameter of that name")
            raise why
        return workload
    finally:
        # Its traceback has this frame: a reference cycle.
        del why


def _find(name: str) -> Callable[..., Any]:
    # A path of Windows has a colon, too.
    where, _, function = (name, "", "build") if name.endswith(".py") else name.rpartition(":")
    if not where:
        meant = f"; did you mean {name}.py?" if Path(f"{name}.py").is_file() else ""
        raise ValueError(f"unknown model {name!r}: expected one of {', '.join(names())}, or a function of your own as "
                         f"path/to/file.py:function or package.module:function{meant}")
    module = _run_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    found = getattr(module, function, None)
    if not callable(found):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
        raise AttributeError(f"{where} has no function {function!r}; it has {', '.join(functions) or 'none'}")
    return found


def _run_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"model file not found: {path}")
    spec = importlib.util.spec_from_file_location(f"gradcore_model_{path.stem}", path.resolve())
    assert spec is not None and spec.loader is not None
    folder = str(path.resolve().parent)
    if folder not in sys.path and not sys.flags.safe_path:
        # It may import its neighbors, as a script may. What is in the current folder comes first.
        sys.path.insert(1, folder)
    if sys.modules.pop(spec.name, None) is not None:
        # What the file made when it ran for another batch size is not of this one.
        gc.collect()
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints in the file look up their module by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
