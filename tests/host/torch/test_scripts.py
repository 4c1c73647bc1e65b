"""Training scripts written for PyTorch, run with both libraries from the same weights: the same losses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
              pytest.mark.filterwarnings("ignore:Full backward hook is firing")]

#: The beginning of each script: imports, and weights that do not depend on a library's random numbers.
HEAD = """
import math
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset

def fill(model):
    rng = np.random.default_rng(0)
    for p in model.parameters():
        scale = 1 / math.sqrt(max(p.shape[-1], 1)) if p.dim() > 1 else 0.1
        p.data.copy_(torch.tensor((rng.normal(size=tuple(p.shape)) * scale).astype(np.float32)))

rng = np.random.default_rng(1)
losses = []
"""

CLASSIFIER = """
class Images(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        made = np.random.default_rng(index)
        image = made.normal(size=(1, 8, 8)).astype(np.float32)
        return image + (index % 3), index % 3

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.fc = nn.Linear(4 * 8 * 8, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = torch.flatten(F.relu(self.up(x)), 1)
        return F.log_softmax(self.fc(x), dim=1)

device = torch.device("cpu")
model = Net().to(device)
fill(model)
optimizer = optim.Adadelta(model.parameters(), lr=1.0)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
loader = DataLoader(Images(), batch_size=16, shuffle=False, drop_last=True, num_workers=0)
for epoch in range(3):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(dim=1) == y).type(torch.float).sum().item() for x, y in loader)
    losses.append(right / len(loader.dataset))
    scheduler.step()
torch.save(model.state_dict(), path)
again = Net()
again.load_state_dict(torch.load(path, weights_only=True))
again.eval()
losses.append(F.nll_loss(again(data), target).item())
"""

LANGUAGE = """
class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.encoder = nn.Embedding(12, 8)
        self.rnn = getattr(nn, kind)(8, 8, 2, batch_first=True)
        self.mix = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
        self.decoder = nn.Linear(8, 12)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.encoder(tokens), hidden)
        out = self.mix(out, mask=nn.Transformer.generate_square_subsequent_mask(tokens.size(1)))
        return self.decoder(out), hidden

def detached(hidden):
    return tuple(detached(h) for h in hidden) if isinstance(hidden, tuple) else hidden.detach()

text = torch.tensor(rng.integers(0, 12, (4, 61)))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for kind in ("LSTM", "GRU", "RNN"):
    model = Model(kind)
    fill(model)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = optim.NAdam([{"params": decay, "weight_decay": 0.01}, {"params": rest}], lr=0.01)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=12)
    hidden = None
    for start in [0, 20, 40] * 4:
        tokens, target = text[:, start:start + 20], text[:, start + 1:start + 21]
        scores, hidden = model(tokens, hidden)
        hidden = detached(hidden)
        loss = criterion(scores.reshape(-1, 12), target.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
"""

ADVERSARIES = """
generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(True), nn.Unflatten(1, (4, 2, 2)),
                          nn.Upsample(scale_factor=2), nn.ConvTranspose2d(4, 1, 2, 2, bias=False), nn.Tanh())
critic = nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(64, 1))
for model in (generator, critic):
    fill(model)
criterion = nn.BCEWithLogitsLoss()
by_critic = optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
by_generator = optim.RMSprop(generator.parameters(), lr=2e-3, momentum=0.5)
seen = []
handle = generator[0].register_full_backward_hook(lambda module, before, after: seen.append(after[0].abs().sum()))
noise = DataLoader(TensorDataset(torch.tensor(rng.normal(size=(40, 4)).astype(np.float32))), batch_size=8)
for (z,) in noise:
    real = torch.tensor(rng.normal(size=(8, 1, 8, 8)).astype(np.float32))
    critic.zero_grad()
    fake = generator(z)
    loss = criterion(critic(real), torch.ones(8, 1)) + criterion(critic(fake.detach()), torch.zeros(8, 1))
    loss.backward()
    by_critic.step()
    generator.zero_grad()
    tricked = criterion(critic(fake), torch.ones(8, 1)) + 0.1 * F.smooth_l1_loss(fake, real)
    tricked.backward()
    by_generator.step()
    losses += [loss.item(), tricked.item(), seen[-1].item()]
handle.remove()
"""


def losses_of(script: str, library: str, path: Path) -> list[float]:
    """Run a script, with ``import gradcore as torch`` in place of ``import torch``."""
    text = HEAD + script
    if library != "torch":
        text = text.replace("from torch", f"from {library}").replace("import torch.", f"import {library}.").replace(
            "import torch\n", f"import {library} as torch\n")
    space: dict[str, Any] = {"path": path}
    exec(compile(text, f"<{library} script>", "exec"), space)
    found: list[float] = space["losses"]
    space.clear()
    return found


@pytest.mark.parametrize("script", ["CLASSIFIER", "LANGUAGE", "ADVERSARIES"])
def test_the_same_losses(torch: Any, script: str, tmp_path: Path) -> None:
    text = globals()[script]
    ours, theirs = (losses_of(text, library, tmp_path / library) for library in ("gradcore", "torch"))
    assert len(ours) == len(theirs) > 10 and not any(map(math.isnan, ours))
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-4)
