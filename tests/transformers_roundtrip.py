"""Kiln and Hugging Face transformers open each other's folders and compute the same logits.

    python tests/transformers_roundtrip.py path/to/kiln SCRATCH_FOLDER

For tiny random models of every kind that both know: transformers writes a folder and `kiln forward` must give its logits;
`kiln train` trains two steps from that folder, transformers opens the result without a missing or unexpected tensor, and
`kiln forward` on it must give transformers' logits again. Sharded weights and pytorch_model.bin with the names of old
checkpoints are read too, and a step at learning rate 0 must leave every byte of every weight as it was.

Needs torch, transformers, safetensors. Exits with 1 and says what differed.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import (BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification,
                          DistilBertConfig, DistilBertForMaskedLM, DistilBertForQuestionAnswering,
                          DistilBertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel,
                          RobertaConfig, RobertaForMaskedLM, RobertaForQuestionAnswering,
                          RobertaForSequenceClassification, set_seed)

KILN, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])
SEED, VOCAB, BATCH, SEQ = 5, 131, 4, 20
# Absolute, float32: the models are a few layers deep, so sums in another order differ by some 1e-6.
TOLERANCE = 1e-4

torch.set_num_threads(1)
set_seed(SEED)
generator = torch.Generator().manual_seed(SEED)


def gpt2(**more):
    return GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.1, embd_pdrop=0.1,
                      attn_pdrop=0.1, bos_token_id=1, eos_token_id=1, attn_implementation="eager", **more)


def bert(**more):
    return BertConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=100,
                      max_position_embeddings=32, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, pad_token_id=0,
                      attn_implementation="eager", **more)


def roberta(**more):
    return RobertaConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                         intermediate_size=100, max_position_embeddings=34, type_vocab_size=1, layer_norm_eps=1e-5,
                         hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, attn_implementation="eager", **more)


def distilbert(**more):
    return DistilBertConfig(vocab_size=VOCAB, dim=48, n_layers=2, n_heads=4, hidden_dim=100, max_position_embeddings=32,
                            attn_implementation="eager", **more)


def build(model_class, config):
    """A model in which every parameter counts, in evaluation mode: dropout is configured but does not act."""
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.tie_weights()
    return model.eval()


ids = torch.randint(5, VOCAB, (BATCH, SEQ), generator=generator)
mask = torch.ones_like(ids)
for row in range(1, BATCH):
    mask[row, SEQ - 3 * row:] = 0
ids = ids.masked_fill(mask == 0, 0)
types = ((torch.arange(SEQ)[None] >= SEQ // 2) & (mask == 1)).long()
every_token = ids.masked_fill(mask == 0, -100)
some_tokens = every_token.masked_fill(torch.rand(ids.shape, generator=generator) > 0.4, -100)
classes = torch.tensor([0, 2, 1, 2])

gpt2_inputs = dict(input_ids=ids, attention_mask=mask)
bert_inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=types)
roberta_inputs = dict(input_ids=ids.masked_fill(mask == 0, 1), attention_mask=mask)
spans = dict(start_positions=torch.tensor([2, 4, 1, 3]), end_positions=torch.tensor([6, 5, 8, 7]))
regression = dict(num_labels=1, problem_type="regression")
CASES = {
    "gpt2-lm": (GPT2LMHeadModel, gpt2(), "clm", dict(gpt2_inputs, labels=every_token)),
    "gpt2-classification": (GPT2ForSequenceClassification, gpt2(num_labels=3, pad_token_id=0), "sequence-classification",
                            dict(gpt2_inputs, labels=classes)),
    "bert-mlm": (BertForMaskedLM, bert(), "mlm", dict(bert_inputs, labels=some_tokens)),
    "bert-classification": (BertForSequenceClassification, bert(num_labels=3), "sequence-classification",
                            dict(bert_inputs, labels=classes)),
    "bert-regression": (BertForSequenceClassification, bert(**regression), "regression",
                        dict(bert_inputs, labels=torch.tensor([0.5, -1.0, 2.0, 0.25]))),
    "bert-qa": (BertForQuestionAnswering, bert(), "question-answering",
                dict(bert_inputs, **spans)),
    "roberta-mlm": (RobertaForMaskedLM, roberta(), "mlm", dict(roberta_inputs, labels=some_tokens)),
    "roberta-classification": (RobertaForSequenceClassification, roberta(num_labels=3), "sequence-classification",
                               dict(roberta_inputs, labels=classes)),
    "roberta-qa": (RobertaForQuestionAnswering, roberta(), "question-answering", dict(roberta_inputs, **spans)),
    "distilbert-mlm": (DistilBertForMaskedLM, distilbert(), "mlm", dict(gpt2_inputs, labels=some_tokens)),
    "distilbert-classification": (DistilBertForSequenceClassification, distilbert(num_labels=3),
                                  "sequence-classification", dict(gpt2_inputs, labels=classes)),
    "distilbert-qa": (DistilBertForQuestionAnswering, distilbert(), "question-answering", dict(gpt2_inputs, **spans)),
}


def run(*command):
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")


def reference(model, batch):
    with torch.no_grad():
        output = model.eval()(**batch)
    names = [name for name in ("logits", "start_logits", "end_logits") if name in output]
    return {name: output[name] for name in names} | {"loss": output.loss}


def compare(what, model, folder, task, batch):
    """`kiln forward` on the folder against the model."""
    batch_file, out = SCRATCH / "batch.json", SCRATCH / "out.safetensors"
    batch_file.write_text(json.dumps({name: tensor.tolist() for name, tensor in batch.items()}))
    out.unlink(missing_ok=True)
    run(KILN, "forward", folder, "--batch", batch_file, "--task", task, "--out", out)
    given, worst = load_file(out), 0.0
    for name, expected in reference(model, batch).items():
        assert name in given, f"{what}: no {name} in {sorted(given)}"
        found = given[name].reshape(expected.shape) if name == "loss" else given[name]
        assert found.shape == expected.shape, f"{what}: {name} is {list(found.shape)}, expected {list(expected.shape)}"
        difference = (found - expected).abs().max().item()
        assert difference <= TOLERANCE, f"{what}: {name} differs by {difference}"
        worst = max(worst, difference)
    print(f"ok  {what}: largest difference {worst:.1e}", flush=True)


def train(name, folder, task, batch, *overrides):
    """Trains from the folder on the rows of the batch and gives the folder with the resulting model."""
    data, config, output = SCRATCH / f"{name}.json", SCRATCH / f"{name}.toml", SCRATCH / f"{name}-run"
    rows = [{key: tensor[row].tolist() for key, tensor in batch.items()} for row in range(BATCH)] * 2
    data.write_text(json.dumps(rows))
    shutil.rmtree(output, ignore_errors=True)
    config.write_text(f"""
