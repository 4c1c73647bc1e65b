"""Random tensors, and generators whose state is in device memory.

A generator's numbers depend only on its seed and on how many were drawn before: the same program draws the same uniform
numbers on every device.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from gradcore import functional
from gradcore.devices.device import Device, device_of_new, devices, get_device
from gradcore.devices.turns import share, turn
from gradcore.engine.modes import no_grad
from gradcore.engine.operands import number
from gradcore.engine.owners import upload
from gradcore.engine.sites import here
from gradcore.engine.state import SETUP, local, scoped, unwatching
from gradcore.errors import SpecError, TraceError
from gradcore.functional.shape import plain
from gradcore.ops import elementwise, movement, random
from gradcore.ops.creation import sized

Tensor = Any

#: The default seed, as in PyTorch.
DEFAULT_SEED = 67280421310721
#: What a generator's next order on the host depends on: its seed, and how many orders were drawn before.
Place = tuple[int, int]


def _words(seed: int) -> np.ndarray[Any, Any]:
    """The initial state of a generator: key, unused, counter, and the number of orders drawn on the host, if it is kept."""
    return np.array([seed % 2**64, 0, 0, 0], np.uint64).view(np.int64)


class Generator:
    """A stream of random numbers on one device.

    Its state, int64 [4], keeps its address, so captured and replayed programs go on drawing from it.
    """

    def __init__(self, device: str | int | Device | None = None) -> None:
        self.device = get_device(device)
        self._seed = DEFAULT_SEED
        self._permutations = 0
        #: For use inside of :meth:`_turn`.
        self._state = upload(_words(self._seed), self.device, op="generator", role="buffer")
        share(self._state.storage)

    def _turn(self) -> AbstractContextManager[Any]:
        """A context in which the current stream may use the state."""
        return turn(self._state.storage)

    def manual_seed(self, seed: int) -> Generator:
        """Start again from ``seed``, an int of which the low 64 bits are used. Raises TypeError for other types."""
        if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
            raise TypeError(f"manual_seed expected a long, but got {type(seed).__name__}")
        self._seed = int(seed)
        self._permutations = 0
        storage = self._state.storage
        with self._turn():
            self.device.upload(storage, self._state.spec, _words(self._seed))
        storage.version += 1
        return self

    def initial_seed(self) -> int:
        """The seed that this generator started from."""
        return self._seed

    def seed(self) -> int:
        """Start again from a seed drawn from the operating system, and return it."""
        seed = secrets.randbits(53)
        self.manual_seed(seed)
        return seed

    def snapshot(self, numel: int) -> Tensor:
        """The state for one op, int64 [4] on the device; the generator is advanced by ``numel`` numbers."""
        with self._turn():
            return random.advance(self._state, numel=numel)

    def get_state(self) -> Tensor:
        """A copy of the state, on the device. It says which order the next shuffle takes, too."""
        state = self.device_state()
        if self._permutations:
            # Shuffling does not write this word, which would be one more upload each time: it is never more than this number.
            with no_grad():
                functional.narrow(state, 0, 3, 1).fill_(self._permutations)
        return state

    def set_state(self, state: Tensor) -> Generator:
        """Continue from a state that :meth:`get_state` returned, whose values are read on the host.

        Raises :class:`SpecError` for another shape.
        """
        with self._turn():
            movement.copy_(self._state, state)
        if state.device.type != "meta":
            try:
                key, _, _, self._permutations = state.tolist()
            except TraceError:
                raise TraceError(f"{here()} sets the state of a generator, which a replay would not do for orders that "
                                 "are drawn on the host: set it outside") from None
            if (key - self._seed) % 2**64:
                self._seed = key % 2**64
        return self

    def device_state(self) -> Tensor:
        """A copy of the part of the state that is on the device."""
        with self._turn(), unwatching():
            return movement.clone(self._state)

    @property
    def place(self) -> Place:
        """The part of the state that is on the host."""
        return self._seed, self._permutations

    @place.setter
    def place(self, place: Place) -> None:
        self._seed, self._permutations = place

    @property
    def drawn(self) -> tuple[int, int]:
        """Changes with each draw."""
        return self._state.storage.version, self._permutations

    def put_back(self, state: Tensor, place: Place) -> None:
        """Continue from a :meth:`device_state` and a ``place``, without reading any value."""
        with self._turn():
            movement.copy_(self._state, state)
        self.place = place

    def clone_state(self) -> Generator:
        """Another generator that draws the same numbers from now on."""
        other = Generator(self.device)
        with self._turn():
            other.put_back(self._state, self.place)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Generator:
        return self.clone_state()

    def permutation(self, n: int) -> np.ndarray[Any, Any]:
        """A random permutation of ``range(n)``, int64 [n], on the host.

        It is drawn from a host stream of its own (the key's second word is 1), so that nothing is read back from the device,
        and meta can shuffle too.
        """
        return self.host_stream().permutation(n)

    def host_stream(self) -> np.random.Generator:
        """A NumPy generator for the next stream on the host, a different one at each call."""
        key = np.array([self._seed % 2**64, 1], np.uint64)
        philox = np.random.Philox(key=key, counter=[0, self._permutations, 0, 0])
        self._permutations += 1
        return np.random.Generator(philox)

    def __repr__(self) -> str:
        return f"<gradcore.Generator on {self.device}, seed {self._seed}>"


# -- default generators ------------------------------------------------------------------------------------------------

#: The seed for default generators that are created later.
_seed = [DEFAULT_SEED]


def default_generator(device: str | int | Device | None = None) -> Generator:
    """The device's default generator, created when first used."""
    device = get_device(device).compute
    found: Generator | None = device.generator
    if found is None:
        # It is no layer's, though one be the first to draw.
        with scoped(like=SETUP.plain):
            found = device.generator = Generator(device).manual_seed(_seed[0])
    return found


def manual_seed(seed: int) -> Generator:
    """Start the default generators of all devices in use again from ``seed``, and return the CPU's.

    Missing ones are created, so that a run allocates in the same order on every device.
    """
    cpu = default_generator("cpu").manual_seed(seed)
    for device in devices():
        if device.compute is not cpu.device:
            default_generator(device).manual_seed(seed)
    _seed[0] = cpu.initial_seed()
    return cpu


def initial_seed() -> int:
    """The seed that the CPU's default generator started from."""
    return default_generator("cpu").initial_seed()


def seed() -> int:
    """Start all default generators again from a seed drawn from the operating system, and return it."""
    chosen = secrets.randbits(53)
    manual_seed(chosen)
    return chosen


def get_rng_state() -> Tensor:
    """The state of the CPU's default generator, int64 [4]."""
    return default_generator("cpu").get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Let the CPU's default generator continue from a state of :func:`get_rng_state`."""
    default_generator("cpu").set_state(new_state)


def default_generators() -> list[Generator]:
    """The existing default generators, and the CPU's."""
    cpu = default_generator("cpu")
    return [cpu, *(d.generator for d in devices() if d.generator not in (None, cpu))]


def bookmark() -> Callable[[], None]:
    """A function that takes the default generators that exist now back to where they are now."""
    kept = [(g, g.device_state(), g.place) for g in default_generators()]

    def go_back() -> None:
        for generator, state, place in kept:
            generator.put_back(state, place)

    return go_back


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True) -> Iterator[None]:
    """A context manager after which all default generators continue from their states before it, unless not ``enabled``."""
    if not enabled:
        yield
        return
    go_back = bookmark()
    try:
        yield
    finally:
        go_back()


