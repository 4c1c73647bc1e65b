"""Parameters, buffers, gradients and optimizer state stay what they are when their memory is replaced, copied or loaded."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.engine.state import Where
from gradcore.events import Tag
from tests.logs import normalized


def tag_of(x: Any) -> Tag:
    return x.storage.block.tag


def trained(model: Any) -> Any:
    model(gradcore.ones(4, *[next(model.parameters()).shape[-1]])).sum().backward()
    return model


def test_new_data_has_the_role_and_layer_of_the_old() -> None:
    model = trained(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)))
    for p in model.parameters():
        p.data = p.data - 0.1 * p.grad
        p.grad.data = gradcore.zeros(p.shape)
    model[1].running_mean.data = gradcore.tensor(np.ones(5, np.float32))
    for path, p in model.named_parameters():
        assert (tag_of(p).role, tag_of(p).layer) == ("parameter", path[0])
        assert (tag_of(p.grad).role, tag_of(p.grad).layer) == ("gradient", path[0])
    assert (tag_of(model[1].running_mean).role, tag_of(model[1].running_mean).layer) == ("buffer", "1")
    # Memory that is already somebody's stays so.
    other = nn.Linear(3, 5)
    model[0].weight.data = other.weight.data
    assert tag_of(other.weight).layer == "" and tag_of(other.weight).role == "parameter"
    # And a result of an op, which has no role of its own, takes none from what it replaces.
    x = gradcore.ones(3)
    x.data = gradcore.zeros(3)
    assert tag_of(x).role == "output"


def test_what_is_somebodys_is_not_the_gradients_that_it_is_assigned_to() -> None:
    model = trained(nn.Linear(3, 5))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    kept = optimizer.state[model.weight]["momentum_buffer"]
    for given, role in ((kept, "optimizer state"), (model.weight.detach(), "parameter"), (gradcore.ones(5, 3), "gradient")):
        model.weight.grad = given
        assert tag_of(given).role == role
        model.weight.grad = None
        assert tag_of(given).role == role


def test_conversion_keeps_the_roles_layers_and_gradients() -> None:
    model = trained(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)))
    grads = [p.grad for p in model.parameters()]
    model.double()
    for (path, p), grad in zip(model.named_parameters(), grads, strict=True):
        assert p.grad is grad and p.dtype == grad.dtype == np.float64
        assert (tag_of(p).role, tag_of(p).layer) == ("parameter", path[0])
        assert (tag_of(grad).role, tag_of(grad).layer) == ("gradient", path[0])
    assert tag_of(model[1].running_var).role == "buffer"


def test_copies_have_the_roles_of_what_they_copy() -> None:
    twin = copy.deepcopy(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)))
    assert {tag_of(p).role for p in twin.parameters()} == {"parameter"}
    assert {tag_of(b).role for b in twin.buffers()} == {"buffer"}
    assert tag_of(copy.deepcopy(gradcore.ones(2))).role == "output"
    assert tag_of(copy.deepcopy(gradcore.ones(2).requires_grad_())).role == "output"
    leaf = gradcore.ones(2).requires_grad_()
    optim.SGD([leaf], lr=0.1)
    assert tag_of(copy.deepcopy(leaf)).role == "parameter"


def test_copies_of_a_state_dict_are_no_parameters() -> None:
    state = nn.BatchNorm1d(5).state_dict()
    assert {tag_of(t).role for t in copy.deepcopy(state).values()} == {"output"}
    assert {tag_of(t).role for t in state.values()} == {"parameter", "buffer"}


@pytest.mark.parametrize("called", [True, False])
def test_a_copy_of_a_network_within_a_step_has_layers(called: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    with gradcore.step():
        twin = copy.deepcopy(model)
        if called:
            model(gradcore.ones(2, 3))
            assert [tag_of(p).layer for p in twin.parameters()] == ["0", "0", "1", "1"]
    assert [tag_of(t).layer for t in twin.state_dict().values()] == ["0", "0", "1", "1", "1", "1", "1"]


class Watched(nn.Linear):
    """While it is copied, another thread calls its class's ``other``."""

    other: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        thread = threading.Thread(target=Watched.other, args=(gradcore.ones(1, 3),))
        thread.start()
        thread.join()


