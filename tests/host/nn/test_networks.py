"""Several networks in one step: their layers have paths that begin with their names; those of a single one do not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

import gradcore
from gradcore import folds, nn
from gradcore.errors import OutOfMemory
from gradcore.events import BORROW, Alloc, Network
from gradcore.reading import network_names
from gradcore.report.recording import Recording


class Critic(nn.Module):
    def __init__(self, **where: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 1, **where)

    def forward(self, x: Any) -> Any:
        return self.fc(x).tanh()


def generator(**where: Any) -> Any:
    return nn.Sequential(nn.Linear(4, 5, **where), nn.ReLU(), nn.Linear(5, 6, **where))


def run(networks: list[Any], criterion: Any = None, device: str = "cpu") -> Any:
    """One recorded step of the networks in sequence, after one that has named their parameters."""
    optimizers = [gradcore.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in networks]
    for _ in range(2):
        with gradcore.step(batch_size=3) as step:
            x = gradcore.ones(3, 4, device=device)
            for network in networks:
                x = network(x)
            loss = x.mean() if criterion is None else criterion(x, gradcore.zeros_like(x))
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return step


def test_layers_of_several_networks_begin_with_their_classes() -> None:
    step = run([generator(), Critic()])
    assert set(step.report.by_layer) == {"", "Sequential.0", "Sequential.1", "Sequential.2", "Critic", "Critic.fc"}
    # All memory of a layer: parameters, gradients, momentum, residuals.
    live = folds.live_at(step.log, len(step.log) - 1)
    assert {h.role for h in live if h.tag.layer == "Critic.fc"} == {"parameter", "gradient", "optimizer state"}
    assert {k.layer for k in step.report.kept} == {"", "Sequential.1", "Sequential.2", "Critic", "Critic.fc"}


def test_a_single_network_keeps_the_paths_of_named_modules() -> None:
    # A loss is a module too, but has no parameters, so it is not a network.
    step = run([generator()], nn.MSELoss())
    assert set(step.report.by_layer) == {"", "0", "1", "2"}
    both = nn.ModuleDict({"g": generator(), "c": Critic()})
    assert set(run([both["g"], both["c"]]).report.by_layer) == {"", "g.0", "g.1", "g.2", "c", "c.fc"}


def test_networks_of_one_class_are_numbered_in_the_order_of_their_first_calls() -> None:
    first = nn.Sequential(nn.Linear(4, 4))
    second = copy.deepcopy(first)
    assert set(run([second, first]).report.by_layer) == {"", "Sequential#1.0", "Sequential#2.0"}
    del first
    # The other one and its bytes are freed.
    assert set(run([second]).report.by_layer) == {"", "0"}


def test_a_network_stays_the_same_when_its_structure_changes() -> None:
    network, critic = generator(), Critic()
    before = run([network, critic]).report.by_layer
    network.append(nn.Identity())
    network.eval()
    assert run([network, critic]).report.by_layer.keys() == before.keys()


def trained(network: Any, optimizer: Any) -> Any:
    """The layers of a recorded step of a network, by role."""
    with gradcore.step() as step:
        network(gradcore.ones(3, 4)).sum().backward()
        optimizer.step()
    live = [h for place in (0, len(step.log) - 1) for h in folds.live_at(step.log, place) if h.tag.layer]
    return {role: {h.tag.layer for h in live if h.role == role} for role in ("parameter", "gradient", "optimizer state")}


def test_a_part_that_was_called_alone_is_no_network_of_its_own() -> None:
    part = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    whole = nn.Sequential(part, nn.Linear(part(gradcore.ones(1, 4)).shape[1], 2))
    assert trained(whole, gradcore.optim.SGD(whole.parameters(), lr=0.1))["parameter"] == {"0.0", "1"}
    del whole, part
    # Registering calls the parametrization.
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    with gradcore.step() as step:
        normed(gradcore.ones(3, 4))
    assert set(step.report.by_layer) == {"", "parametrizations.weight", "parametrizations.weight.0"}


def test_the_state_of_an_optimizer_follows_the_parameters_into_a_larger_network() -> None:
    part = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    optimizer = gradcore.optim.Adam(part.parameters())
    assert set(map(frozenset, trained(part, optimizer).values())) == {frozenset({"0"})}
    whole = nn.Sequential(part, nn.Linear(5, 2))
    optimizer.add_param_group({"params": whole[1].parameters()})
    for _ in range(2):
        assert set(map(frozenset, trained(whole, optimizer).values())) == {frozenset({"0.0", "1"})}


def test_a_part_that_outlives_the_network_is_one() -> None:
    part = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    whole = nn.Sequential(part, nn.Linear(5, 2))
    optimizer = gradcore.optim.Adam(part.parameters())
    assert trained(whole, optimizer)["optimizer state"] == {"0.0"}
    del whole
    for _ in range(2):
        assert set(map(frozenset, trained(part, optimizer).values())) == {frozenset({"0"})}


def test_gradients_that_go_before_the_larger_network_is_called_are_its_own() -> None:
    part = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    optimizer = gradcore.optim.Adam(part.parameters())
    trained(part, optimizer)
    whole = nn.Sequential(nn.Identity(), part)
    with gradcore.step() as step:
        optimizer.zero_grad()
        whole(gradcore.ones(3, 4))
    assert {r.tag.layer for r in step.log if isinstance(r, Alloc)} == {"", "1.0", "1.1"}


def test_a_part_may_go_from_one_network_to_another() -> None:
    part = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    optimizer = gradcore.optim.Adam(part.parameters())
    whole = nn.Sequential(part, nn.Linear(5, 2))
    trained(whole, optimizer)
    whole = nn.Sequential(nn.Identity(), part)
    for _ in range(2):
        assert set(map(frozenset, trained(whole, optimizer).values())) == {frozenset({"1.0"})}


def test_what_a_network_owns_is_named_alike_on_all_devices() -> None:
    steps = [run([generator(device=d), Critic(device=d)], device=d) for d in ("cpu", "meta")]
    assert steps[0].report.by_layer == steps[1].report.by_layer
    assert [r.tag for r in steps[0].log if hasattr(r, "tag")] == [r.tag for r in steps[1].log if hasattr(r, "tag")]


def test_a_recording_comes_back_from_its_file_with_the_names() -> None:
    recording = run([generator(), Critic()]).recording
    assert Recording.from_dict(recording.to_dict()) == recording


def test_a_replay_accounts_as_eager_does() -> None:
    network, critic = generator(), Critic()
    eager = run([network, critic]).report.by_layer
    assert run([gradcore.compile(network), gradcore.compile(critic)]).report.by_layer.keys() == eager.keys()


def test_a_program_names_the_networks_of_its_layers(tmp_path: Path) -> None:
    network, critic = generator(), Critic()
    both = gradcore.compile(lambda x: critic(network(x)))
    both(gradcore.ones(3, 4))
    both.save(tmp_path / "both")
    for program in (both.programs[0], gradcore.load_program(tmp_path / "both").program):
        assert "# Sequential.0 forward" in str(program) and "# Critic.fc forward" in str(program)


def test_graph_and_summary_name_the_networks() -> None:
    network, critic = generator(), Critic()
    seen = gradcore.graph(critic(network(gradcore.ones(3, 4))))
    assert [n.layer for n in seen] == ["Critic", "Critic.fc", "Sequential.2", "Sequential.1", "Sequential.0"]
    # Two leaves with one path are listed as two leaves.
    assert "Sequential.0.weight" in seen.dot() and "leaf Critic.fc.weight" in str(seen)
    # As an out-of-memory error does.
    assert "parameter of empty in layer Sequential.0" in gradcore.memory_summary()
    assert [n.layer for n in gradcore.graph(network(gradcore.ones(3, 4)))] == ["2", "1", "0"]


def test_running_out_of_memory_names_the_network_of_the_op() -> None:
    network, critic = generator(device="meta"), Critic(device="meta")
    critic(network(gradcore.ones(3, 4, device="meta")))
    x = gradcore.ones(100_000, 6, device="meta")
    gradcore.set_memory_limit(gradcore.memory_reserved("meta"), "meta")
    text = ""
    try:
        kept = [critic(x) for _ in range(500)]
        del kept
    except OutOfMemory as error:
        text = str(error)
    finally:
        gradcore.set_memory_limit(None, "meta")
    assert " for linear in layer Critic.fc, forward, " in text or " for tanh in layer Critic, forward, " in text


class Uploading(Critic):
    """A network that makes tensors of arrays when it runs."""

    def forward(self, x: Any) -> Any:
        self.made = gradcore.tensor(np.ones((3, 6), np.float32)), gradcore.from_numpy(np.ones((3, 6), np.float32))
        return super().forward(x + self.made[0] * self.made[1])


def test_what_a_network_uploads_or_borrows_is_its_own() -> None:
    network, critic = generator(), Uploading()
    made = [r.tag for r in run([network, critic]).log if isinstance(r, Alloc) and r.tag.op in ("upload", BORROW)]
    assert [tag.layer for tag in made if tag.phase == "forward" and tag.layer] == ["Uploading", "Uploading"]
    assert {tag.role for tag in made} == {"input"} and not any(tag.export for tag in made)


def test_networks_are_numbered_within_their_class_by_age() -> None:
    older = [Network("Critic", n) for n in range(20, 60)]
    names = network_names([None, *reversed(older), Network("Sequential", 7), older[3]])
    assert names == {Network("Sequential", 7): "Sequential"} | {n: f"Critic#{k}" for k, n in enumerate(older, 1)}
    assert network_names([older[0], None, older[0]]) == {}


def test_copies_that_are_never_called_have_their_layers() -> None:
    network, averages = generator(), []
    for make in (copy.deepcopy, gradcore.optim.swa_utils.AveragedModel):
        averages.append(make(network))
    step = run([network, Critic()])
    held = {(h.tag.layer, h.tag.op) for h in folds.live_at(step.log, len(step.log) - 1) if h.role == "parameter"}
    names = {f"{name}.{k}" for name in ("Sequential#1", "Sequential#2", "AveragedModel.module") for k in (0, 2)}
    assert {layer for layer, _ in held} == names | {"Critic.fc"}
    # The copy is the younger one, though it has a name before the network is called.
    assert {op for layer, op in held if layer.startswith(("AveragedModel", "Sequential#2"))} == {"clone"}
    del averages


def test_copies_that_become_parts_wait_for_their_network() -> None:
    part = generator()
    network = nn.ModuleDict({str(k): copy.deepcopy(part) for k in range(2)})
    with gradcore.step() as step:
        pass
    assert set(step.report.by_layer) == {""}
    with gradcore.step() as step:
        network["0"](gradcore.ones(3, 4))
    assert {f"{k}.{j}" for k in range(2) for j in (0, 2)} < set(step.report.by_layer)
