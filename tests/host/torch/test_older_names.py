"""Names and habits of older scripts: ``Variable``, tensors of lists of tensors, fans, and where a tensor is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_are_torchs(torch: Any) -> None:
    outcomes = []
    for t in (gradcore, torch):
        variable = t.autograd.Variable
        w = t.ones(2, requires_grad=True)
        shared = variable(w)
        shared.add_(1)
        leaf = variable(t.ones(2), requires_grad=True)
        (leaf * w.detach()).sum().backward()
        scalars = [(w * k).sum() for k in range(3)]
        outcomes.append([
            shared.requires_grad, w.tolist(), leaf.is_leaf, leaf.grad.tolist(), variable(t.ones(1), volatile=False).tolist(),
            isinstance(w, variable), isinstance(t.nn.Parameter(w), variable), isinstance(1, variable),
            t.tensor(scalars).tolist(), t.tensor([[scalars[1], 2], [3, 4]]).tolist(), t.tensor([scalars]).requires_grad,
            str(t.tensor([t.tensor(1), t.tensor(2)]).dtype).removeprefix("torch."), t.as_tensor(scalars).tolist(),
            t.nn.init._calculate_fan_in_and_fan_out(t.ones(2, 3, 5)), w.is_cpu, w.is_meta, w.get_device(),
            t.randint_like(w, 2, 3).tolist(), t.randint_like(w, 1).tolist(),
            str(t.randint_like(w, 9).dtype).removeprefix("torch.")])
        with pytest.raises(TypeError, match="Variable data has to be a tensor, but got list"):
            variable([1.0])
        with pytest.raises(RuntimeError, match=r"expects lambda > 0\.0, but found lambda=0"):
            w.detach().exponential_(0.0)
    assert outcomes[0] == outcomes[1]


def test_exponential_numbers() -> None:
    gradcore.manual_seed(0)
    x = gradcore.empty(200_000)
    assert x.exponential_(2.0) is x
    # Mean and deviation are 1 / rate, with an error of 1 / sqrt(200,000).
    np.testing.assert_allclose([x.mean().item(), x.std().item()], 0.5, atol=0.01)
    np.testing.assert_allclose((x < 0.5 * np.log(2)).float().mean().item(), 0.5, atol=0.01)
    assert gradcore.zeros(100_000, dtype=gradcore.float16).exponential_().min().item() > 0
    drawn = [gradcore.empty(3).exponential_(generator=gradcore.Generator().manual_seed(5)).tolist() for _ in range(2)]
    assert drawn[0] == drawn[1]
    with raises(RuntimeError, "exponential_ expects a tensor of a floating type, but got int64"):
        gradcore.zeros(2, dtype=gradcore.int64).exponential_()


def test_a_tensor_of_tensors_is_read_on_the_host() -> None:
    @gradcore.compile
    def f(x: Any) -> Any:
        return gradcore.tensor([x.sum(), x.mean()])

    with raises(gradcore.TraceError, "reads a value of a tensor on the host"):
        f(gradcore.ones(2))


def test_a_machine_without_a_gpu_supports_no_bfloat16_on_it() -> None:
    if gradcore.cuda.is_available():
        pytest.skip("there is a GPU, which tests/gpu/test_interop.py asks")
    assert not gradcore.cuda.is_bf16_supported()
    with raises(gradcore.DeviceError, "cuda is not available"):
        gradcore.cuda.get_device_capability()
    for call in (gradcore.cuda.memory_summary, gradcore.cuda.synchronize, gradcore.cuda.mem_get_info):
        # A GPU by its number.
        with raises(gradcore.DeviceError, "cuda is not available"):
            call(1)
    assert gradcore.GradScaler is gradcore.amp.GradScaler


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "args"), [
    ("uniform", (2.0, 2.0)), ("normal", (3.0, 0.0)), ("constant", (0.5,)), ("eye", ()), ("dirac", ()), ("xavier_uniform", ()),
    ("xavier_normal", ()), ("kaiming_uniform", ()), ("kaiming_normal", ()), ("orthogonal", ()), ("sparse", (0.5,)),
    ("clip_grad_norm", (1.0,))])
def test_deprecated_names_warn_in_torchs_words(torch: Any, name: str, args: tuple[Any, ...]) -> None:
    said = []
    for t in (gradcore, torch):
        p = t.ones(*((2, 3, 4) if name == "dirac" else (2, 3)), requires_grad=True)
        p.grad = t.ones(*p.shape)
        with pytest.warns(FutureWarning) as caught:
            made = getattr(t.nn.utils if name == "clip_grad_norm" else t.nn.init, name)(p, *args)
        warning, = caught
        said.append((str(warning.message), warning.filename, warning.lineno))
        if name == "clip_grad_norm":
            np.testing.assert_allclose([made.item(), p.grad.norm().item()], [6 ** 0.5, 1.0], rtol=1e-5)
        else:
            assert made is p
            if name in ("uniform", "normal", "constant", "eye", "dirac"):
                said[-1] += (p.tolist(),)
    assert said[0] == said[1] and said[0][1] == __file__


@pytest.mark.oracle
@pytest.mark.parametrize("of", ["float64", "double", "DoubleTensor"])
def test_a_module_takes_a_type(torch: Any, of: str) -> None:
    made = []
    for t in (gradcore, torch):
        m = t.nn.Sequential(t.nn.Linear(2, 3), t.nn.BatchNorm1d(3))
        kind = "torch.DoubleTensor" if of == "double" else getattr(t, of)
        weight = m[0].weight
        (m(t.ones(2, 2)) * t.ones(2, 3)).sum().backward()
        assert m.type(dst_type=kind) is m and m[0].weight is weight and weight.requires_grad
        made.append([(k, v.dtype.itemsize) for k, v in (*m.state_dict().items(), ("grad", weight.grad))])
    assert made[0] == made[1] and {size for _, size in made[0]} == {8}


def test_numbers_of_further_distributions() -> None:
    gradcore.manual_seed(0)
    x = gradcore.empty(200_000)
    assert x.cauchy_(3.0, 2.0) is x
    np.testing.assert_allclose(np.quantile(x.numpy(), [0.25, 0.5, 0.75]), [1, 3, 5], atol=0.05)
    assert x.log_normal_(0.5, 0.25) is x
    np.testing.assert_allclose([x.log().mean().item(), x.log().std().item()], [0.5, 0.25], atol=0.005)
    for counts in (x, gradcore.zeros(200_000, dtype=gradcore.int64)):
        assert counts.geometric_(0.3) is counts
        share = [(counts == k).float().mean().item() for k in range(4)]
        np.testing.assert_allclose(share, [0, 0.3, 0.21, 0.147], atol=0.005)
    assert gradcore.zeros(100_000, dtype=gradcore.float16).geometric_(0.999).min().item() == 1


@pytest.mark.oracle
def test_what_draws_in_place_do_not_take(torch: Any) -> None:
    texts = []
    for t in (gradcore, torch):
        x, whole = t.ones(2), t.ones(2, dtype=t.int64)
        calls: list[Any] = [lambda x=x: x.cauchy_(0, 0), lambda x=x: x.log_normal_(0, 0), lambda x=x: x.geometric_(0),
                            lambda x=x: x.geometric_(1.0), lambda x=x: x.geometric_(), lambda w=whole: w.cauchy_(),
                            lambda w=whole: w.log_normal_()]
        texts.append([])
        for call in calls:
            with pytest.raises((RuntimeError, TypeError)) as error:
                call()
            texts[-1].append(str(error.value).partition(",")[0])
    # After these the words differ.
    assert texts[0][:4] == texts[1][:4]
