"""Containers, names of what occurs twice, and texts of modules, compared with PyTorch."""

from __future__ import annotations

import collections
import copy
from typing import Any

import pytest

import gradcore
from tests.conftest import raises

#: Lines of code, and what they make.
PROGRAMS = [
    ("l = nn.ModuleList([nn.ReLU(), nn.ELU(), nn.Tanh()]); del l[0:2]", "repr(l)"),
    ("l = nn.Sequential(nn.ReLU(), nn.ELU(), nn.Tanh()); del l[::2]", "repr(l)"),
    ("l = nn.Sequential(nn.ReLU(), nn.ELU(), nn.Tanh()); del l[-1]", "repr(l)"),
    ("l = nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 3), nn.ReLU(), nn.Linear(2, 3)])", "repr(l)"),
    ("l = nn.ModuleList([nn.Sequential(nn.ReLU())] * 3)", "repr(l)"), ("l = nn.ModuleList()", "repr(l)"),
    ("p = nn.ParameterDict({'a': t.ones(2)}); q = p | nn.ParameterDict({'b': t.ones(1)}); p |= {'c': t.ones(1)}",
     "list(p.keys()), list(q.keys()), p['a'] is q['a']"),
    ("l = nn.ParameterList([t.ones(2), nn.ParameterList([t.ones(1), nn.Parameter(t.zeros(3))]), 3, nn.Linear(1, 2), None])",
     "str(l).replace('gradcore.', 'torch.'), list(l.state_dict()), len(l), l[-3], [type(v).__name__ for v in l[1:4]]"),
    ("l = nn.ParameterList([t.ones(2), 'a']); l += [t.ones(3)]; l[1] = t.zeros(4)", "[tuple(p.shape) for p in l.parameters()]"),
    ("d = nn.ParameterDict({'c': 3, 'b': nn.ParameterList([t.ones(1)]), 'a': t.ones(2)}); d['n'] = None; d['n'] = t.ones(2, 3)",
     "str(d).replace('gradcore.', 'torch.'), list(d.state_dict()), d.pop('c'), d.get('q'), list(reversed(d)), list(d.keys())"),
    ("d = {'a': nn.Parameter(t.ones(2))} | nn.ParameterDict({'b': t.ones(1)})", "sorted(d), [type(d).__name__, len(d)]"),
    ("d = nn.ParameterDict().fromkeys(['a', 'b'], t.ones(2)); d.clear()", "len(d), list(d.parameters()), d.setdefault('a')"),
    ("c = [type('Own', (of,), {name: lambda self, given: 1 / 0})() for of, name in ((nn.ModuleDict, 'update'), "
     "(nn.ModuleList, 'extend'), (nn.ParameterDict, 'update'), (nn.ParameterList, 'extend'))]", "[len(of) for of in c]"),
    ("l = nn.ModuleList([nn.ReLU(), nn.ELU(), nn.Tanh()])", "repr(l[1:]), repr(l[::-1]), l[1:][0] is l[1], len(l[5:])"),
    ("l = nn.ModuleList([nn.ReLU()]); l.insert(0, None)", "list(l)[0], len(l), list(l._modules)"),
    ("l = nn.ModuleList([nn.ReLU()] * 10 + [nn.ELU(), nn.Tanh()]); del l[10]; s = nn.Sequential(*l) * 1", "repr(l), repr(s)"),
    ("d = nn.ModuleDict([('a', nn.ReLU()), ('b', nn.Tanh())]); d.update([('c', nn.ELU())]); d.pop('b')",
     "repr(d), list(map(repr, d.values())), [(name, repr(m)) for name, m in d.items()], list(d.keys())"),
    ("m = nn.Module(); m.x = nn.Linear(1, 1); m.x = None", "repr(m), list(m._modules), list(m.state_dict()), m.x"),
    ("m = nn.Module(); m.register_buffer('b', t.zeros(2), persistent=False); m.b = nn.Parameter(t.ones(2))",
     "list(m.state_dict()), [name for name, _ in m.named_parameters()], list(m.buffers())"),
    ("m = nn.Module(); m.b = nn.Buffer(t.zeros(2), persistent=False); p = nn.Parameter(t.ones(2)); m._parameters = {'b': p}",
     "list(m.state_dict())[:1]"),
    ("m = nn.Module(); m.b = nn.Buffer(t.zeros(2), persistent=False); del m.b; m._buffers['b'] = t.ones(2)",
     "list(m.state_dict()), m.b.tolist()"),
    ("m = nn.Sequential(nn.BatchNorm1d(1)); m.again, m.own, m.b = m[0], nn.Parameter(t.ones(2)), nn.Buffer(t.ones(3))",
     "list(dict(m.named_children())), len(list(m.children())), [len(x) for x in (*m.parameters(False), *m.buffers(False))]"),
    ("given = [('b', t.zeros(1)), ('a', t.ones(1))]; c = collections",
     "[list(nn.ParameterDict(kind(given))) for kind in (c.OrderedDict, c.UserDict, nn.ParameterDict, dict, list)]"),
    ("d = nn.ParameterDict({'a': t.zeros(1), 'b': t.ones(1)}); p = d.popitem()",
     "p[0], p[1].tolist(), [x.tolist() for x in d.values()], list(d)"),
    ("m = nn.AdaptiveLogSoftmaxWithLoss(16, 10, [3, 6]); before = [p.tolist() for p in m.parameters()]; m.reset_parameters()",
     "[p.tolist() == x for p, x in zip(m.parameters(), before)]"),
    ("m = nn.RNNCell(2, 0)", "m(t.ones(3, 2)).tolist()"),
    ("p = nn.Parameter(t.ones(2)); p.mark = 3; c = copy.copy(p)", "c.mark, type(c).__name__, c.requires_grad"),
    ("b = copy.deepcopy(nn.Buffer(t.ones(2), persistent=False))", "b.persistent, b.tolist()"),
    ("m = nn.PReLU(2, init=0.5); m.weight.data.fill_(3.0); m.reset_parameters()", "m.weight.tolist()"),
    ("m = nn.GRU(2, 3, 2, bias=False, bidirectional=True)", "[[tuple(w.shape) for w in row] for row in m.all_weights]"),
    ("m = nn.LSTM(2, 3, 2)", "[[tuple(w.shape) for w in row] for row in m.all_weights]"),
    ("m = nn.InstanceNorm1d(2, affine=True, bias=False); p = nn.PReLU(dtype=t.float64)",
     "repr(m), list(m.state_dict()), str(p.weight.dtype).removeprefix('torch.')"),
    ("m = nn.GroupNorm(2, 4, bias=False)", "repr(m), repr(nn.GroupNorm(2, 4))"),
    ("m = nn.TripletMarginWithDistanceLoss()", "repr(m)"),
    ("m = nn.EmbeddingBag.from_pretrained(t.ones(3, 2), mode='sum', padding_idx=1)",
     "repr(m), m.weight.requires_grad, m(t.tensor([[0, 1, 2]])).tolist()"),
    ("m = nn.EmbeddingBag.from_pretrained(t.ones(3, 2), freeze=False)", "repr(m), m.weight.requires_grad")]
