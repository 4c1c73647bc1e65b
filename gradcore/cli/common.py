"""Options, devices and optimizers that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import gradcore
from gradcore import data, models
from gradcore.devices.availability import choose_device
from gradcore.devices.device import Device, get_device
from gradcore.models.registry import takes_data

T = TypeVar("T")

#: By name of an optimizer: a learning rate that suits the models here.
RATES = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of an argument whose ValueError is what the user reads."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


@argument
def positive(text: str) -> int:
    """An argument that is an int of at least 1."""
    with suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise ValueError(f"expected an integer of at least 1, but got {text!r}")


def positives(text: str) -> list[int]:
    """An argument such as ``16,32,64``."""
    return [positive(part) for part in text.split(",")]


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--optimizer", choices=tuple(RATES), help="sgd has momentum 0.9; the default depends on the model")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed for weights, batches and dropout (default 0)")
    add_json(parser)


def add_measured(parser: argparse.ArgumentParser, steps: str) -> None:
    """The arguments of commands that measure the first steps of a model; ``steps`` says what they do with ``--steps``."""
    parser.add_argument("model", metavar="MODEL", help=f"{', '.join(models.names())}, path/to/file.py:function or "
                        "package.module:function")
    parser.add_argument("--data", help="data set that sets the sizes of an included model (default: the one it is trained on)")
    parser.add_argument("--steps", type=positive, default=3, metavar="N", help=f"{steps} (default 3); the highest peak counts")
    add_common(parser)


def data_of(options: argparse.Namespace) -> Any:
    """The data set that the options choose, or that is usual for the model."""
    return data.load(options.data or models.defaults(options.model).data)


def data_to_measure(options: argparse.Namespace) -> Any:
    """As :func:`data_of`, for commands that measure. Raises ValueError for an option that would have no effect."""
    if options.data is not None and not takes_data(options.model):
        raise ValueError(f"--data has no effect on {options.model}, which makes its own batches and has no parameter 'dataset'")
    return data_of(options)


def pick_device(name: str) -> tuple[Device, str | None]:
    """The device for an option, and a note for the user about the choice, or None."""
    return (get_device(name), None) if name == "meta" else choose_device(name)


def make_optimizer(name: str, parameters: Iterable[Any], rate: float | None = None) -> Any:
    lr = RATES[name] if rate is None else rate
    if name == "sgd":
        return gradcore.optim.SGD(parameters, lr=lr, momentum=0.9)
    return (gradcore.optim.Adam if name == "adam" else gradcore.optim.AdamW)(parameters, lr=lr)