[model]
kind = "{name.split("-")[0]}"
from = {json.dumps(str(folder))}
[data]
task = "{task}"
format = "tokenized"
train = [{json.dumps(str(data))}]
sampler = "sequential"
[trainer]
max_steps = 2
per_device_train_batch_size = {BATCH}
learning_rate = 1e-2
[device]
kind = "cpu"
""")
    settings = [f"run.output_dir={output}", *overrides]
    run(KILN, "train", config, *[part for setting in settings for part in ("--set", setting)])
    return output / "model"


def open_with_transformers(what, model_class, folder):
    model, info = model_class.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(kind), f"{what}: transformers reports {kind}: {info[kind]}"
    architectures = json.loads((folder / "config.json").read_text()).get("architectures")
    assert architectures == [model_class.__name__], f"{what}: config.json says {architectures}"
    return model


def old_names(model):
    """The state dict as checkpoints of 2019 have it: no prefix, gamma and beta, buffers among the weights."""
    state = {}
    for name, tensor in model.state_dict().items():
        name = name.removeprefix("transformer.").removeprefix("bert.").removeprefix("roberta.")
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        if name != "lm_head.weight":
            state[name] = tensor.clone()
    if model.config.model_type == "gpt2":
        positions = model.config.n_positions
        for layer in range(model.config.n_layer):
            state[f"h.{layer}.attn.bias"] = torch.ones(positions, positions).tril()[None, None]
            state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    else:
        state["embeddings.position_ids"] = torch.arange(model.config.max_position_embeddings)[None]
    return state


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


for name, (model_class, config, task, batch) in CASES.items():
    model = build(model_class, config)
    folder = fresh(SCRATCH / f"{name}-model")
    model.save_pretrained(folder)
    compare(name, model, folder, task, batch)

    before = reference(model, batch)["loss"].item()
    written = train(name, folder, task, batch)
    trained = open_with_transformers(f"{name} trained", model_class, written)
    compare(f"{name} trained", trained, written, task, batch)
    after = reference(trained, batch)["loss"].item()
    assert after < before, f"{name}: two steps on the same rows took the loss from {before} to {after}"

    # The first step of a warm-up has learning rate 0: whatever is then written was only read and written.
    written = train(f"{name}-untouched", folder, task, batch, "trainer.max_steps=1", "trainer.warmup_steps=1")
    source, result = load_file(folder / "model.safetensors"), load_file(written / "model.safetensors")
    assert source.keys() == result.keys(), f"{name}: the names differ by {sorted(source.keys() ^ result.keys())}"
    for key, tensor in source.items():
        same = tensor.dtype == result[key].dtype and tensor.shape == result[key].shape
        assert same and tensor.numpy().tobytes() == result[key].numpy().tobytes(), f"{name}: {key} has changed"
    print(f"ok  {name} untouched: {len(source)} tensors byte for byte", flush=True)

    if name not in ("gpt2-lm", "bert-mlm", "roberta-mlm"):
        continue
    folder = fresh(SCRATCH / f"{name}-sharded")
    model.save_pretrained(folder, max_shard_size="60KB")
    shards = list(folder.glob("model-*.safetensors"))
    assert len(shards) > 1 and not (folder / "model.safetensors").exists(), f"{name}: not sharded: {shards}"
    compare(f"{name} sharded ({len(shards)})", model, folder, task, batch)
    written = train(f"{name}-sharded", folder, task, batch)
    trained = open_with_transformers(f"{name} sharded, trained", model_class, written)
    compare(f"{name} sharded, trained", trained, written, task, batch)

    # Both of PyTorch's file formats: zip since 1.6, and the one before, which the original checkpoints are in.
    for form, zipped in (("zip", True), ("before 1.6", False)):
        folder = fresh(SCRATCH / f"{name}-pickle")
        model.config.architectures = [model_class.__name__]
        model.config.save_pretrained(folder)
        torch.save(old_names(model), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        compare(f"{name} pytorch_model.bin with old names ({form})", model, folder, task, batch)
print("transformers and Kiln agree")