# -- random tensors ----------------------------------------------------------------------------------------------------


def generator_of(device: Any, generator: Generator | None) -> Generator:
    """The generator to draw from. Raises RuntimeError if it is on another device."""
    if generator is None:
        generator = default_generator(device_of_new(device))
    elif device is not None and get_device(device) is not generator.device:
        raise RuntimeError(f"Expected a '{get_device(device)}' device type for generator but found "
                           f"'{generator.device}'")
    return generator


def _draw(op: Any, low: float, high: float, shape: tuple[int, ...], dtype: Any, device: Any,
          generator: Generator | None, requires_grad: bool) -> Tensor:
    dtype = np.dtype(dtype or functional.get_default_dtype())
    spec = sized(shape, dtype)
    result = op(generator_of(device, generator).snapshot(spec.numel), float(low), float(high), shape=shape, dtype=dtype)
    if op is random.uniform and dtype.itemsize == 2:
        # Draws are float32; the largest below ``high`` rounds to ``high``, which is outside the range.
        below = float(np.nextafter(dtype.type(high), dtype.type(low)))
        result = elementwise.clamp(result, None, below) if high > low else result
    result.requires_grad = requires_grad
    return result


def rand(*size: Any, generator: Generator | None = None, dtype: Any = None, device: Any = None,
         requires_grad: bool = False) -> Tensor:
    """A tensor of shape ``size``, uniform in [0, 1), of the default dtype unless given."""
    return _draw(random.uniform, 0, 1, functional.size_of("rand", size), dtype, device, generator, requires_grad)