#: Names in a module that has a layer, with a batch norm, at two places, and its weight at a third.
NAMES = ["named_parameters()", "named_parameters(remove_duplicate=False)", "named_parameters('p', False, False)",
         "named_buffers(remove_duplicate=False)", "named_modules()", "named_modules(remove_duplicate=False)",
         "named_modules(prefix='p', remove_duplicate=False)"]


@pytest.mark.oracle
@pytest.mark.parametrize(("code", "made"), PROGRAMS, ids=[code for code, _ in PROGRAMS])
def test_containers_and_layers(code: str, made: str, torch: Any) -> None:
    scopes: list[dict[str, Any]] = [{"t": t, "nn": t.nn, "copy": copy, "collections": collections} for t in (gradcore, torch)]
    for scope in scopes:
        exec(code, scope)
    assert eval(made, scopes[0]) == eval(made, scopes[1])


@pytest.mark.oracle
@pytest.mark.parametrize("names", NAMES)
def test_names_of_what_occurs_twice(names: str, torch: Any) -> None:
    found = []
    for nn in (gradcore.nn, torch.nn):
        shared = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model = nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared))
        model[1].own, model.own = shared[0].weight, shared[0].weight
        found.append([name for name, _ in eval(f"model.{names}")])
    assert found[0] == found[1]


def test_paddings_that_no_convolution_has() -> None:
    for mode in ("zeros", "reflect"):
        with raises(ValueError, "padding='same' is not supported for strided convolutions"):
            gradcore.nn.Conv2d(2, 2, 3, stride=(1, 2), padding="same", padding_mode=mode)
    with raises(ValueError, "Invalid padding string 'full', should be one of {'valid', 'same'}"):
        gradcore.nn.Conv1d(2, 2, 3, padding="full")


