"""Whether loops like those that people write are said to grow: what is live is made by a script, without any computation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

import pytest

from gradcore.report.ends import End, Ends


class Loop:
    """Buffers by serial, and the ends of steps."""

    def __init__(self, seed: int) -> None:
        self.random, self.ends = Random(seed), Ends()
        self.live, self.names, self.serial, self.total = dict[int, int](), dict[str, int](), 0, 0
        self.allocate(100_000)

    def allocate(self, nbytes: int) -> int:
        self.serial += 1
        self.live[self.serial] = nbytes
        self.total += nbytes
        return self.serial

    def free(self, serial: int) -> None:
        self.total -= self.live.pop(serial, 0)

    def assign(self, name: str, nbytes: int) -> None:
        """A variable gets another tensor."""
        old, self.names[name] = self.names.get(name, 0), self.allocate(nbytes)
        self.free(old)

    def batch(self, length: int = 0) -> None:
        """One of the given length, or of any, with its loss."""
        self.assign("batch", 400 * (length or self.random.randint(1, 200)))
        self.assign("loss", 4)

    def keep(self, kept: deque[int], nbytes: int, most: int) -> None:
        kept.append(self.allocate(nbytes))
        if len(kept) > most:
            self.free(kept.popleft())

    def forget(self, kept: deque[int]) -> None:
        for serial in kept:
            self.free(serial)
        kept.clear()

    def end(self) -> bool:
        self.ends.add(End(self.total, self.serial, None, 0))
        return self.ends.growth(lambda: self.live)[0] is not None


Script = Callable[[Loop], Iterator[None]]


def last_losses(loop: Loop) -> Iterator[None]:
    kept = deque[int]()
    while True:
        loop.batch()
        loop.keep(kept, 4, 20)
        yield


def more_losses(loop: Loop) -> Iterator[None]:
    kept = deque[int]()
    while True:
        loop.batch()
        loop.keep(kept, 4, 200)
        yield


def batches_fetched_before(loop: Loop) -> Iterator[None]:
    kept = deque[int]()
    while True:
        loop.keep(kept, 400 * loop.random.randint(1, 200), 4)
        loop.assign("loss", 4)
        yield


def three_networks_in_turn(loop: Loop) -> Iterator[None]:
    while True:
        for name in "abc":
            loop.assign(name, 400 * loop.random.randint(1, 60))
            yield


def losses_of_an_epoch(loop: Loop, length: int = 0) -> Iterator[None]:
    kept = deque[int]()
    while True:
        loop.forget(kept)
        for _ in range(100):
            loop.batch(length)
            loop.keep(kept, 4, 100)
            yield


def losses_of_an_epoch_of_equal_batches(loop: Loop) -> Iterator[None]:
    return losses_of_an_epoch(loop, 100)


def results_of_an_evaluation(loop: Loop) -> Iterator[None]:
    kept = deque[int]()
    while True:
        for _ in range(50):
            loop.batch(loop.random.choice([32, 64, 100]))
            yield
        for _ in range(20):
            loop.batch(100)
            loop.keep(kept, 4000, 20)
            yield
        loop.forget(kept)


def a_cache_that_was_filled(loop: Loop) -> Iterator[None]:
    known = set[int]()
    while True:
        loop.batch()
        if (length := loop.live[loop.names["batch"]]) not in known:
            known.add(length)
            loop.allocate(800)
        yield


@pytest.mark.parametrize("script", [
    last_losses, more_losses, batches_fetched_before, three_networks_in_turn, losses_of_an_epoch,
    losses_of_an_epoch_of_equal_batches, results_of_an_evaluation, a_cache_that_was_filled])
def test_what_is_replaced_or_given_back_is_no_growth(script: Script) -> None:
    for seed in range(3):
        loop = Loop(seed)
        told = [loop.end() for _ in zip(range(4000), script(loop), strict=False)]
        # Nearly never: three steps may have grown by chance to where none was before.
        assert sum(told[2500:]) <= 30


def a_result_of_each(loop: Loop) -> Iterator[None]:
    while True:
        loop.batch()
        loop.allocate(4)
        yield


def one_buffer_that_grows(loop: Loop) -> Iterator[None]:
    for k in range(1, 100_000):
        loop.batch()
        loop.assign("history", 4 * k)
        yield


def copies_of_the_best(loop: Loop) -> Iterator[None]:
    while True:
        loop.batch()
        if loop.random.random() < 0.005:
            loop.allocate(100_000)
        yield


def a_result_of_each_beside_a_queue(loop: Loop) -> Iterator[None]:
    kept = deque[int]()
    while True:
        loop.batch()
        loop.keep(kept, 4000, 100)
        loop.allocate(400)
        yield


def a_result_of_each_epoch(loop: Loop) -> Iterator[None]:
    for k, _ in enumerate(losses_of_an_epoch(loop)):
        if k % 100 == 99:
            loop.allocate(400)
        yield


@pytest.mark.parametrize("script", [
    a_result_of_each, one_buffer_that_grows, copies_of_the_best, a_result_of_each_beside_a_queue, a_result_of_each_epoch])
def test_growth_below_batches_of_random_lengths_is_told_at_every_step(script: Script) -> None:
    for seed in range(2):
        loop = Loop(seed)
        told = [loop.end() for _ in zip(range(6000), script(loop), strict=False)]
        assert sum(told[4500:]) >= 1400


def test_what_every_five_thousandth_step_keeps_is_told_in_the_end() -> None:
    loop, told = Loop(0), []
    for k in range(70_000):
        loop.batch(100 if k % 5 else 64)
        if k % 5000 == 4999:
            loop.allocate(4000)
        told.append(loop.end())
    assert not any(told[:15_000]) and all(told[40_000:])