def test_a_call_names_no_copy_that_another_thread_is_making(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "other", nn.Linear(3, 5))
    twin = copy.deepcopy(nn.Sequential(nn.Linear(3, 5), Watched(5, 2)))
    with gradcore.step():
        pass
    assert [tag_of(p).layer for p in twin.parameters()] == ["0", "0", "1", "1"]
    monkeypatch.undo()


def test_leaves_that_an_optimizer_updates_are_parameters() -> None:
    made, uploaded = gradcore.ones(3).requires_grad_(), gradcore.tensor([1.0], requires_grad=True)
    optim.SGD([made, uploaded])
    assert tag_of(made).role == tag_of(uploaded).role == "parameter"


def of_step(s: Any) -> Any:
    records = s.recording.records
    return records[gradcore.folds.start_of_step(records):]


def states(device: str) -> tuple[Any, Any]:
    model = nn.Linear(3, 5).to(device)
    optimizer = optim.Adam(model.parameters())
    model(gradcore.ones(4, 3, device=device)).sum().backward()
    optimizer.step()
    fresh = optim.Adam(model.parameters())
    with gradcore.step(device=device) as s:
        fresh.load_state_dict(optimizer.state_dict())
    return fresh, s


def test_an_optimizers_state_is_loaded_on_meta_as_on_the_cpu() -> None:
    (cpu, a), (meta, b) = states("cpu"), states("meta")
    made = [[(r.tag.op, r.tag.role, r.tag.phase, r.tag.spec, r.allocated) for r in of_step(s)
             if isinstance(r, gradcore.events.Alloc)] for s in (a, b)]
    assert made[0] == made[1] and len(made[0]) == 4
    assert [s["step"] for s in meta.state.values()] == [1, 1]
    assert all(s["exp_avg"].device.type == "meta" for s in meta.state.values())
    assert {tag_of(s["exp_avg"]).role for s in cpu.state.values()} == {"optimizer state"}


def test_loaded_state_is_a_copy() -> None:
    optimizer, _ = states("cpu")
    twin = optim.Adam(list(optimizer.state))
    twin.load_state_dict(optimizer.state_dict())
    for p, state in twin.state.items():
        assert state["exp_avg"].storage is not optimizer.state[p]["exp_avg"].storage
        assert state["exp_avg"].tolist() == optimizer.state[p]["exp_avg"].tolist()


def test_a_seed_within_a_step_is_the_same_record_on_every_device() -> None:
    kinds = []
    # Its pool of pinned memory is a device of its own, but its generator is the CPU's.
    gradcore.ones(1).pin_memory()
    for device in ("cpu", "meta"):
        gradcore.rand(1, device=device)
        with gradcore.step(device=device) as s:
            gradcore.manual_seed(1)
        kinds.append([type(r) for r in of_step(s)])
    assert kinds[0] == kinds[1]


def test_marks_of_hooks_name_nodes_by_their_order_in_normalized_logs() -> None:
    logs = []
    for _ in range(2):
        with gradcore.step() as s, gradcore.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            x = gradcore.ones(3, requires_grad=True)
            (x * x).sum().backward()
            del x
        labels = [r.label for r in normalized(s.raw_log) if isinstance(r, gradcore.events.Mark)]
        logs.append([label for label in labels if "node" in label])
    assert logs[0] == logs[1] and logs[0]


def net() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


class Layers(nn.Sequential):
    """A Sequential of a program's own."""


@pytest.mark.parametrize("container", [nn.Sequential, Layers, nn.ModuleList])
def test_slices_of_a_network_are_parts_of_it(container: Any) -> None:
    model = nn.ModuleList(net()) if container is nn.ModuleList else container(*net())
    optimizer = optim.Adam(model.parameters())
    known = []
    for _ in range(4):
        optimizer.zero_grad()
        with gradcore.step() as s:
            x = gradcore.ones(4, 8)
            for part in (model[:2], model[2:]):
                assert type(part) is container
                for layer in (part if container is nn.ModuleList else [part]):
                    x = layer(x)
            x.sum().backward()
            optimizer.step()
        known.append((len([x for x in gc.get_objects() if type(x) is Where]), len(gradcore.device("cpu").calls)))
        assert set(s.report.by_layer) == {"", "0", "1", "2"} - ({"1"} if "1" not in s.report.by_layer else set())
    # Whatever a step makes, the next makes again: no tables grow.
    assert len(set(known[1:])) == 1
    assert [tag_of(p).layer for p in model.parameters()] == ["0", "0", "2", "2"]
    assert {tag_of(s["exp_avg"]).network for s in optimizer.state.values()} == {tag_of(model[0].weight).network}