def test_what_lists_and_dicts_of_parameters_refuse() -> None:
    with raises(TypeError, "ParameterList.extend() takes an iterable of values, but got Tensor"):
        gradcore.nn.ParameterList(gradcore.ones(2, 2))
    with raises(TypeError, "the names of a ParameterDict are strings, but got 1 of type int"):
        gradcore.nn.ParameterDict([(1, gradcore.ones(1))])
    with raises(KeyError, "attribute 'keys' of ParameterDict exists: choose another name"):
        gradcore.nn.ParameterDict({"keys": gradcore.ones(1)})
    with raises(KeyError, "training"):
        gradcore.nn.ParameterDict()["training"]
    for name, text in (("a.b", 'contain ".", got: a.b'), ("", "be empty string")):
        with raises(KeyError, text):
            gradcore.nn.ParameterDict({name: gradcore.ones(1)})


def test_what_cannot_be_inserted_leaves_the_others_in_place() -> None:
    net = gradcore.nn.Sequential(gradcore.nn.ReLU(), gradcore.nn.Tanh())
    with raises(IndexError, "Index out of range: 3, expected one from -2 to 2"):
        net.insert(3, gradcore.nn.ReLU())
    with raises(TypeError, "int"):
        net.insert(0, 3)  # type: ignore[arg-type]
    assert [type(m).__name__ for m in net] == ["ReLU", "Tanh"]
    modules = gradcore.nn.ModuleList(net)
    with raises(TypeError, "int"):
        modules.insert(1, 3)  # type: ignore[arg-type]
    assert [type(m).__name__ for m in modules] == ["ReLU", "Tanh"]


@pytest.mark.parametrize(("given", "text"), [
    ([gradcore.nn.ReLU()], "list is not a Module subclass: write Sequential(*modules)"), (3, "int is not a Module subclass"),
    (gradcore.nn.ReLU, "ReLU is a class, not a Module: write ReLU(...)")], ids=["list", "number", "class"])
def test_what_is_no_module_is_refused_with_a_hint(given: Any, text: str) -> None:
    with raises(TypeError, text):
        gradcore.nn.Sequential(gradcore.nn.ReLU(), given)


@pytest.mark.parametrize(("call", "kind", "text"), [
    (lambda n: n.Hardtanh(1.0, 1.0), ValueError, "max_val must be larger than min_val, but got 1.0 and 1.0"),
    (lambda n: n.Bilinear(0, 2, 3), ValueError, "in1_features must be > 0, but got 0"),
    (lambda n: n.Embedding(3, 2, _weight=gradcore.zeros(2, 3)), ValueError, "[2, 3] for 3 and 2"),
    (lambda n: n.Embedding.from_pretrained(gradcore.zeros(3)), ValueError, "expected to be 2-dimensional"),
    (lambda n: n.ReLU().train(1), ValueError, "training mode is expected to be boolean"),
    (lambda n: n.ReLU().register_buffer(3, None), TypeError, "buffer name should be a string. Got int"),
    (lambda n: n.ReLU().get_extra_state(), RuntimeError, "ReLU has no extra state"),
    (lambda n: n.ReLU().set_extra_state(1), RuntimeError, "ReLU has no extra state"),
    (lambda n: n.init.calculate_gain("leaky_relu", "a"), ValueError, "negative_slope a not a valid number"),
    (lambda n: n.utils.spectral_norm(n.Linear(1, 1), n_power_iterations=0), ValueError, "Expected n_power_iterations to be"),
    (lambda n: n.utils.parameters_to_vector([gradcore.ones(1), gradcore.ones(1, device="meta")]), gradcore.errors.DeviceError,
     "Found parameters on different devices, this is currently not supported: ['cpu', 'meta']")], ids=range(11))
def test_what_layers_do_not_take(call: Any, kind: Any, text: str) -> None:
    with raises(kind, text):
        call(gradcore.nn)


def test_sizes_to_unflatten_are_ints() -> None:
    with raises(TypeError, "unflattened_size must be tuple of ints, but found element of type float at pos 1"):
        gradcore.nn.Unflatten(1, (2, 2.5))  # type: ignore[arg-type]
    with raises(TypeError, "unflattened_size must be a tuple of ints, but found type int"):
        gradcore.nn.Unflatten(1, 3)  # type: ignore[arg-type]
