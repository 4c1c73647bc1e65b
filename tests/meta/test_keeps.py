"""What each op keeps for its gradient: the table, and that a run keeps exactly that."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

import gradcore
from gradcore.events import Drop, Keep, typed
from gradcore.ops import all_ops
from gradcore.ops.op import op
from gradcore.overwriting import OVERWRITING
from tests.conftest import raises
from tests.rows import ROWS, Operand, Row, parts

#: For each differentiable input: the inputs and results that are kept until backward.
KEEPS: dict[str, dict[str, str]] = {
    "fill_": {"x": ""},
    "clone": {"x": ""},
    "cast": {"x": ""},
    "copy_": {"x": "", "source": ""},
    "view": {"x": ""},
    "permute": {"x": ""},
    "expand": {"x": ""},
    "slice": {"x": ""},
    "slice_grad": {"dy": ""},
    "as_strided": {"x": ""},
    "as_strided_grad": {"dy": ""},
    "cleared": {"x": ""},
    "write_part": {"x": "", "part": ""},
    "sum_to_shape": {"x": ""},
    "cat": {"tensors": ""},
    "split": {"x": ""},
    "take": {"x": "index"},
    "take_grad": {"dy": "index"},
    "put_": {"x": "index", "values": "index"},
    "take_along": {"x": "index"},
    "take_along_grad": {"dy": "index"},
    "add": {"x": "", "y": ""},
    "sub": {"x": "", "y": ""},
    "mul": {"x": "y", "y": "x"},
    "div": {"x": "y", "y": "x y"},
    "neg": {"x": ""},
    "reciprocal": {"x": "out"},
    "remainder": {"x": "", "y": "x y"},
    "pow": {"x": "x y", "y": "x y out"},
    "maximum": {"x": "x y", "y": "x y"},
    "minimum": {"x": "x y", "y": "x y"},
    "abs": {"x": "x"},
    "sign": {"x": ""},
    "floor": {"x": ""},
    "ceil": {"x": ""},
    "round": {"x": ""},
    "exp": {"x": "out"},
    "expm1": {"x": "out"},
    "log": {"x": "x"},
    "log1p": {"x": "x"},
    "log2": {"x": "x"},
    "log10": {"x": "x"},
    "sqrt": {"x": "out"},
    "rsqrt": {"x": "out"},
    "square": {"x": "x"},
    "sin": {"x": "x"},
    "cos": {"x": "x"},
    "tan": {"x": "out"},
    "sinh": {"x": "x"},
    "cosh": {"x": "x"},
    "arctan": {"x": "x"},
    "where": {"x": "condition", "y": "condition"},
    "clamp": {"x": "x low high", "low": "x low high", "high": "x low high"},
    "exp2": {"x": "out"},
    "arcsin": {"x": "x"},
    "arccos": {"x": "x"},
    "arcsinh": {"x": "x"},
    "arccosh": {"x": "x"},
    "arctanh": {"x": "x"},
    "erfc": {"x": "x"},
    "lgamma": {"x": "x"},
    "digamma": {"x": "x"},
    "polygamma": {"x": "x"},
    "erfinv": {"x": "out"},
    "sinc": {"x": "x"},
    "logit": {"x": "x"},
    "trunc": {"x": ""},
    "frac": {"x": ""},
    "nan_to_num": {"x": "x"},
    "fmod": {"x": "", "y": "x y"},
    "fmax": {"x": "x y", "y": "x y"},
    "fmin": {"x": "x y", "y": "x y"},
    "arctan2": {"x": "x y", "y": "x y"},
    "hypot": {"x": "x out", "y": "y out"},
    "logaddexp": {"x": "x y", "y": "x y"},
    "xlogy": {"x": "x y", "y": "x y"}, "xlog1py": {"x": "x y", "y": "x y"},
    "lerp": {"x": "weight", "y": "weight", "weight": "x y"},
    "addcmul": {"x": "", "y": "z", "z": "y"},
    "addcdiv": {"x": "", "y": "z", "z": "y z"},
    "masked_fill_": {"x": "mask", "value": "mask"},
    "silu": {"x": "x"},
    "silu_grad": {"dy": "x", "x": "dy x"},
    "mish": {"x": "x"},
    "mish_grad": {"dy": "x", "x": "dy x"},
    "softsign": {"x": "x"},
    "softsign_grad": {"dy": "x", "x": "dy x"},
    "logsigmoid": {"x": "x"},
    "logsigmoid_grad": {"dy": "x", "x": "dy x"},
    "hardsigmoid": {"x": "x"},
    "hardsigmoid_grad": {"dy": "x"},
    "hardswish": {"x": "x"},
    "hardswish_grad": {"dy": "x", "x": "dy x"},
    "leaky_relu": {"x": "x slope", "slope": "x"},
    "leaky_relu_grad": {"dy": "x slope", "slope": "dy x"},
    "hardshrink": {"x": "x lambd"},
    "softshrink": {"x": "x lambd"},
    "shrink_grad": {"dy": "x lambd"},
    "threshold": {"x": "x threshold"},
    "elu": {"x": "x"},
    "elu_grad": {"dy": "x", "x": "dy x"},
    "softplus": {"x": "x"},
    "softplus_grad": {"dy": "x", "x": "dy x"},
    "hardtanh": {"x": "out"},
    "hardtanh_grad": {"dy": "x"},
    "relu": {"x": "out"},
    "relu_grad": {"dy": "x"},
    "tanh": {"x": "out"},
    "tanh_grad": {"dy": "x", "x": "dy x"},
    "sigmoid": {"x": "out"},
    "sigmoid_grad": {"dy": "x", "x": "dy x"},
    "erf": {"x": "x"},
    "gelu": {"x": "x"},
    "gelu_grad": {"dy": "x", "x": "dy x"},
    "matmul": {"a": "b", "b": "a"},
    "linear": {"x": "weight", "weight": "x", "bias": ""},
    "linear_grad": {"dy": "dy x weight", "x": "dy x weight", "weight": "dy x weight"},
    "sum": {"x": ""},
    "mean": {"x": ""},
    "amax": {"x": "x out"},
    "amin": {"x": "x out"},
    "max_with_index": {"x": "indices"},
    "min_with_index": {"x": "indices"},
    "logsumexp": {"x": "x out"},
    "softmax": {"x": "out"},
    "softmax_grad": {"dy": "x", "x": "dy x"},
    "log_softmax": {"x": "out"},
    "log_softmax_grad": {"dy": "x", "x": "dy x"},
    "ctc_loss": {"log_probs": "log_probs targets input_lengths target_lengths out alpha"},
    "ctc_loss_grad": {"dy": "", "log_probs": ""},
    "cross_entropy": {"logits": "logits target weight"},
    "cross_entropy_grad": {"dy": "dy logits target weight", "logits": "dy logits target weight"},
    "mse_loss": {"x": "x target", "target": "x target"},
    "mse_grad": {"dy": "x target", "x": "dy", "target": "dy"},
    "rnn": dict.fromkeys(("given", "weight", "h0"), "out h0 weight"),
    "rnn_grad": dict.fromkeys(("dy", "out", "h0", "weight"), "dy out h0 weight"),
    "lstm": dict.fromkeys(("given", "weight", "h0", "c0"), "gates cells out h0 c0 weight"),
    "lstm_grad": dict.fromkeys("dy dlast gates cells out h0 c0 weight".split(), "dy dlast gates cells out h0 c0 weight"),
    "gru": dict.fromkeys(("given", "weight", "bias", "h0"), "gates out h0 weight"),
    "gru_grad": dict.fromkeys(("dy", "gates", "out", "h0", "weight"), "dy gates out h0 weight"),
    "rms_norm": {"x": "x weight rstd", "weight": "x weight rstd"},
    "rms_norm_grad": dict.fromkeys(("dy", "x", "weight", "rstd"), "dy x weight rstd"),
    "huber": {"x": "x delta"},
    "bce": {"x": "x target", "target": "x"},
    "bce_logits": {"x": "x target", "target": "x"},
    "layer_norm": {"x": "x weight mean rstd", "weight": "x weight mean rstd", "bias": ""},
    "layer_norm_grad": dict.fromkeys(("dy", "x", "weight", "mean", "rstd"), "dy x weight mean rstd"),
    "group_norm": {"x": "x weight mean rstd", "weight": "x weight mean rstd", "bias": ""},
    "group_norm_grad": dict.fromkeys(("dy", "x", "weight", "mean", "rstd"), "dy x weight mean rstd"),
    "dropout": {"x": "state p"},
    "layer_norm_apply": dict.fromkeys(("x", "weight", "bias", "mean", "rstd"), "x weight bias mean rstd"),
    "conv2d": {"x": "weight", "weight": "x", "bias": ""},
    "conv2d_input_grad": {"dy": "weight", "weight": "dy"},
    "conv2d_weight_grad": {"dy": "x", "x": "dy"},
    "max_pool2d": {"x": "index"},
    "max_pool2d_grad": {"dy": "index"},
    "max_pool2d_take": {"x": "index"},
    "avg_pool2d": {"x": ""},
    "avg_pool2d_grad": {"dy": ""},
    "adaptive_avg_pool2d": {"x": ""},
    "adaptive_avg_pool2d_grad": {"dy": ""},
    "batch_norm": {"x": "x weight mean rstd", "weight": "x weight mean rstd", "bias": ""},
    "batch_norm_apply": {"x": "weight rstd", "weight": "x mean rstd", "bias": ""},
    "batch_norm_grad": dict.fromkeys(("dy", "x", "weight", "mean", "rstd"), "dy x weight mean rstd"),
    "attention": dict.fromkeys("qkv", "q k v mask out lse state drop"),
    "attention_grad": dict.fromkeys(("dy", "q", "k", "v", "out", "lse"), "dy q k v mask out lse state drop"),
    "embedding": {"weight": "index"},
    "embedding_grad": {"dy": "index"},
    "embedding_unpadded": {"weight": "index"},
    "tril": {"x": ""},
    "triu": {"x": ""},
    "flip": {"x": ""},
    "roll": {"x": ""},
    "diagonal": {"x": ""},
    "windows": {"x": ""},
    "windows_grad": {"dy": ""},
    "put_along_": {"x": "index", "values": "index"},
    "add_along_": {"x": "", "values": "index"},
    "add_at_": {"x": "", "values": "index"},
    "cumsum": {"x": ""},
    "cumprod": {"x": "x out"},
    "prod": {"x": "x"},
    "recurrence": {"b": "a", "a": "a out"},
    "ranked": {"x": "indices"},
    "var": {"x": "x"},
    "vector_norm": {"x": "x out"},
    "inv": {"a": "out"},
    "solve": {"a": "a out", "b": "a"},
    "cholesky": {"a": "out"},
    "slogdet": {"a": "a"},
    "det": {"a": "a out"},
    "standard_gamma": {"x": "x out"},
    "standard_gamma_slope": {"concentration": "", "drawn": ""},
    "gammainc": {"a": "a x", "x": "a x"},
    "gammaincc": {"a": "a x", "x": "a x"},
    "eigh": {"a": "values vectors"},
    "svd": {"a": "u s vh"},
    "qr": {"a": "q r"},
    "pinv": {"a": "a out"},
}
#: In-place ops like others; if nothing else has a gradient, the overwritten operand has one of 0, which keeps nothing.
KEEPS |= {f"{name}_": {"x": "", **KEEPS.get(name, {})} for name in OVERWRITING}


def test_the_table_is_what_the_ops_declare() -> None:
    declared = {name: {i: " ".join(kept) for i, kept in o.keeps().items()} for name, o in all_ops().items()
                if o.differentiable}
    assert declared == KEEPS


def expected(row: Row, asked: set[int]) -> set[str]:
    """The names that are kept if only some of the operands need a gradient."""
    names: set[str] = set()
    given: dict[str, bool] = {}
    at = 0
    for name, argument in zip(row.declared.inputs, row.args, strict=False):
        items = argument if isinstance(argument, list) else [argument]
        positions = [at + k for k, _ in enumerate(items) if isinstance(items[0], Operand)]
        given[name] = bool(positions)
        at += len(positions)
        if asked & set(positions) and name in KEEPS[row.op]:
            names |= set(KEEPS[row.op][name].split())
    # Numbers and absent operands hold no bytes; names that are not inputs are results.
    return {n for n in names if given.get(n, n not in row.declared.inputs)}


def chosen() -> list[Row]:
    """The rows with a gradient, one for each op and set of tensor operands."""
    found: dict[Any, Row] = {}
    for row in ROWS:
        if row.wanted():
            found.setdefault((row.op, tuple(isinstance(a, Operand) for a in row.args), len(row.operands())), row)
    return list(found.values())


@pytest.mark.parametrize("row", chosen(), ids=str)
def test_a_run_keeps_just_that(row: Row) -> None:
    ledger = gradcore.device("meta").ledger
    wanted = row.wanted()
    for asked in {frozenset({k}) for k in wanted} | {frozenset(wanted), frozenset()}:
        inputs = [gradcore.tensor(v, device="meta", requires_grad=k in asked) for k, v in enumerate(row.values())]
        log = ledger.begin_log()
        # Further parameters of a recipe for the output are not residuals of a rule.
        with gradcore.recompute(False):
            result = row.call(inputs)
        records = [typed(r) for r in log]
        kept = {r.name for r in records if isinstance(r, Keep) and r.node}
        assert kept == expected(row, set(asked)), f"gradients asked for operands {sorted(asked)}"
        del result
        dropped = [typed(r) for r in log if isinstance(typed(r), Drop)]
        ledger.end_log()
        assert {(r.serial, r.node) for r in dropped} == {(r.serial, r.node) for r in records
                                                         if isinstance(r, Keep) and r.node}
        assert {r.reason for r in dropped} <= {"graph died"}


@pytest.mark.parametrize("row", chosen(), ids=str)
def test_nothing_is_kept_without_gradients(row: Row) -> None:
    ledger = gradcore.device("meta").ledger
    inputs = [gradcore.tensor(v, device="meta", requires_grad=k in row.wanted()) for k, v in enumerate(row.values())]
    log = ledger.begin_log()
    with gradcore.no_grad():
        results = parts(row.call(inputs))
    ledger.end_log()
    assert not [r for r in map(typed, log) if isinstance(r, Keep) and r.node]
    assert not any(y.requires_grad for y in chain(results) if y.storage not in [x.storage for x in inputs])


def test_a_rule_that_names_something_unknown_is_an_error_at_once() -> None:
    with raises(TypeError, "op 'test_bad_rule'", "has the parameter 'z'", "('x',)"):
        op("test_bad_rule", lambda x: x, x=lambda g, z: g)
    with raises(TypeError, "has a rule for 'y'", "('x',)"):
        op("test_bad_input", lambda x: x, y=lambda g: g)
    with raises(TypeError, "'add' is declared twice"):
        op("add", lambda x: x)
    assert not {"test_bad_rule", "test_bad_input"} & set(all_ops())


def test_a_rule_that_reads_an_auxiliary_result_takes_its_cotangent() -> None:
    with raises(TypeError, "op 'test_bad_aux'", "reads 'mean' but not g_mean"):
        op("test_bad_aux", lambda x: x, aux=("mean",), x=lambda g, mean: g * mean)
    assert "test_bad_aux" not in all_ops()