def test_slices_of_slices_and_slices_that_outlive_the_network() -> None:
    model = net()
    model(gradcore.ones(1, 8))
    network = tag_of(model[0].weight).network
    model[1:][1:](gradcore.ones(1, 8))
    assert tag_of(model[2].weight) == tag_of(model[2].weight)._replace(layer="2", network=network)
    part = model[:2]
    del model
    part(gradcore.ones(1, 8))
    assert tag_of(part[0].weight).layer == "0" and tag_of(part[0].weight).network is not network


def test_a_slice_becomes_a_network_of_its_own_with_a_child_of_its_own() -> None:
    model = net()
    part = model[:2]
    part(gradcore.ones(1, 8))
    part.append(nn.Linear(8, 2))
    part(gradcore.ones(1, 8))
    assert tag_of(part[2].weight).layer == "2" and tag_of(part[2].weight).network == tag_of(part[0].weight).network


def test_a_slice_becomes_a_module_of_its_own_when_it_is_assigned() -> None:
    class Head(nn.Module):
        def __init__(self, body: Any) -> None:
            super().__init__()
            self.features = body
            self.head = nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.features(x))

    whole = net()
    model = Head(whole[:2])
    with gradcore.step() as s:
        model(gradcore.ones(4, 8)).sum().backward()
    assert {"features.0", "head"} <= {layer.removeprefix("Head.") for layer in s.report.by_layer}
    assert type(whole[:2]) is nn.Sequential and len(whole[:2]) == 2 and list(whole[1:]._modules) == ["1", "2"]
    del Head


@pytest.mark.parametrize("batch_size", [3, None])
def test_batches_that_a_users_function_collates_are_inputs(batch_size: int | None) -> None:
    def collate(samples: Any) -> Any:
        return gradcore.stack(samples if isinstance(samples, list) else [samples])

    loader = gradcore.utils.data.DataLoader([gradcore.ones(4) * k for k in range(6)], batch_size, collate_fn=collate)
    with gradcore.step() as s:
        batches = list(loader)
    assert {tag_of(b).role for b in batches} == {"input"} and s.report.by_role["input"]


def test_a_slice_that_gets_children_of_its_own_is_a_network_of_its_own() -> None:
    whole = net()
    whole(gradcore.ones(1, 8))
    part = whole[:2]
    part.append(nn.Linear(8, 30))
    with gradcore.step() as s:
        part(gradcore.ones(4, 8)).sum().backward()
    assert {tag_of(part[2].weight).layer, tag_of(part[0].weight).layer} == {"2", "0"}
    assert any(layer.endswith("2") for layer in s.report.by_layer)
    # The whole replaces a child that the slice still has.
    part = whole[:2]
    whole[0] = nn.Linear(8, 8)
    part(gradcore.ones(4, 8))
    whole(gradcore.ones(4, 8))
    assert tag_of(whole[0].weight).layer == tag_of(part[0].weight).layer == "0"
    assert tag_of(whole[0].weight).network is not tag_of(part[0].weight).network


def test_a_gradient_is_of_its_parameters_layer_whatever_computed_it() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    x = gradcore.ones(3, 3, requires_grad=True)
    penalty = sum(p.square().sum() for p in model.parameters())
    (model(x).sum() + penalty).backward()
    assert [tag_of(p.grad).layer for p in (model[0].weight, model[0].bias, model[1].bias)] == ["0", "0", "1"]
    model[1].bias.grad = gradcore.zeros(3)
    assert (tag_of(model[1].bias.grad).role, tag_of(model[1].bias.grad).layer) == ("gradient", "1")
    # That of what is no parameter is of the layer that computed it.
    assert (tag_of(x.grad).role, tag_of(x.grad).layer) == ("gradient", "0")
