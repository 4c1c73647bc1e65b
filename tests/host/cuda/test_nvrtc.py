"""Every CUDA kernel compiles for every target, without warnings and without spilling registers.

The table of registers and shared memory is printed (``pytest -s``) and written to ``kernels.txt`` in pytest's temporary
folder, which ``--basetemp`` chooses. With ``GRADCORE_ALL_INSTANCES=1`` every instance that a sample call launches is compiled
for every target, which takes minutes; without, every one for sm_90 but for elementwise functions of several types, and one
of each template and function for the others. Another NVRTC is tested with ``LD_LIBRARY_PATH=FOLDER
GRADCORE_NVRTC=FOLDER/libnvrtc.so.12``.
"""

from __future__ import annotations

import os
import re
from itertools import takewhile

import pytest

from gradcore.devices.gpu.sources import source_folder, source_of
from tests.host.cuda.nvrtc import Nvrtc, library_path, usage

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from tests.host.cuda.cuda_rows import noted

TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
FAMILIES = sorted(path.stem for path in source_folder().glob("*.cu"))
#: Double sine, cosine and tangent of huge arguments keep digits of 2 / pi on the stack, by design of the math library; digamma
#: has a tangent, and draws of gamma distributions have both.
STACK = re.compile(r"normal|Sin|Cos|Tan[^h]|Digamma|standard_gamma")

pytestmark = pytest.mark.skipif(library_path() is None,
                                reason="NVRTC is not installed: pip install -e '.[nodriver]'")


