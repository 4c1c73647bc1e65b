"""Random training programs, as text that PyTorch and gradcore run alike.

A program draws from views, in-place writes to them, reads and writes by index, hooks, checkpoints, functions of one's own,
detached parts, several backward passes, second derivatives and optimizers. It leaves out what docs/pytorch.md says differs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

HEAD = """
F = torch.nn.functional
checkpoint = torch.utils.checkpoint.checkpoint

class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * x * factor

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * 3 * ctx.factor * x * x, None

class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx, gs, gp):
        x, y = ctx.saved_tensors
        return gs + gp * y, gs + gp * x

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2
"""

SAME = [
    "{a}.tanh()", "{a}.sigmoid()", "F.relu({a})", "{a}.sin()", "F.gelu({a})", "F.softplus({a})", "{a} * {a}",
    "1 / ({a} * {a} + 1)", "{a}.clamp(-1, 1)", "{a}.clone()", "{a}.tanh().exp()", "({a} * {a} + 0.5).sqrt()",
    "{a}.masked_fill({a} > 0.3, 0.5)", "{a} * 2.0", "k - {a}", "{a} / 2", "{a}.tanh() ** 3", "{a} + {a}.detach()",
    "{a} * scale", "F.silu({a})", "Cubed.apply({a}.tanh(), k)", "({a} * 3).long() * 0.1 + {a}", "{a}.detach()",
    "{a}.detach().clone().requires_grad_()", "torch.empty_like({a}).copy_({a})",
    "checkpoint(lambda z: F.gelu(z) * k, {a}, use_reentrant=False)",
    "checkpoint(lambda z: z.sin() * z, {a}, use_reentrant=True)"]
TWO = [
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b} * {b} + 1)", "torch.maximum({a}, {b})",
    "torch.where({a} > {b}, {a}, {b})", "torch.hypot({a} + 3, {b})", "{a}.add({b}, alpha=k)",
    "torch.addcmul({a}, {b}, {b}, value=0.5)", "{a} * {b}.detach()", "F.mse_loss({a}, {b}.expand_as({a}), reduction='none')",
    "checkpoint(lambda z, q: (z * q).tanh() + q, {a}, {b}, use_reentrant=False)"]
ALONG = [
    "{a}.softmax({d})", "{a}.cumsum({d})", "{a}.flip({d})", "F.normalize({a}, dim={d})", "{a}.gather({d}, {a}.argsort({d}))"]
FOLDS = [
    "{a}.sum({d})", "{a}.mean({d})", "{a}.amax({d})", "{a}.logsumexp({d})", "{a}.tanh().prod({d})",
    "{a}.var({d}, unbiased=False)"]
ROWS = [
    "F.layer_norm({a}, ({n},))", "F.layer_norm({a}, ({n},), {b}, {b})", "F.rms_norm({a}, ({n},))",
    "F.glu(torch.cat([{a}, {a}], -1), -1)", "F.linear({a}, {b}[:, None].expand(-1, {n}), {b})"]
IN_PLACE = [
    "mul_(2)", "add_(k)", "tanh_()", "zero_()", "clamp_(-1, 1)", "neg_()", "fill_(0.5)", "square_()", "mul_({b})",
    "add_({b})", "sub_({b})", "copy_({b})", "add_({b}, alpha=k)", "div_({b} * {b} + 1)", "atan2_({b} + 2)",
    "addcmul_({b}, {b})", "masked_fill_({b} > 0, 0.1)"]
OPTIMIZERS = [
    "SGD({p}, lr=0.1)", "SGD({p}, lr=0.1, momentum=0.9)", "Adam({p}, lr=0.05, eps=1e-2)", "AdamW({p}, lr=0.05, eps=1e-2)"]
SHAPES: list[tuple[int, ...]] = [(3, 4), (4,), (4, 4), (1, 4), (4, 3)]


class Unfit(Exception):
    """Nothing that has been made so far fits what was drawn."""


@dataclass
class Var:
    """A tensor of a program: its name, its shape, and the variable whose bytes it shows."""

    name: str
    shape: tuple[int, ...]
    wants: bool
    leaf: bool = False
    root: str = ""
    #: One of several views that an op returned, of which PyTorch lets none be written to.
    several: bool = False

    def __post_init__(self) -> None:
        self.root = self.root or self.name


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


class Program:
    """A program with ``step(x, y, idx, k)``, which returns what it has seen."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.names, self.indent, self.recording, self.backwards = 0, "    ", True, 3
        self.retained: list[Var] = []
        self.leaves = [Var(f"w{k}", self.draw.choice(SHAPES), True, True) for k in range(self.draw.randint(1, 3))]
        self.buffer = Var("b", self.draw.choice([(4,), (1,), (3, 1)]), False)
        self.inputs = Var("x", self.draw.choice([(3, 4), (2, 3, 4)]), self.draw.random() < 0.2), Var("y", (4,), False)
        self.inputs[0].leaf = self.inputs[0].wants
        self.vars = [*self.leaves, self.buffer, *self.inputs]
        parameters = f"[{', '.join(w.name for w in self.leaves)}]"
        self.head = [f"{v.name} = normal({k}, {v.shape}){'.requires_grad_()' * v.wants}"
                     for k, v in enumerate((*self.leaves, self.buffer))]
        self.head.append("optimizer = torch.optim." + self.draw.choice(OPTIMIZERS).format(p=parameters))
        self.lines: list[str] = []
        kinds: list[Callable[[], None]] = [
            *[self.same, self.two, self.view] * 3, *[self.in_place] * 2, self.fold, self.rows, self.product, self.write,
            self.read, self.join, self.parts, self.function, self.unrecorded, self.watch, self.backward, self.slope, self.state,
            self.see]
        for _ in range(self.draw.randint(4, 20)):
            self.attempt(kinds)
        if not any("backward(" in line for line in self.lines[-1:]):
            self.backwards += 1
            self.attempt([self.backward])
        self.add(*[f"seen.append({v.name}.grad)" for v in self.retained if self.draw.random() < 0.5])
        self.add(*self.draw.choice([["optimizer.step()", "optimizer.zero_grad()"], ["optimizer.step()"], [], [
            "optimizer.zero_grad(set_to_none=False)"]]))

    @property
    def text(self) -> str:
        return "\n".join([*self.head, "scale = 1.25", "", "def step(x, y, idx, k):", "    seen = []", *self.lines,
                          "    return [s if s is None else s.detach() for s in seen]", ""])

    def attempt(self, kinds: list[Callable[[], None]]) -> None:
        """Add a statement of one of the kinds, if it fits."""
        before = len(self.lines), len(self.vars)
        try:
            self.draw.choice(kinds)()
        except Unfit:
            del self.lines[before[0]:], self.vars[before[1]:]

    def add(self, *lines: str) -> None:
        self.lines += [self.indent + line for line in lines]

    def pick(self, fits: Callable[[Var], bool] = lambda v: True) -> Var:
        found = [v for v in self.vars if fits(v)]
        if not found:
            raise Unfit
        return self.draw.choice(found[-5:] if self.draw.random() < 0.5 else found)

    def new(self, text: str, shape: tuple[int, ...], *sources: Var, view: bool = False, several: bool = False) -> None:
        self.names += 1
        wants = self.recording and any(v.wants for v in sources) and ".detach()" not in text
        root = sources[0].root if view or "detach" in text else ""
        self.vars.append(Var(f"t{self.names}", shape, wants, root=root, several=several))
        self.add(f"t{self.names} = {text}")
        if "requires_grad_" in text:
            self.vars[-1].wants = self.vars[-1].leaf = True

    # -- statements ----------------------------------------------------------------------------------------------------

    def same(self) -> None:
        a = self.pick()
        self.new(self.draw.choice(SAME).format(a=a.name), a.shape, a)

    def two(self) -> None:
        a = self.pick()
        b = self.pick(lambda v: broadcast(a.shape, v.shape) == a.shape)
        self.new(self.draw.choice(TWO).format(a=a.name, b=b.name), a.shape, a, b)

    def fold(self) -> None:
        a = self.pick(lambda v: len(v.shape) > 0)
        d = self.draw.randrange(len(a.shape))
        if self.draw.random() < 0.5:
            self.new(self.draw.choice(ALONG).format(a=a.name, d=d), a.shape, a)
        else:
            self.new(self.draw.choice(FOLDS).format(a=a.name, d=d), a.shape[:d] + a.shape[d + 1:], a)

    def rows(self) -> None:
        a = self.pick(lambda v: len(v.shape) > 1 and v.shape[-1] > 1)
        b = self.pick(lambda v: v.shape == a.shape[-1:])
        self.new(self.draw.choice(ROWS).format(a=a.name, b=b.name, n=a.shape[-1]), a.shape, a, b)

    def product(self) -> None:
        a = self.pick(lambda v: len(v.shape) > 1)
        b = self.pick(lambda v: 0 < len(v.shape) < 3 and v.shape[0] == a.shape[-1])
        self.new(f"{a.name} @ {b.name}", (*a.shape[:-1], *b.shape[1:]), a, b)

    def view_of(self, a: Var, writable: bool) -> tuple[str, tuple[int, ...]]:
        s = a.shape
        if not s:
            raise Unfit
        d = self.draw.randrange(len(s))
        found = [("[0]", s[1:]), (".flatten()", (int(np.prod(s)),)), (f".select({d}, -1)", s[:d] + s[d + 1:])]
        if s[d] > 1:
            found += [(f".narrow({d}, 1, {s[d] - 1})", (*s[:d], s[d] - 1, *s[d + 1:]))]
        if s[0] > 1:
            found += [("[1:]", (s[0] - 1, *s[1:])), ("[::2]", ((s[0] + 1) // 2, *s[1:]))]
        if len(s) == 2:
            found += [(".t()", s[::-1]), (".diagonal()", (min(s),))]
        if len(s) == 3:
            found += [(".permute(2, 0, 1)", (s[2], *s[:2]))]
        if not writable and len(s) < 3:
            found += [(f".expand(2, {', '.join(map(str, s))})", (2, *s))]
        text, shape = self.draw.choice([f for f in found if f[1] != s] or [("[None]", (1, *s))])
        return a.name + text, shape

    def view(self) -> None:
        a = self.pick(lambda v: len(v.shape) < 4)
        text, shape = self.view_of(a, False)
        self.new(text, shape, a, view=True, several=a.several or "expand" in text)

    def target(self) -> Var:
        """What may be written to; now and then something that PyTorch refuses, too."""
        daring = self.draw.random() < 0.02
        return self.pick(lambda v: daring or not (v.several or (v.leaf and self.recording)))

    def in_place(self) -> None:
        a = self.target()
        name, shape = self.view_of(a, True) if self.draw.random() < 0.5 else (a.name, a.shape)
        text = self.draw.choice(IN_PLACE)
        if "{b}" in text:
            b = self.pick(lambda v: v.root != a.root and broadcast(shape, v.shape) == shape)
            text = text.format(b=b.name)
            a.wants |= b.wants and self.recording
        self.add(f"{name}.{text}")

    def write(self) -> None:
        a = self.target()
        if not a.shape:
            raise Unfit
        n, s = a.shape[0], a.shape[1:]
        index, shape = self.draw.choice([("0", s), ("1:", (n - 1, *s)), ("[0, -1]", (2, *s)), (f"idx[:2] % {n}", (2, *s)),
                                         (f"{a.name} > 0.5", ())])
        if n == 1 and index in ("1:", "[0, -1]"):
            raise Unfit
        if ">" in index or self.draw.random() < 0.3:
            self.add(f"{a.name}[{index}] = {self.draw.choice(['k', '0.5'])}")
            return
        b = self.pick(lambda v: v.root != a.root and broadcast(shape, v.shape) == shape)
        self.add(f"{a.name}[{index}] {self.draw.choice(['=', '+=', '*='] if index in ('0', '1:') else ['='])} {b.name}")
        a.wants |= b.wants and self.recording

    def read(self) -> None:
        a = self.pick(lambda v: 0 < len(v.shape) < 4)
        d = self.draw.randrange(len(a.shape))
        shape = (*a.shape[:d], 4, *a.shape[d + 1:])
        self.new(f"{a.name}[{':, ' * d}idx % {a.shape[d]}]", shape, a)

    def join(self) -> None:
        a = self.pick(lambda v: 0 < len(v.shape) < 4 and np.prod(v.shape) < 200)
        b = self.pick(lambda v: v.shape == a.shape)
        d = self.draw.randrange(len(a.shape))
        name, shape = self.draw.choice([("cat", (2 * a.shape[d], *a.shape[d + 1:])), ("stack", (2, *a.shape[d:]))])
        self.new(f"torch.{name}([{a.name}, {b.name}], {d})", (*a.shape[:d], *shape), a, b)

    def parts(self) -> None:
        a = self.pick(lambda v: len(v.shape) > 0 and v.shape[-1] > 1)
        n, s = a.shape[-1], a.shape[:-1]
        text, shape = self.draw.choice([(f"split([1, {n - 1}], -1)[1]", (*s, n - 1)), (f"chunk({n}, -1)[0]", (*s, 1)),
                                        ("unbind(-1)[1]", s)])
        self.new(f"{a.name}.{text}", shape, a, view=True, several=True)

    def function(self) -> None:
        a = self.pick()
        if self.draw.random() < 0.5 and not (a.leaf or a.several or a.name in "bxy"):
            self.new(f"Doubled.apply({a.name})", a.shape, a, view=True)
        else:
            b = self.pick(lambda v: v.shape == a.shape)
            self.new(f"Both.apply({a.name}, {b.name})[{self.draw.randrange(2)}]", a.shape, a, b, several=True)

    def unrecorded(self) -> None:
        if not self.recording:
            raise Unfit
        self.add("with torch.no_grad():")
        self.recording, self.indent = False, self.indent + "    "
        count = len(self.lines)
        self.attempt([self.same, self.two, self.in_place, self.write])
        self.recording, self.indent = True, self.indent[4:]
        if len(self.lines) == count:
            raise Unfit

    def watch(self) -> None:
        a = self.pick(lambda v: v.wants and not v.leaf and not v.several and v.root == v.name)
        text = self.draw.choice(["register_hook(lambda g: g * 0.5)", "register_hook(lambda g: seen.append(g.detach().clone()))",
                                 "retain_grad()"])
        if text == "retain_grad()":
            self.retained.append(a)
        self.add(f"{a.name}.{text}")

    def loss(self) -> str:
        terms = [self.pick(lambda v: v.wants).name for _ in range(self.draw.randint(1, 4))]
        return " + ".join(self.draw.choice(["({0} * {0}).sum()", "{0}.sum()", "{0}.tanh().mean()"]).format(t) for t in terms)

    def backward(self) -> None:
        if not self.backwards:
            raise Unfit
        self.backwards -= 1
        self.add(f"({self.loss()}).backward({'retain_graph=True' if self.draw.random() < 0.9 else ''})")

    def slope(self) -> None:
        a, loss = self.pick(lambda v: v.wants), self.loss()
        self.new(f"torch.autograd.grad({loss}, [{a.name}], create_graph=True, allow_unused=True)[0]", a.shape, a, several=True)
        t = self.vars[-1].name
        self.add(f"{t} = torch.zeros_like({a.name}) if {t} is None else {t} * 1")

    def state(self) -> None:
        a = self.pick(lambda v: v.root != "b" and broadcast((*self.buffer.shape,), v.shape) == self.buffer.shape)
        if self.buffer.wants:
            raise Unfit
        self.add(f"b.mul_(0.9).add_({a.name}.detach(), alpha=0.1)")

    def see(self) -> None:
        self.add(f"seen.append({self.pick().name}.detach().clone())")
