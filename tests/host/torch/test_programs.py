"""Steps of training programs written for PyTorch, in float64: the same losses eagerly, and the same bits compiled.

Each program has ``models``, ``optimizers``, ``data(k, n)`` and ``step(*data)``. Both libraries get the same weights, from
NumPy's generator, noise as an argument.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore

pytestmark = pytest.mark.oracle

HEAD = """
import copy, math
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
torch.set_default_dtype(torch.float64)

def normal(k, *shape):
    return torch.tensor(np.random.default_rng(k).normal(size=shape))

def labels(k, most, *shape):
    return torch.tensor(np.random.default_rng(k).integers(0, most, shape))
"""

PROGRAMS = {}

PROGRAMS["Wasserstein GAN with gradient penalty"] = """
generator = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
critic = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 1))
models = [generator, critic]
optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3, betas=(0.0, 0.9)) for m in models]

def data(k, n):
    return normal(k, n, 1, 8, 8), normal(k + 1, n, 4), normal(k + 2, n, 1, 1, 1).sigmoid()

def penalty(real, fake, alpha):
    between = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(between)
    slope = torch.autograd.grad(outputs=scores, inputs=between, grad_outputs=torch.ones_like(scores), create_graph=True,
                                retain_graph=True, only_inputs=True)[0]
    return ((slope.view(slope.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()

def step(real, z, alpha):
    optimizers[1].zero_grad()
    fake = generator(z)
    lost = -critic(real).mean() + critic(fake.detach()).mean() + 10 * penalty(real.data, fake.data, alpha)
    lost.backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    tricked = -critic(generator(z)).mean()
    tricked.backward()
    optimizers[0].step()
    return lost.detach(), tricked.detach()
"""

PROGRAMS["MAML"] = """
from torch.func import functional_call
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
models, optimizers = [net], [optim.Adam(net.parameters(), lr=1e-2)]

def data(k, n):
    return normal(k, 2, n, 1), normal(k + 1, 2, n, 1)

def step(xs, ys):
    optimizers[0].zero_grad()
    outer = 0.0
    for x, y in zip(xs, ys):
        fast = dict(net.named_parameters())
        for _ in range(2):
            inner = F.mse_loss(functional_call(net, fast, (x,)), y)
            slopes = torch.autograd.grad(inner, fast.values(), create_graph=True)
            fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), slopes)}
        outer = outer + F.mse_loss(functional_call(net, fast, x), y)
    outer.backward()
    optimizers[0].step()
    return outer
"""

PROGRAMS["DQN with a target network"] = """
policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
target = copy.deepcopy(policy)
models, optimizers = [policy, target], [optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)]

def data(k, n):
    return normal(k, n, 4), labels(k, 3, n, 1), normal(k + 1, n), normal(k + 2, n, 4), labels(k + 3, 2, n).double()

def step(state, action, reward, after, done):
    value = policy(state).gather(1, action)
    with torch.no_grad():
        expected = reward + 0.99 * (1 - done) * target(after).max(1).values
    loss = nn.SmoothL1Loss()(value, expected.unsqueeze(1))
    optimizers[0].zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizers[0].step()
    with torch.no_grad():
        for slow, p in zip(target.parameters(), policy.parameters()):
            slow.data.copy_(0.05 * p.data + 0.95 * slow.data)
    return loss
"""

PROGRAMS["PPO"] = """
from torch.distributions import Categorical, Normal

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.actor, self.choice = nn.Linear(4, 1), nn.Linear(4, 2), nn.Linear(4, 3)
        self.actor_logstd = nn.Parameter(torch.zeros(1, 2))
        self.entropy_weight = 0.01

agent = Agent()
models, optimizers = [agent], [optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)]

def data(k, n):
    return normal(k, n, 4), normal(k + 1, n, 2), labels(k, 3, n), normal(k + 2, n), normal(k + 3, n)

def step(seen, action, chosen, advantage, returns):
    mean = agent.actor(seen)
    moved = Normal(mean, torch.exp(agent.actor_logstd.expand_as(mean)))
    choice = Categorical(logits=agent.choice(seen))
    ratio = (moved.log_prob(action).sum(1) + choice.log_prob(chosen) + 3).exp()
    gain = torch.min(ratio * advantage, torch.clamp(ratio, 0.8, 1.2) * advantage).mean()
    entropy = moved.entropy().sum(1).mean() + choice.entropy().mean()
    loss = -gain - agent.entropy_weight * entropy + 0.5 * F.mse_loss(agent.critic(seen).view(-1), returns)
    optimizers[0].zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizers[0].step()
    return loss
"""

PROGRAMS["physics-informed network"] = """
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
models, optimizers = [net], [optim.Adam(net.parameters(), lr=1e-3)]

def data(k, n):
    return normal(k, n, 1), normal(k + 1, n, 1)

def slope(u, x):
    return torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]

