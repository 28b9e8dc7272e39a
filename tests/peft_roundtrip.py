"""`peft` opens the adapters that Kiln trains, and computes what Kiln computes with them; so does `transformers` with merged ones.

    python tests/peft_roundtrip.py path/to/kiln tests/fixtures/oracle SCRATCH_FOLDER

For a tiny base of each family, from make_lora.py: `kiln train` with [lora] writes an adapter from new ones, `PeftModel` opens it
without a missing or unexpected tensor, and its logits are those of `kiln forward`; `kiln merge` writes a folder whose logits
`transformers` computes alike. Needs torch, transformers, peft, safetensors. Exits with 1 and says what differed.
"""
import json
import pathlib
import subprocess
import sys
import warnings

import torch
from huggingface_hub import ModelCard
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file
from transformers import (AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForQuestionAnswering,
                          AutoModelForSequenceClassification)

KILN, ORACLE, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
TOLERANCE = 1e-5
torch.set_num_threads(1)
failures = []


def kiln(*arguments):
    done = subprocess.run([KILN, *map(str, arguments)], cwd=SCRATCH, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"kiln {arguments}: {done.returncode}\n{done.stdout}{done.stderr}")


def logits(output):
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)
    return output.logits


def forward(name, folder, task, batch):
    out = SCRATCH / f"{name}.safetensors"
    kiln("forward", folder, "--task", task, "--batch", batch, "--device", "cpu", "--out", out)
    found = load_file(out)
    return torch.stack([found["start_logits"], found["end_logits"]], -1) if "start_logits" in found else found["logits"]


def check(case, task, loader, lora, variant=""):
    base, batch = ORACLE / case / "model", ORACLE / case / "batch.json"
    name = case + variant
    tensors = {key: torch.tensor(value) for key, value in json.loads(batch.read_text()).items()}
    rows = [{key: tensor[row].tolist() for key, tensor in tensors.items()} for row in range(len(tensors["input_ids"]))]
    data = SCRATCH / f"{name}.json"
    data.write_text(json.dumps(rows))
    config = SCRATCH / f"{name}.toml"
    config.write_text(f"""[run]
output_dir = "{name}"
[model]
from = "{base}"
[data]
task = "{task}"
format = "tokenized"
train = ["{data}"]
[trainer]
max_steps = 3
learning_rate = 0.05
per_device_train_batch_size = 2
[device]
kind = "cpu"
[lora]
{lora}
""")
    kiln("train", config)
    adapter = SCRATCH / name / "model"
    assert not (adapter / "model.safetensors").exists()
    PeftConfig.from_pretrained(adapter)
    assert ModelCard.load(adapter / "README.md").data.library_name == "peft"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(loader.from_pretrained(base, attn_implementation="eager"), adapter).eval()
    missing = [str(w.message) for w in caught if "missing" in str(w.message) or "unexpected" in str(w.message)]
    if missing:
        failures.append(f"{name}: {missing}")
    inputs = {key: value for key, value in tensors.items() if key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = logits(model(**inputs))
        plain = logits(loader.from_pretrained(base, attn_implementation="eager").eval()(**inputs))
        kiln("merge", adapter, "--out", SCRATCH / f"{name}-merged")
        merged, told = loader.from_pretrained(SCRATCH / f"{name}-merged", attn_implementation="eager", output_loading_info=True)
        if any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")):
            failures.append(f"{name}, merged: {told}")
        merged = logits(merged.eval()(**inputs))
    got = forward(name, adapter, task, batch)
    off = {"kiln": (got - expected).abs().max().item(), "merged": (merged - expected).abs().max().item()}
    moved = (expected - plain).abs().max().item()
    print(name, off, "moved", moved)
    if max(off.values()) > TOLERANCE or moved < 1e-3:
        failures.append(f"{name}: {off}, moved {moved}")


check("lora-gpt2-lm", "clm", AutoModelForCausalLM, 'r = 3\nalpha = 7\ndropout = 0.1\ntarget_modules = ["c_attn", "mlp.c_fc"]')
check("lora-gpt2-classification", "sequence-classification", AutoModelForSequenceClassification, "")
check("lora-bert-classification", "sequence-classification", AutoModelForSequenceClassification,
      'target_modules = "all-linear"\nbias = "all"\nuse_rslora = true')
check("lora-roberta-classification", "sequence-classification", AutoModelForSequenceClassification, 'bias = "lora_only"')
check("lora-distilbert-classification", "sequence-classification", AutoModelForSequenceClassification, "lora_dropout = 0.2")
check("lora-bert-qa", "question-answering", AutoModelForQuestionAnswering, 'target_modules = ["query", "dense"]')
check("lora-bert-mlm", "mlm", AutoModelForMaskedLM, 'init_lora_weights = "gaussian"')
check("lora-gpt2-lm", "clm", AutoModelForCausalLM, 'target_modules = ["wte", "wpe", "lm_head", "c_attn"]', "-pair")
check("lora-gpt2-lm", "clm", AutoModelForCausalLM, 'target_modules = ["wte", "lm_head"]\nuse_dora = true', "-pair-dora")
check("lora-gpt2-lm", "clm", AutoModelForCausalLM, "trainable_token_indices = [5, 6, 7, 8, 9, 10, 11, 12]", "-tokens")
check("lora-bert-mlm", "mlm", AutoModelForMaskedLM, 'target_modules = ["word_embeddings", "decoder"]\nbias = "lora_only"', "-pair")
check("lora-bert-classification", "sequence-classification", AutoModelForSequenceClassification,
      'trainable_token_indices = { word_embeddings = [5, 6, 7, 8, 9, 10] }', "-tokens")
for which in ("wte", "lm_head", "wte,lm_head"):
    saved = f"modules_to_save = {which.split(',')}".replace("'", '"')
    check("lora-gpt2-lm", "clm", AutoModelForCausalLM, saved, f"-{which}")
    check("lora-gpt-neo-lm", "clm", AutoModelForCausalLM, saved, f"-{which}")
for which in ("word_embeddings", "decoder", "word_embeddings,decoder", "cls"):
    saved = f"modules_to_save = {which.split(',')}".replace("'", '"')
    check("lora-bert-mlm", "mlm", AutoModelForMaskedLM, saved, f"-{which}")
sys.exit("\n".join(failures) if failures else 0)
