"""Networks of Hugging Face's transformers have the same losses and gradients on gradcore as on PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.host.torch.test_as_torch import run

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "max_position_embeddings": 64}
SIZES = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
IMAGES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
          "patch_size": 8}
#: By name: the class of the options and of the network, the options, and what it is given.
NETWORKS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel",
             {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}, "tokens"),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2}, "tokens"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM",
                {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4, "output_router_logits": True}, "tokens"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}, "tokens"),
    "bert": ("BertConfig", "BertForMaskedLM", SMALL, "tokens"),
    "deberta": ("DebertaV2Config", "DebertaV2ForMaskedLM",
                {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}, "tokens"),
    "t5": ("T5Config", "T5ForConditionalGeneration", SIZES, "tokens"),
    "mamba": ("MambaConfig", "MambaForCausalLM",
              {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "tokens"),
    "vit": ("ViTConfig", "ViTForImageClassification", IMAGES, "images"),
    "swin": ("SwinConfig", "SwinForImageClassification",
             {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4},
             "images"),
    "resnet": ("ResNetConfig", "ResNetForImageClassification", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
               "images")}
#: Run with either library: losses and gradients from weights that the names decide; what a trained one generates; files.
CODE = '''
import os, sys, warnings, zlib
os.environ["HF_HUB_OFFLINE"], os.environ["TRANSFORMERS_VERBOSITY"] = "1", "error"
warnings.simplefilter("ignore")
library, networks = sys.argv[1], {networks!r}
if library == "gradcore":
    from gradcore.utils import as_torch
    as_torch.install()
import numpy as np
import torch, transformers


def filled(name, device="cpu"):
    options, network, given, _ = networks[name]
    with torch.device(device):
        model = getattr(transformers, network)(getattr(transformers, options)(**given)).eval()
    with torch.no_grad():
        for path, p in model.named_parameters():
            drawn = np.random.RandomState(zlib.crc32(path.encode()) % 2 ** 31).standard_normal(tuple(p.shape))
            values = drawn * 0.05 + (p.ndim == 1 and path.endswith("weight"))
            p.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def loss_of(model, name, device="cpu"):
    drawn = np.random.RandomState(0)
    if networks[name][3] == "images":
        images = torch.tensor(drawn.standard_normal((2, 3, 32, 32)).astype(np.float32), device=device)
        return model(pixel_values=images, labels=torch.tensor([0, 1], device=device)).loss
    tokens = torch.tensor(drawn.randint(3, 60, (2, 16)), device=device)
    return model(input_ids=tokens, labels=tokens).loss


found = {{}}
for name in networks:
    model = filled(name)
    loss = loss_of(model, name)
    loss.backward()
    found[f"{{name}}/loss"] = loss.detach().numpy()
    found.update((f"{{name}}/{{path}}", p.grad.numpy()) for path, p in model.named_parameters() if p.grad is not None)
model = filled("llama")
tokens = torch.arange(3, 11).reshape(1, 8)
found["greedy"] = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0).numpy()
found["beams"] = model.generate(tokens, max_new_tokens=5, num_beams=3, do_sample=False, pad_token_id=0).numpy()
model.save_pretrained(f"{{library}}-llama")
again = transformers.LlamaForCausalLM.from_pretrained(f"{{library}}-llama")
assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
np.savez(f"{{library}}.npz", **found)
if library == "gradcore":
    import gc, gradcore, json
    found.clear()
    model = again = loss = tokens = None
    # One of the networks is left in a cycle by its package.
    gc.collect()
    peaks = []
    for device in ("cpu", "meta"):
        model = filled("llama", device)
        with gradcore.step(device=device) as step:
            loss_of(model, "llama", device).backward()
        peaks.append([step.report.peak.allocated, step.report.peak.layer])
    print(json.dumps(peaks))
'''


@pytest.mark.oracle
@pytest.mark.slow
def test_networks_of_transformers(torch: Any, tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -e '.[oracle]'")
    code = CODE.format(networks=NETWORKS)
    theirs = subprocess.run([sys.executable, "-c", code, "torch"], capture_output=True, text=True, cwd=tmp_path)
    assert theirs.returncode == 0, theirs.stderr
    cpu, meta = json.loads(run(code, tmp_path, "gradcore")[-1])
    assert cpu == meta and cpu[0] > 0 and cpu[1] is not None
    a, b = (np.load(tmp_path / f"{library}.npz") for library in ("torch", "gradcore"))
    assert a.files == b.files and len(a.files) > 300
    for name in a.files:
        largest = max(np.abs(a[other]).max() for other in a.files if other.startswith(name.partition("/")[0]))
        np.testing.assert_allclose(b[name], a[name], rtol=1e-3, atol=1e-5 * largest, err_msg=name)
    # Either library reads what the other has written.
    files = [tmp_path / f"{library}-llama" / "model.safetensors" for library in ("torch", "gradcore")]
    read = importlib.import_module("safetensors.numpy").load_file
    assert all(np.array_equal(v, read(files[1])[k]) for k, v in read(files[0]).items())


@pytest.mark.slow
def test_what_the_page_says_of_a_large_network(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -e '.[oracle]'")
    page = (Path(__file__).parents[3] / "docs" / "pytorch.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    command = page.partition("`gradcore measure ")[2].partition("`")[0]
    (tmp_path / "llama.py").write_text(code)
    done = subprocess.run([sys.executable, "-m", "gradcore", "measure", *command.split(), "--json"], capture_output=True,
                          text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(gradcore.__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 2 and all(f"{row['allocated']:,} " in " ".join(page.split()) for row in rows)
    parameters = rows[0]["by_role"]["parameter"] / 4
    assert f"{parameters / 1e9:.1f} billion parameters" in page
    assert all("transformers" in row["peak"]["line"] for row in rows)


COMPILED = '''
import os, sys, warnings
os.environ["HF_HUB_OFFLINE"], os.environ["TRANSFORMERS_VERBOSITY"] = "1", "error"
from gradcore.utils import as_torch
as_torch.install()
import torch, transformers


def losses(wrap):
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens = torch.arange(3, 19).reshape(1, 16)

    @wrap
    def step(tokens):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return [step(tokens).item() for _ in range(5)], len(getattr(step, "traces", ()))


(eager, _), (replayed, traces) = losses(lambda f: f), losses(torch.compile)
assert eager == replayed and eager[0] > eager[-1]
print(traces)
'''


@pytest.mark.slow
def test_a_training_step_of_transformers_is_replayed(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -e '.[oracle]'")
    assert run(COMPILED, tmp_path, "gradcore")[-1] == "2"