def instances(family: str, target: str = TARGETS[2]) -> list[str]:
    """The instances to compile: all, or each template and function once and each kind of operand once, those with the largest
    tiles and packs, which take the most registers."""
    found = sorted(noted().wanted.get(family, ()), key=lambda name: ("float" in name, [
        int(number) for number in re.findall(r"\b\d+\b", name)], name))
    if os.environ.get("GRADCORE_ALL_INSTANCES") == "1" or (target == TARGETS[2] and family != "elementwise"):
        return found
    once: dict[str, str] = {}
    for name in found:
        template, function = re.match(r"(\w+)(?:<([A-Z]\w+(?:<[^>]*>)?))?", name).groups()
        operands = set(re.findall(r"\w+<[\w ]+>|[\w ]+\*|half|bfloat", name)) if target == TARGETS[2] else ()
        for key in ((template if target == TARGETS[2] else "", function), (template, *sorted(operands))):
            once[str(key)] = name
    return sorted(set(once.values()))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    lines: list[str] = []
    yield lines
    (tmp_path_factory.mktemp("nvrtc") / "kernels.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_opens_with_what_it_computes_and_what_it_moves(family):
    lines = takewhile(lambda line: line.startswith("//"), (source_folder() / f"{family}.cu").read_text().splitlines())
    computes, *others = (line.removeprefix("//").strip() for line in lines)
    assert computes and re.search(r"Traffic in bytes.* [n(LN]", " ".join(others))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_template_has_an_instance(family):
    templates = set(re.findall(r"__global__ void (?:__launch_bounds__\(.*?\)\s)?(\w+)\(", source_of(family)))
    assert templates == {name.split("<")[0] for name in instances(family)}, "kernels that no sample call launches"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_for_every_target(family, target, table):
    names = [n for n in instances(family, target) if "<" in n]
    cubin, log, lowered = Nvrtc(library_path()).cubin(source_of(family), target, names)
    assert not log.strip("\0\n "), f"{family}.cu for {target} has warnings:\n{log}"
    taken = usage(cubin)
    assert set(lowered) <= set(taken)
    readable = dict(zip(lowered, names, strict=True))
    for kernel, amount in taken.items():
        name = readable.get(kernel, kernel)
        table.append(f"{family:12} {target:7} {amount.registers:4} registers {amount.shared:6} bytes shared  {name}")
        print(table[-1])
        allowed = 64 if STACK.search(name) else 0
        assert amount.stack <= allowed, f"{name} for {target} has {amount.stack} bytes of stack: it spills registers"
        threads = noted().threads.get(name, min(amount.threads, 256))
        # A block of 512 threads keeps a multiprocessor busy alone.
        blocks = 2 if threads <= 256 else 1
        assert amount.registers and amount.fits(threads, blocks), f"{name} for {target}: not {blocks} x {threads} threads"


def test_headers_stand_in_place_of_their_includes():
    for family in FAMILIES:
        assert "#include" not in source_of(family)
        assert source_of(family).count("struct Axes {") == 1


def test_a_spill_would_be_seen():
    """A kernel that indexes a local array at run time needs a stack."""
    source = """extern "C" __global__ void spilling(float* out, int n) {
        float own[64];
        for (int i = 0; i < n; ++i) own[out[i] > 0 ? i & 63 : 0] = out[i];
        out[0] = own[n & 63];
    }"""
    cubin, _, _ = Nvrtc(library_path()).cubin(source, "sm_90", [])
    assert usage(cubin)["spilling"].stack >= 256


def test_wide_accesses_are_made_of_packs():
    """The elements of a pack are loaded and stored by one instruction of 16 bytes."""
    code = Nvrtc(library_path()).ptx(source_of("elementwise"), "map<Add, float, 4, float, const float*, const float*>")
    assert len(re.findall(r"ld\.(?:param|global)?\S*v4", code)) >= 2
    assert re.search(r"st\.global\S*v4", code)


def test_an_updates_numbers_are_read_once():
    """Nothing is read or divided in double beside each element: the stores of a step do not lie where its numbers do."""
    code = Nvrtc(library_path()).ptx(source_of("optim"), "step<AdamOf<false>, float>")
    assert max(found.start() for found in re.finditer(r"\sld\.\S*f64", code)) < code.index("st.global")


@pytest.mark.parametrize(("update", "numbers"), [
    ("Sgd", 4), ("AdamOf<false>", 7), ("AdamOf<true>", 7), ("Rmsprop", 5), ("Adagrad", 3), ("Adadelta", 4), ("Moments", 10),
    ("Lion", 4), ("Adamax", 5), ("Rprop", 4), ("Asgd", 4)])
def test_an_updates_numbers_and_its_rate_are_read_from_where_they_lie(update, numbers):
    """NVRTC has taken a copy of the launch's argument for the argument itself, whatever was written to it."""
    code = Nvrtc(library_path()).ptx(source_of("optim"), f"step<{update}, float>")
    start = code[:code.index("st.global")]
    assert start.count("ld.global.f64") == numbers + (update != "Rprop") and start.count("ld.param.f64") == numbers
    assert ("_param_3]" in start) == (update != "Rprop")


@pytest.mark.parametrize(("dtype", "factor"), [("float", "0f3ECC422A"), ("double", "0d3FD9884533D43651")])
def test_gelus_gradient_is_rounded_alike_alone_and_beside_gelu(dtype, factor):
    """A product with the same factor is part of a fused multiply-add in both kernels: a replay has the bits of eager mode."""
    made = []
    for name in (f"map<GeluGrad, {dtype}, 1, {dtype}, const {dtype}*, const {dtype}*>",
                 f"with_slopes<Gelu, GeluGrad, {dtype}, 1, {dtype}>"):
        code = Nvrtc(library_path()).ptx(source_of("elementwise"), name)
        # The factor may be put into a register first.
        code = re.sub(rf"mov\.\S+\s+(%\w+), {factor};(.*?)\1\b", rf"\g<2>{factor}", code, flags=re.S)
        made.append(set(re.findall(rf"\b(fma|mul)\.[^;]*{factor}", code)))
    assert made == [{"fma"}] * 2


def test_a_negative_number_as_a_byte_wraps_around():
    """Conversion to an unsigned type saturates on a GPU, and -1 would be 0 there that is 255 on a CPU."""
    code = Nvrtc(library_path()).ptx(source_of("elementwise"), "map<Copy, float, 16, unsigned char, const float*>")
    assert "cvt.rzi" in code and not re.search(r"cvt\.rzi\.\S*u32\.f32", code)


def test_a_sum_of_squared_errors_has_several_accesses_under_way():
    """It has few blocks, and memory is busy only if each thread waits for several accesses at once."""
    for dtype in ("float", "half", "bfloat", "double"):
        code = Nvrtc(library_path()).ptx(source_of("loss"), f"mse_loss<{dtype}>")
        loads = [found.start() for found in re.finditer(r"ld\.global\S*v[24]", code)]
        assert len(loads) >= 8 and loads[7] < re.search(r"\s(sub|mul|fma|add)\S*\.f(32|64)", code).start(), dtype


@pytest.mark.parametrize("slopes", ["false", "true"])
def test_a_row_of_logits_is_not_read_behind_its_label(slopes):
    """What the label decides, a weight and a logit, is read after the row has been: the row need not wait for the label."""
    code = Nvrtc(library_path()).ptx(source_of("loss"), f"cross_entropy<float, long long, 4, {slopes}>")
    rest = re.split(r"ld\.global\.\S*64 ", code, maxsplit=1)[1]
    assert rest.index("ld.global.v4") < rest.index("ld.global.f32")
