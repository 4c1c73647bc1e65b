"""Further models of which kept bytes are compared with PyTorch's: tensors are gated, dropped or scaled between their layers."""

from __future__ import annotations

from typing import Any

from bench.workloads import ADAM, Workload


def llama(library: Any, *, vocab: int = 1000, width: int = 256, hidden: int = 704, layers: int = 4, heads: int = 8) -> Any:
    """Pre-norm blocks with RMS norm, and a gated network (SwiGLU; Shazeer, arXiv:2002.05202)."""
    nn = library.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            h = self.norm1(x)
            q, k, v = (layer(h).view(b, t, heads, c // heads).transpose(1, 2) for layer in (self.q, self.k, self.v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
            h = self.norm2(x)
            return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))

    return nn.Sequential(nn.Embedding(vocab, width), *(Block() for _ in range(layers)), nn.RMSNorm(width),
                         nn.Linear(width, vocab, bias=False))


def encoder(library: Any, *, vocab: int = 1000, width: int = 256, layers: int = 4) -> Any:
    """``nn.TransformerEncoderLayer`` with its defaults, among them dropout."""
    nn = library.nn
    return nn.Sequential(nn.Embedding(vocab, width), *(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
                                                       for _ in range(layers)), nn.Linear(width, vocab))


def mobile(library: Any, *, width: int = 32, layers: int = 4) -> Any:
    """Inverted bottlenecks with squeeze-and-excitation, as in EfficientNet (Tan and Le, arXiv:1905.11946)."""
    nn = library.nn
    wide = 4 * width

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.expand = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
                                        nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide),
                                        nn.SiLU())
            self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, width // 4, 1), nn.SiLU(),
                                       nn.Conv2d(width // 4, wide, 1), nn.Sigmoid())
            self.reduce = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            h = self.expand(x)
            return x + self.reduce(h * self.scale(h))

    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.SiLU(),
                         *(Block() for _ in range(layers)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def resnet(library: Any, *, width: int = 16, blocks: int = 3) -> Any:
    """Three stages of residual blocks, with sums and activations in place (He et al., arXiv:1512.03385)."""
    nn = library.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, given: int, made: int) -> None:
            super().__init__()
            stride = made // given
            self.first = nn.Sequential(nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made),
                                       nn.ReLU(inplace=True))
            self.second = nn.Sequential(nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made))
            self.aside = nn.Identity() if stride == 1 else nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False),
                                                                         nn.BatchNorm2d(made))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            y = self.second(self.first(x))
            y += self.aside(x)
            return self.relu(y)

    widths = [width, *(width * 2 ** k for k in range(3) for _ in range(blocks))]
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                         *map(Block, widths, widths[1:]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def densenet(library: Any, *, growth: int = 12, layers: int = 8) -> Any:
    """Each layer reads what all before it in its block have returned (Huang et al., arXiv:1608.06993)."""
    nn = library.nn

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 4 * growth, 1, bias=False))
            self.second = nn.Sequential(nn.BatchNorm2d(4 * growth), nn.ReLU(),
                                        nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False))

        def forward(self, features: list[Any]) -> Any:
            return self.second(self.first(library.cat(features, 1)))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer(width + k * growth) for k in range(layers))

        def forward(self, x: Any) -> Any:
            features = [x]
            for layer in self.layers:
                features.append(layer(features))
            return library.cat(features, 1)

    width, parts = 2 * growth, [nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)]
    for k in range(3):
        parts.append(Block(width))
        width += layers * growth
        parts += [nn.BatchNorm2d(width), nn.ReLU()]
        if k < 2:
            parts += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


KEPT = {
    "llama": Workload("Llama of 4 layers, width 256", llama, 4, (256,), (256,), 1000, "Adam", ADAM, 1, tokens=1000),
    "encoder": Workload("encoder of 4 layers, width 256", encoder, 4, (256,), (256,), 1000, "Adam", ADAM, 1, tokens=1000),
    "mobile": Workload("4 inverted bottlenecks, 3x32x32", mobile, 32, (3, 32, 32), (), 10, "Adam", ADAM, 1),
    "resnet": Workload("ResNet-20, 3x32x32", resnet, 32, (3, 32, 32), (), 10, "Adam", ADAM, 1),
    "densenet": Workload("DenseNet of 3 x 8 layers, growth 12, 3x32x32", densenet, 32, (3, 32, 32), (), 10, "Adam", ADAM, 1),
}
