"""Functions of networks as users call them: convolutions, pooling, losses, and the dtypes of their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.forms import Form, quiet
from tests.rows import Operand, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(f"nn.functional.{name}", call, operands, **options))


_volume, _kernel = floats(1, 2, 4, 3, 4), floats(2, 2, 2, 1, 2)
form("conv3d", lambda t, x, w, b: t.nn.functional.conv3d(x, w, b), _volume, _kernel, floats(2), tolerance=3e-5)
for _how, _options in {"stride": {"stride": (2, 1, 2)}, "padding": {"padding": (1, 0, 1)}, "dilation": {"dilation": (2, 1, 2)},
                       "all": {"stride": 2, "padding": 2, "dilation": 2}, "valid": {"padding": "valid"},
                       "same": {"padding": "same", "dilation": 2}}.items():
    form(f"conv3d:{_how}", lambda t, x, w, o=_options: t.nn.functional.conv3d(x, w, **o), _volume, _kernel, tolerance=3e-5)
form("conv3d:groups", lambda t, x, w: t.nn.functional.conv3d(x, w, groups=2), _volume, floats(4, 1, 2, 2, 2), tolerance=3e-5)
form("conv3d:depth of one", lambda t, x, w: t.nn.functional.conv3d(x, w), _volume, floats(3, 2, 1, 1, 1), tolerance=3e-5)
form("conv3d:one sample", lambda t, x, w: t.nn.functional.conv3d(x, w), floats(2, 3, 3, 2), floats(2, 2, 3, 2, 1),
     tolerance=3e-5)
form("conv3d:transposed", lambda t, x, w: t.nn.functional.conv3d(x.transpose(2, 4), w), floats(1, 1, 3, 3, 2),
     floats(2, 1, 2, 2, 2), tolerance=3e-5)

for _how, _size in {"": (2, 3), ":uneven": (3, 4), ":one": 1, ":kept": (None, 2), ":more than there are": (9, 2)}.items():
    form(f"adaptive_max_pool2d{_how}", lambda t, x, s=_size: t.nn.functional.adaptive_max_pool2d(x, s), floats(1, 2, 7, 6))
form("adaptive_max_pool2d:one sample", lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 2), floats(2, 5, 4))
form("adaptive_max_pool2d:places", lambda t, x: t.nn.functional.adaptive_max_pool2d(x, (3, 4), return_indices=True),
     floats(1, 2, 7, 6))
form("adaptive_max_pool1d", lambda t, x: t.nn.functional.adaptive_max_pool1d(x, 3), floats(2, 3, 7))
form("adaptive_max_pool1d:places", lambda t, x: t.nn.functional.adaptive_max_pool1d(x, 3, return_indices=True), floats(3, 7))

_classes = ints(3, 4, low=-1, high=4, given=(3, 0, -1, 1, 1, -1, 0, 2, -1, 0, 1, 2))
for _reduction in ("mean", "sum", "none"):
    form(f"multilabel_margin_loss:{_reduction}",
         lambda t, x, y, r=_reduction: t.nn.functional.multilabel_margin_loss(x, y, reduction=r), floats(3, 4), _classes)
form("multilabel_margin_loss:one sample", lambda t, x, y: t.nn.functional.multilabel_margin_loss(x, y), floats(4),
     ints(4, low=-1, high=4, given=(2, 2, 0, -1)))



def _in_parts(t: Any, size: int) -> Any:
    """PyTorch computes all scores at once: it has no second derivatives otherwise."""
    return t.nn.LinearCrossEntropyOptions(batch_chunk_size=size) if t.__name__ == "gradcore" else None


for _reduction in ("mean", "sum", "none"):
    form(f"linear_cross_entropy:{_reduction}", lambda t, x, w, b, y, r=_reduction: t.nn.functional.linear_cross_entropy(
        x, w, y, linear_bias=b, reduction=r, options=_in_parts(t, 2)), floats(5, 3), floats(7, 3), floats(7), ints(5, high=7),
        tolerance=3e-5)
form("linear_cross_entropy:ignored", lambda t, x, w, y: t.nn.functional.linear_cross_entropy(
    x, w, y, ignore_index=1, options=_in_parts(t, 1)), floats(4, 3), floats(6, 3), ints(4, given=(5, 1, 0, 3)), tolerance=3e-5)
form("linear_cross_entropy:at once", lambda t, x, w, y: t.nn.functional.linear_cross_entropy(x, w, y, label_smoothing=0.1),
     floats(4, 3), floats(6, 3), ints(4, high=6), tolerance=3e-5)

# -- functions of the package itself ---------------------------------------------------------------------------------------

_rows, _stats = floats(3, 4), floats(4, low=0.5)
_signs, _yes = ints(3, given=(1, -1, 1)), floats(3, 4, low=0, high=1)
FLAT: dict[str, tuple[Callable[..., Any], tuple[Operand, ...]]] = {
    "max_pool1d": (lambda t, x: t.max_pool1d(x, 2), (floats(1, 2, 5),)),
    "max_pool2d": (lambda t, x: t.max_pool2d(x, 2, padding=1), (floats(1, 4, 5),)),
    "max_pool3d": (lambda t, x: t.max_pool3d(x, 2), (floats(1, 2, 4, 4),)),
    "adaptive_max_pool1d": (lambda t, x: t.adaptive_max_pool1d(x, 2), (floats(1, 2, 5),)),
    "conv_transpose3d": (lambda t, x, w: t.conv_transpose3d(x, w), (floats(1, 1, 2, 2, 2), floats(1, 2, 1, 2, 2))),
    "dropout": (lambda t, x: [t.dropout(x, 0.5, False), t.dropout(x, p=1.0, train=True)], (_rows,)),
    "alpha_dropout": (lambda t, x: t.alpha_dropout(x, 0.5, train=False), (_rows,)),
    "feature_alpha_dropout": (lambda t, x: t.feature_alpha_dropout(x, 0.5, train=False), (_rows,)),
    "embedding": (lambda t, w, i: [t.embedding(w, i), t.embedding(w, i, padding_idx=1)], (floats(5, 2), ints(2, 3))),
    "batch_norm": (lambda t, x, w, b, m, v: t.batch_norm(x, w, b, m.detach(), v.detach(), False, 0.1, 1e-5, True),
                   (_rows, _stats, _stats, _stats, _stats)),
    "instance_norm": (lambda t, x, w, b: t.instance_norm(x, w, b, None, None, True, 0.1, 1e-5, cudnn_enabled=True),
                      (floats(2, 4, 3), _stats, _stats)),
    "rms_norm": (lambda t, x, w: t.rms_norm(x, (4,), w), (_rows, _stats)),
    "pdist": (lambda t, x: t.pdist(x), (_rows,)),
    "rrelu": (lambda t, x: t.rrelu(x, upper=0.5), (_rows,)),
    "rrelu_": (lambda t, x: t.rrelu_(x.clone()), (_rows,)),
    "selu_": (lambda t, x: t.selu_(x.clone()), (_rows,)),
    "celu_": (lambda t, x: t.celu_(x.clone(), alpha=1.0), (_rows,)),
    "threshold_": (lambda t, x: t.threshold_(x.clone(), 0.3, -1.0), (_rows,)),
    "binary_cross_entropy_with_logits": (lambda t, x, y, w: [t.binary_cross_entropy_with_logits(
        x, y.detach(), None, w.detach(), reduction=r) for r in (0, 1, 2)], (_rows, _yes, _stats)),
    "kl_div": (lambda t, x, y: [t.kl_div(x, y.detach(), 2), t.kl_div(x, y.detach(), log_target=True)], (_rows, _yes)),
    "cosine_embedding_loss": (lambda t, x, y, s: t.cosine_embedding_loss(x, y, s, 0.2, 2), (_rows, _rows, _signs)),
    "hinge_embedding_loss": (lambda t, x, s: t.hinge_embedding_loss(x, s, reduction=0), (floats(3), _signs)),
    "margin_ranking_loss": (lambda t, x, y, s: t.margin_ranking_loss(x, y, s, 0.1), (floats(3), floats(3), _signs)),
    "triplet_margin_loss": (lambda t, x, y, z: t.triplet_margin_loss(x, y, z, 1.0, 2.0, swap=True, reduction=2),
                            (_rows, _rows, _rows)),
    "poisson_nll_loss": (lambda t, x, y: t.poisson_nll_loss(x, y.detach(), True, False, 1e-8, 1), (_rows, _yes))}
#: Functions with operands, or rows of an operand, that have no gradient.
DETACHED = ("batch_norm", "binary_cross_entropy_with_logits", "embedding", "kl_div", "poisson_nll_loss")
# torch computes celu with constants rounded to float32.
FORMS += [Form(_name, _call, _given, tolerance=3e-5, double=1e-7 if _name == "celu_" else 1e-11, smooth=_name not in DETACHED)
          for _name, (_call, _given) in FLAT.items()]

# -- volumes ---------------------------------------------------------------------------------------------------------------

_five, _four = floats(1, 2, 5, 4, 5), floats(2, 4, 5, 4)
for _how, _options in {"": {}, "stride": {"stride": (1, 2, 1)}, "padding": {"padding": 1, "kernel_size": 3, "stride": 2},
                       "ceil": {"stride": 3, "ceil_mode": True}}.items():
    _options = {"kernel_size": 2} | _options
    for _name in ("max", "avg"):
        form(f"{_name}_pool3d:{_how}", lambda t, x, n=_name, o=_options: getattr(t.nn.functional, f"{n}_pool3d")(x, **o), _five)
form("max_pool3d:dilation", lambda t, x: t.nn.functional.max_pool3d(x, (2, 1, 2), 1, 0, (2, 1, 3)), _five)
form("max_pool3d:places", lambda t, x: t.nn.functional.max_pool3d(x, 3, 2, 1, return_indices=True), floats(2, 2, 5, 4, 5))
form("max_pool3d:one sample", lambda t, x: t.nn.functional.max_pool3d(x, 2, return_indices=True), _four)
form("max_pool3d:equal", lambda t, x: t.nn.functional.max_pool3d(x, 2, return_indices=True),
     floats(1, 1, 2, 2, 2, given=(1,) * 8), smooth=False)
for _how, _options in {"divisor": {"divisor_override": 3}, "count": {"padding": (1, 0, 1), "count_include_pad": False},
                       "count ceil": {"padding": 1, "ceil_mode": True}, "uneven": {"padding": 1, "ceil_mode": True,
                       "count_include_pad": False}}.items():
    form(f"avg_pool3d:{_how}", lambda t, x, o=_options: t.nn.functional.avg_pool3d(x, (2, 3, 2), 2, **o), _five)
form("avg_pool3d:one sample", lambda t, x: t.nn.functional.avg_pool3d(x, 2), _four)
for _how, _size in {"": (2, 3, 2), ":one": 1, ":kept": (None, 2, None), ":more than there are": (7, 2, 6)}.items():
    form(f"adaptive_avg_pool3d{_how}", lambda t, x, s=_size: t.nn.functional.adaptive_avg_pool3d(x, s), _five)
    form(f"adaptive_max_pool3d{_how}", lambda t, x, s=_size: t.nn.functional.adaptive_max_pool3d(x, s), _five)
form("adaptive_avg_pool3d:one sample", lambda t, x: t.nn.functional.adaptive_avg_pool3d(x, 2), _four)
form("adaptive_max_pool3d:places", lambda t, x: t.nn.functional.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True), _five)
for _how, _options in {"": {}, "stride": {"stride": (2, 1, 3)}, "padding": {"padding": (1, 0, 1)}, "dilation": {"dilation": 2},
                       "all": {"stride": 3, "padding": 2, "dilation": (2, 1, 2), "output_padding": (2, 1, 0)}}.items():
    form(f"conv_transpose3d:{_how}", lambda t, x, w, b, o=_options: t.nn.functional.conv_transpose3d(x, w, b, **o),
         floats(1, 2, 3, 2, 3), floats(2, 2, 2, 3, 2), floats(2), tolerance=3e-5)
form("conv_transpose3d:groups", lambda t, x, w: t.nn.functional.conv_transpose3d(x, w, groups=2, stride=2), floats(2, 3, 2, 2),
     floats(2, 2, 2, 1, 2), tolerance=3e-5)
for _mode in ("reflect", "replicate", "circular"):
    form(f"pad:{_mode} of volumes", lambda t, x, m=_mode: t.nn.functional.pad(x, (1, 0, 1, 1, 0, 1), m), floats(1, 1, 2, 3, 2))

# -- powers, and slopes ----------------------------------------------------------------------------------------------------

_positive = floats(1, 2, 6, low=0.3, high=1.5)

def _fractional(t: Any, x: Any, dims: int, **named: Any) -> Any:
    """Over windows at given distances."""
    samples = t.tensor([[[0.3, 0.8, 0.1][:dims], [0.9, 0.05, 0.6][:dims]]], dtype=x.dtype, device=x.device)
    return getattr(t.nn.functional, f"fractional_max_pool{dims}d")(x, _random_samples=samples, **named)


form("fractional_max_pool2d", lambda t, x: _fractional(t, x, 2, kernel_size=2, output_size=(4, 3)), floats(1, 2, 7, 6))
form("fractional_max_pool2d:ratio", lambda t, x: _fractional(t, x, 2, kernel_size=(3, 1), output_ratio=(0.5, 0.7)),
     floats(2, 7, 6))
form("fractional_max_pool2d:one", lambda t, x: _fractional(t, x, 2, kernel_size=2, output_size=1), floats(1, 2, 3, 2))
form("fractional_max_pool2d:indices", lambda t, x: _fractional(t, x, 2, kernel_size=2, output_size=3, return_indices=True)[1],
     floats(1, 2, 6, 6), gradient=False)
form("fractional_max_pool3d", lambda t, x: _fractional(t, x, 3, kernel_size=2, output_size=(2, 3, 2)), floats(1, 2, 4, 5, 6))
form("fractional_max_pool3d:indices", lambda t, x: t.nn.functional.fractional_max_pool3d_with_indices(
    x, (1, 2, 2), output_ratio=(0.6, 0.6, 0.6), _random_samples=x[:, :, 0, 0, :3].abs() / 4)[1], floats(1, 1, 4, 5, 6),
     gradient=False)
form("lp_pool1d", lambda t, x: t.nn.functional.lp_pool1d(x, 2, 3, stride=2), _positive)
form("lp_pool1d:ceil", lambda t, x: t.nn.functional.lp_pool1d(x, 3, 4, ceil_mode=True), _positive)
form("lp_pool2d", lambda t, x: t.nn.functional.lp_pool2d(x, 2.0, (2, 3)), floats(1, 2, 4, 6))
form("lp_pool3d", lambda t, x: t.nn.functional.lp_pool3d(x, 1.0, 2, 1), floats(1, 1, 3, 2, 3, low=0.3))
for _size in (2, 3, 5):
    form(f"local_response_norm:{_size}", lambda t, x, n=_size: t.nn.functional.local_response_norm(x, n, 0.5, 0.6, 2.0),
         floats(2, 4, 3))
form("local_response_norm:images", lambda t, x: t.nn.functional.local_response_norm(x, 3), floats(1, 5, 2, 3))
form("local_response_norm:volumes", lambda t, x: t.nn.functional.local_response_norm(x, 2, alpha=1), floats(1, 3, 2, 1, 2))
form("rrelu", lambda t, x: t.nn.functional.rrelu(x, 0.2, 0.4), floats(3, 4))

# -- grids -----------------------------------------------------------------------------------------------------------------

_image, _grid = floats(2, 3, 4, 5), floats(2, 3, 2, 2, low=-1.4, high=1.4)
_block, _places = floats(1, 2, 3, 2, 4), floats(1, 2, 1, 3, 3, low=-1.4, high=1.4)
for _corners in (False, True):
    for _padding in ("zeros", "border", "reflection"):
        for _mode in ("bilinear", "nearest", "bicubic"):
            _options = {"mode": _mode, "padding_mode": _padding, "align_corners": _corners}
            for _case, _x, _g in (("", _image, _grid), ("volumes ", _block, _places))[:1 if _mode == "bicubic" else 2]:
                form(f"grid_sample:{_case}{_mode} {_padding} {_corners}",
                     lambda t, x, g, o=_options: t.nn.functional.grid_sample(x, g, **o), _x, _g, tolerance=5e-5)
    form(f"affine_grid:{_corners}", lambda t, x, c=_corners: t.nn.functional.affine_grid(x, (2, 1, 3, 4), align_corners=c),
         floats(2, 2, 3))
    form(f"affine_grid:volumes {_corners}", lambda t, x, c=_corners: t.nn.functional.affine_grid(x, (1, 1, 2, 4, 3), c),
         floats(1, 3, 4))
    form(f"grid_sample:of affine_grid {_corners}", lambda t, x, m, c=_corners: t.nn.functional.grid_sample(
        x, t.nn.functional.affine_grid(m, (2, 3, 2, 3), c), align_corners=c), _image, floats(2, 2, 3, low=-0.6, high=0.6),
        tolerance=5e-5)
form("grid_sample:no channels", lambda t, x, g: t.nn.functional.grid_sample(x, g, align_corners=False), floats(2, 0, 5, 7),
     floats(2, 4, 6, 2))
form("grid_sample:far", lambda t, x, g: t.nn.functional.grid_sample(x, g, align_corners=False), floats(1, 1, 2, 2),
     floats(1, 1, 4, 2, given=(9, 9, -9, 0, 1e8, 0, 1, 1)), smooth=False)
for _padding in ("border", "reflection"):
    for _corners in (False, True):
        form(f"grid_sample:ends {_padding} {_corners}", lambda t, x, g, p=_padding, c=_corners: t.nn.functional.grid_sample(
            x, g, padding_mode=p, align_corners=c), floats(1, 2, 3, 4),
             floats(1, 1, 4, 2, given=(1, -1, -1, 0.3, 0, 1, 0.2, 0.4)), smooth=False)
form("grid_sample:one pixel", lambda t, x, g: [t.nn.functional.grid_sample(x, g, padding_mode=m, align_corners=True)
     for m in ("border", "reflection")], floats(1, 2, 1, 1), floats(1, 2, 2, 2))
for _how, _call in {"upsample": lambda t, x: t.nn.functional.upsample(x, scale_factor=2, mode="bilinear", align_corners=False),
                    "upsample_nearest": lambda t, x: t.nn.functional.upsample_nearest(x, (3, 7)),
                    "upsample_bilinear": lambda t, x: t.nn.functional.upsample_bilinear(x, scale_factor=2)}.items():
    form(_how, quiet(_call), floats(1, 2, 3, 4))