def randn(*size: Any, generator: Generator | None = None, dtype: Any = None, device: Any = None,
          requires_grad: bool = False) -> Tensor:
    """A tensor of shape ``size``, normal with mean 0 and standard deviation 1, of the default dtype unless given."""
    return _draw(random.normal, 0, 1, functional.size_of("randn", size), dtype, device, generator, requires_grad)


def rand_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """:func:`rand` with the shape, dtype and device of ``input``."""
    return _draw(random.uniform, 0, 1, input.spec.shape, dtype or input.dtype, device_of_new(device, input.device), None,
                 requires_grad)


def randn_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """:func:`randn` with the shape, dtype and device of ``input``."""
    return _draw(random.normal, 0, 1, input.spec.shape, dtype or input.dtype, device_of_new(device, input.device), None,
                 requires_grad)


def randperm(n: int, *, generator: Generator | None = None, dtype: Any = np.int64, device: Any = None) -> Tensor:
    """A random permutation of the integers below ``n``, [n], drawn on the host. Raises ValueError for a negative ``n``."""
    n = plain(n)
    if n < 0:
        raise SpecError(f"n must be non-negative, got {n}")
    device = device_of_new(device, None if generator is None else generator.device)
    generator = default_generator(device) if generator is None else generator
    try:
        return upload(generator.permutation(n).astype(np.dtype(dtype)), get_device(device),
                      op="randperm", role="output")
    except TraceError:
        raise TraceError(f"{here()}: randperm() shuffles on the host, so each replay would use the order of the trace: "
                         f"use gradcore.rand({n}).argsort(), which each replay computes again, or pass the order as an argument"
                         ) from None


def _fill(tensor: Tensor, op: Any, drawing: Any, first: float, second: float, generator: Generator | None) -> Tensor:
    spec = tensor.spec
    state = local.state
    before = state.grad
    # A leaf is filled directly; for a result of a graph the write is recorded.
    recorded = before and not tensor.is_leaf
    try:
        # Not by a context, since an interrupt between its calls would leave it set.
        state.grad = recorded
        if not recorded and spec.contiguous and spec.floating and (spec.dtype.itemsize > 2 or op is random.normal_):
            drawn = generator_of(tensor.device, generator)
            with drawn._turn():
                op(tensor, drawn._state, first, second)
            return tensor
        return movement.copy_(tensor, _draw(drawing, first, second, spec.shape, tensor.dtype, tensor.device, generator, False))
    finally:
        state.grad = before


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with uniform numbers of [a, b). Raises RuntimeError for a > b."""
    a, b = number("uniform_", "a", a), number("uniform_", "b", b)
    if a > b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    return _fill(tensor, random.uniform_, random.uniform, a, b, generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with normally distributed numbers. Raises RuntimeError for a negative ``std``."""
    mean, std = number("normal_", "mean", mean), number("normal_", "std", std)
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return _fill(tensor, random.normal_, random.normal, mean, std, generator)