def step(x, t):
    optimizers[0].zero_grad()
    x, t = x.clone().requires_grad_(True), t.detach().clone().requires_grad_()
    u = net(torch.cat([x, t], dim=1))
    u_x = slope(u, x)
    burgers = slope(u, t) + u * u_x - 0.01 / math.pi * slope(u_x, x)
    at_start = net(torch.cat([x, torch.zeros_like(t)], dim=1)) + torch.sin(math.pi * x)
    loss = (burgers ** 2).mean() + (at_start ** 2).mean()
    loss.backward()
    optimizers[0].step()
    return loss
"""

PROGRAMS["domains, codes and checkpoints"] = """
from torch.utils.checkpoint import checkpoint

class GradReverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.strength, None

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8))
        self.codes, self.head, self.domain = nn.Embedding(5, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x):
        h = checkpoint(self.body, x, use_reentrant=False)
        with torch.no_grad():
            nearest = torch.cdist(h, self.codes.weight).argmin(dim=1)
        code = self.codes(nearest)
        commitment = F.mse_loss(code, h.detach()) + 0.25 * F.mse_loss(h, code.detach())
        return self.head(h + (code - h).detach()), self.domain(GradReverse.apply(h, 0.5)), commitment

net = Net()
models, optimizers = [net], [optim.SGD(net.parameters(), lr=0.1, momentum=0.9)]

def data(k, n):
    return normal(k, n, 6), labels(k, 3, n), labels(k + 1, 2, n)

def step(x, y, domain):
    scores, domains, commitment = net(x)
    loss = F.cross_entropy(scores, y) + F.cross_entropy(domains, domain) + commitment
    optimizers[0].zero_grad()
    loss.backward()
    optimizers[0].step()
    return loss
"""

PROGRAMS["SAM"] = """
net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
models, optimizers = [net], [optim.SGD(net.parameters(), lr=0.1, momentum=0.9)]

def data(k, n):
    return normal(k, n, 6), labels(k, 3, n)

def step(x, y, rho=0.05):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm() + 1e-12
        moves = [p.grad * (rho / norm) for p in net.parameters()]
        for p, move in zip(net.parameters(), moves):
            p.add_(move)
    optimizers[0].zero_grad()
    F.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for p, move in zip(net.parameters(), moves):
            p.sub_(move)
    optimizers[0].step()
    optimizers[0].zero_grad()
    return loss
"""


def loaded(program: str, library: str) -> dict[str, Any]:
    """A program's names, its weights from NumPy's generator."""
    text = HEAD + PROGRAMS[program]
    for before, after in (("from torch", f"from {library}"), ("import torch.", f"import {library}."),
                          ("import torch\n", f"import {library} as torch\n")):
        text = text.replace(before, after)
    space: dict[str, Any] = {}
    exec(compile(text, f"<{library}: {program}>", "exec"), space)
    rng = np.random.default_rng(0)
    for model in space["models"]:
        model.load_state_dict({k: space["torch"].tensor(rng.normal(size=tuple(v.shape)) * 0.5) if v.is_floating_point() else v
                               for k, v in model.state_dict().items() if "running_var" not in k}, strict=False)
    return space


def numbers(results: Any) -> list[float]:
    return [x.item() for x in (results if isinstance(results, tuple) else (results,))]


def state(space: dict[str, Any]) -> list[Any]:
    return [v.detach().numpy().copy() for model in space["models"] for v in model.state_dict().values()]


@pytest.fixture(autouse=True)
def _default_dtype(torch: Any) -> Any:
    before = torch.get_default_dtype(), gradcore.get_default_dtype()
    yield
    torch.set_default_dtype(before[0])
    gradcore.set_default_dtype(before[1])


@pytest.mark.parametrize("program", PROGRAMS)
def test_twenty_steps_are_pytorchs(program: str) -> None:
    spaces = [loaded(program, library) for library in ("gradcore", "torch")]
    losses = [[numbers(space["step"](*space["data"](k, 5))) for k in range(20)] for space in spaces]
    np.testing.assert_allclose(*losses, rtol=1e-8, atol=1e-10)
    ours, theirs = map(state, spaces)
    for space in spaces:
        # It and its functions refer to each other.
        space.clear()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_compiled_step_has_the_bits_of_the_eager_one_through_changes(program: str) -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        space = loaded(program, "gradcore")
        run: Any = wrap(space["step"])
        losses = []
        for k in range(11):
            if k == 3:
                for optimizer in space["optimizers"]:
                    optimizer.param_groups[0]["lr"] *= 0.5
            if k == 7:
                space["models"][0].eval()
                vars(space["models"][0])["entropy_weight"] = 0.02
            losses.append(numbers(run(*space["data"](k, 3 if k in (5, 6) else 5))))
        found.append((losses, [a.tobytes() for a in state(space)]))
        # They go with the models.
        programs = [] if run is space["step"] else run.programs
        space.clear()
    assert found[0] == found[1]
    assert programs and not any("cannot be replayed" in why for why in run.traces[1:]), run.explain()
