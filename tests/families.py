"""Counts, by family, the ops and the calls that tests compare with PyTorch, for the README's table."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gradcore
from gradcore import ops
from gradcore.autograd import backward, grad
from gradcore.errors import NoSecondDerivative
from gradcore.ops import all_ops
from gradcore.ops.op import Op
from tests.forms import all_forms
from tests.rows import ROWS, Row, parts, tensors_of

#: By family: the modules of gradcore.ops that declare its ops, and the test modules that call its functions.
FAMILIES: dict[str, tuple[str, str]] = {
    "elementwise": ("elementwise pointwise special activation", "forms_pointwise forms_composed forms_special"),
    "reductions, running sums, sorting": ("reduce scan order", "forms_folds forms_gathered"),
    "linear algebra": ("linalg decompositions factors", "forms_products forms_factors"),
    "shape and index": ("movement arrangement placing", "forms_shapes"),
    "networks": ("normalizers losses norms ctc attention convolution pooling recurrent",
                 "forms_networks forms_layers"),
    "creation and random": ("creation random", ""),
    "updates of optimizers": ("optimizer", "")}


@dataclass(frozen=True)
class Family:
    """One row of the table: numbers of ops and of sample calls."""

    name: str
    ops: int
    #: Ops with a gradient, and with one that can be differentiated again.
    once: int
    twice: int
    #: Calls compared with PyTorch, of ops, and of functions, methods and operators.
    rows: int
    forms: int
    #: Ops that launch a kernel, and those with a kernel in CUDA C++ (None without CuPy).
    launched: int
    cuda: int | None


def declared_in() -> dict[str, str]:
    """The module of gradcore.ops that declares each op; for an in-place form, that of its functional op."""
    found: dict[str, str] = {}
    for info in pkgutil.iter_modules(ops.__path__):
        module = importlib.import_module(f"gradcore.ops.{info.name}")
        tree = ast.parse(Path(str(module.__file__)).read_text())
        imported = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        found |= {v.name: info.name for name, v in vars(module).items() if isinstance(v, Op) and name not in imported
                  and info.name != "in_place"}
    return {name: found.get(name) or found[name.removesuffix("_")] for name in all_ops()}


def refuses(row: Row) -> bool:
    """Whether the call's gradient cannot be differentiated again."""
    inputs = tensors_of(row, dtype=np.float64, grads=True)
    try:
        outputs = [y for y in parts(row.call(inputs)) if y.requires_grad]
        found = grad(outputs, [inputs[k] for k in row.wanted()], [gradcore.ones_like(y) for y in outputs], create_graph=True,
                     allow_unused=True)
        again = [g.sum() for g in found if g is not None and g.requires_grad]
        if again:
            backward(again)
    except NoSecondDerivative:
        return True
    return False


def families() -> list[Family]:
    home = declared_in()
    once_only = {r.op for r in ROWS if r.wanted() and refuses(r)}
    all_forms()
    forms = {name.removeprefix("tests."): len(m.FORMS) for name, m in sys.modules.items() if name.startswith("tests.forms_")}
    own = _own_kernels()

    def rows() -> Iterator[Family]:
        for name, (modules, calls) in FAMILIES.items():
            mine = [op for op in all_ops().values() if home[op.name] in modules.split()]
            once = [op for op in mine if op.differentiable]
            launched = [op for op in mine if not op.view]
            yield Family(name, len(mine), len(once), sum(op.name not in once_only for op in once),
                         sum(r.torch is not None and home[r.op] in modules.split() for r in ROWS),
                         sum(forms[c] for c in calls.split()), len(launched),
                         None if own is None else sum(op.name in own for op in launched))

    return list(rows())


def _own_kernels() -> frozenset[str] | None:
    if importlib.util.find_spec("cupy") is None:
        return None
    return frozenset(importlib.import_module("gradcore.devices.gpu.kernels").KERNELS)


def table() -> str:
    """The README's table. Without CuPy, the last column is unknown."""
    lines = ["| family | ops | with a gradient | with a second one | calls of ops | calls of functions | CUDA kernels |",
             "|---|---|---|---|---|---|---|"]
    found = families()
    counts = [(f.ops, f.once, f.twice, f.rows, f.forms) for f in found]
    kernels = [(f.cuda, f.launched) for f in found]
    rows = [*zip((f.name for f in found), counts, kernels, strict=True),
            ("all", tuple(map(sum, zip(*counts, strict=True))),
             (None if kernels[0][0] is None else sum(own or 0 for own, _ in kernels), sum(n for _, n in kernels)))]
    for name, numbers, (own, launched) in rows:
        cells = [name, *(f"{n:,}" if n else "" for n in numbers), f"{'?' if own is None else own} of {launched}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
