"""Kiln and Hugging Face transformers open each other's folders and compute the same logits.

    python tests/transformers_roundtrip.py path/to/kiln SCRATCH_FOLDER

For tiny random models of every kind that both know: transformers writes a folder and `kiln forward` must give its logits;
`kiln train` trains two steps from that folder, transformers opens the result without a missing or unexpected tensor, and
`kiln forward` on it must give transformers' logits again, also where the run has let the vocabulary grow or replaced the head by
one of another size. Sharded weights and pytorch_model.bin with the names of old
checkpoints are read too, and a step at learning rate 0 must leave every byte of every weight as it was.

Then tokenizers: `kiln train` on text writes folders that `AutoTokenizer` and `pipeline` open, whose predictions must be those
of `kiln predict` and `kiln generate`. Files of a tokenizer that came from a folder stay byte for byte.

A job (`kiln job`) leaves such a folder at the root of its model folder.

Needs torch, transformers (4.57 or 5.23), safetensors. Exits with 1 and says what differed.
"""
import csv
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

import tokenizers
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import (AlbertConfig, AlbertForMaskedLM, AlbertForQuestionAnswering, AlbertForSequenceClassification,
                          AutoModelForCausalLM, AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer, BertConfig,
                          BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification, CamembertConfig,
                          CamembertForMaskedLM, CamembertForSequenceClassification, ElectraConfig, ElectraForMaskedLM,
                          ElectraForQuestionAnswering, ElectraForSequenceClassification, XLMRobertaConfig,
                          XLMRobertaForMaskedLM, XLMRobertaForQuestionAnswering, XLMRobertaForSequenceClassification,
                          DistilBertConfig, DistilBertForMaskedLM, DistilBertForQuestionAnswering,
                          DistilBertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel,
                          GPTNeoConfig, GPTNeoForCausalLM, GPTNeoForSequenceClassification, LlamaConfig, LlamaForCausalLM,
                          LlamaForTokenClassification, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForSequenceClassification, SmolLM3Config, SmolLM3ForCausalLM,
                          RobertaConfig, RobertaForMaskedLM, RobertaForQuestionAnswering,
                          RobertaForSequenceClassification, pipeline, set_seed)

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


def gpt_neo(**more):
    return GPTNeoConfig(vocab_size=VOCAB, max_position_embeddings=32, hidden_size=48, num_layers=2, num_heads=4, window_size=12,
                        attention_types=[[["global", "local"], 1]], bos_token_id=1, eos_token_id=1,
                        attn_implementation="eager", **more)


def llama(config=LlamaConfig, **more):
    return config(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  intermediate_size=100, max_position_embeddings=32, bos_token_id=1, eos_token_id=1, attn_implementation="eager", **more)


def bert(**more):
    return BertConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=100,
                      max_position_embeddings=32, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, pad_token_id=0,
                      attn_implementation="eager", **more)


def roberta(config=RobertaConfig, **more):
    return config(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=100,
                  max_position_embeddings=34, type_vocab_size=1, layer_norm_eps=1e-5, hidden_dropout_prob=0.1,
                  attention_probs_dropout_prob=0.1, attn_implementation="eager", **more)


def narrow(config, **more):
    """ELECTRA and ALBERT, whose embeddings have a width of their own."""
    return config(vocab_size=VOCAB, embedding_size=20, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
                  intermediate_size=100, max_position_embeddings=32, hidden_dropout_prob=0.1,
                  attention_probs_dropout_prob=0.1, attn_implementation="eager", **more)


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
    "gpt-neo-lm": (GPTNeoForCausalLM, gpt_neo(), "clm", dict(gpt2_inputs, labels=every_token)),
    "gpt-neo-classification": (GPTNeoForSequenceClassification, gpt_neo(num_labels=3, pad_token_id=0),
                               "sequence-classification", dict(gpt2_inputs, labels=classes)),
    "llama-lm": (LlamaForCausalLM, llama(), "clm", dict(gpt2_inputs, labels=every_token)),
    "llama-token": (LlamaForTokenClassification, llama(num_labels=3), "token-classification",
                    dict(gpt2_inputs, labels=every_token.remainder(3).masked_fill(mask == 0, -100))),
    "mistral-lm": (MistralForCausalLM, llama(MistralConfig, sliding_window=6), "clm", dict(gpt2_inputs, labels=every_token)),
    "qwen2-lm": (Qwen2ForCausalLM, llama(Qwen2Config, tie_word_embeddings=True), "clm", dict(gpt2_inputs, labels=every_token)),
    "qwen3-classification": (Qwen3ForSequenceClassification, llama(Qwen3Config, head_dim=16, num_labels=3, pad_token_id=0),
                             "sequence-classification", dict(gpt2_inputs, labels=classes)),
    "smollm3-lm": (SmolLM3ForCausalLM, llama(SmolLM3Config, pad_token_id=0, no_rope_layer_interval=2), "clm",
                   dict(gpt2_inputs, labels=every_token)),
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
    "camembert-mlm": (CamembertForMaskedLM, roberta(CamembertConfig), "mlm", dict(roberta_inputs, labels=some_tokens)),
    "camembert-classification": (CamembertForSequenceClassification, roberta(CamembertConfig, num_labels=3),
                                 "sequence-classification", dict(roberta_inputs, labels=classes)),
    "xlm-roberta-mlm": (XLMRobertaForMaskedLM, roberta(XLMRobertaConfig), "mlm", dict(roberta_inputs, labels=some_tokens)),
    "xlm-roberta-qa": (XLMRobertaForQuestionAnswering, roberta(XLMRobertaConfig), "question-answering",
                       dict(roberta_inputs, **spans)),
    "electra-mlm": (ElectraForMaskedLM, narrow(ElectraConfig), "mlm", dict(bert_inputs, labels=some_tokens)),
    "electra-classification": (ElectraForSequenceClassification, narrow(ElectraConfig, num_labels=3),
                               "sequence-classification", dict(bert_inputs, labels=classes)),
    "electra-qa": (ElectraForQuestionAnswering, narrow(ElectraConfig), "question-answering", dict(bert_inputs, **spans)),
    "albert-mlm": (AlbertForMaskedLM, narrow(AlbertConfig), "mlm", dict(bert_inputs, labels=some_tokens)),
    "albert-classification": (AlbertForSequenceClassification, narrow(AlbertConfig, num_labels=3),
                              "sequence-classification", dict(bert_inputs, labels=classes)),
    "albert-qa": (AlbertForQuestionAnswering, narrow(AlbertConfig), "question-answering", dict(bert_inputs, **spans)),
}


def run(*command):
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


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
kind = "{json.loads((folder / "config.json").read_text())["model_type"]}"
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
    check_card(output / "model", task, has_results=False)
    return output / "model"


PIPELINES = {"clm": "text-generation", "mlm": "fill-mask", "token-classification": "token-classification",
             "question-answering": "question-answering", "multiple-choice": "multiple-choice"}


def check_card(folder, task, has_results):
    """huggingface_hub reads the model card in the folder."""
    card = ModelCard.load(folder / "README.md")
    pipeline_tag = PIPELINES.get(task, "text-classification")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", pipeline_tag), card.data
    assert "kiln" in card.data.tags and str(SCRATCH) not in card.content, card.content
    results = card.data.eval_results or []
    assert bool(results) == has_results, card.data
    for result in results:
        assert result.task_type == pipeline_tag and result.metric_type in card.data.metrics, card.data
        assert 0 <= result.metric_value, card.data


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
        name = name.removeprefix("transformer.").removeprefix("bert.").removeprefix("roberta.").removeprefix("albert.")
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

    # A vocabulary that has grown, and a head of another size.
    larger = ["model.resize_token_embeddings=true", f"model.vocab_size={VOCAB + 5}"]
    written = train(f"{name}-grown", folder, task, batch, *larger)
    grown = open_with_transformers(f"{name} grown", model_class, written)
    assert grown.get_input_embeddings().weight.shape[0] == grown.config.vocab_size == VOCAB + 5, name
    compare(f"{name} grown", grown, written, task, batch)
    if task == "sequence-classification":
        two = dict(batch, labels=classes.clamp(max=1))
        written = train(f"{name}-two", folder, task, two, "model.ignore_mismatched_sizes=true", "model.num_labels=2")
        replaced = open_with_transformers(f"{name} with two labels", model_class, written)
        assert replaced.config.num_labels == 2, name
        compare(f"{name} with two labels", replaced, written, task, two)

    if name not in ("gpt2-lm", "bert-mlm", "roberta-mlm", "albert-mlm"):
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

TEXT = ["The cat sat on the mat.", "A dog ate my hat!", "How is the weather in the town today?", "It rains, and the cat sleeps.",
        "The dog barks at the cat and at the rain.", "Who ate the hat? The dog."]
CHAT = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
SINGLES = ["The cat barks.", "It rains on the hat of the dog!", "Town?"]
PAIRS = [("The cat sat.", "A dog ate it and the weather is good."), ("Who ate the hat?", "The dog.")]
POSITIONS = 48


def same(what, found, expected):
    assert found == expected, f"{what}: {found}, expected {expected}"


def close(what, found, expected):
    assert abs(found - expected) <= TOLERANCE, f"{what}: {found}, expected {expected}"


def byte_level(folder, special):
    """A byte-level BPE as vocab.json and merges.txt, `special` tokens first."""
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.train_from_iterator(TEXT * 20, tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    learned.model.save(str(folder))


def sentence_piece(kind, folder):
    """A SentencePiece vocabulary as tokenizer.json."""
    first, last, mask = ("[CLS]", "[SEP]", "[MASK]") if kind == "albert" else ("<s>", "</s>", "<mask>")
    special = ["<pad>", "<unk>", first, last, mask] if kind == "albert" else [first, "<pad>", last, "<unk>", mask]
    learned = tokenizers.Tokenizer(tokenizers.models.Unigram())
    spaces = tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    learned.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), *([tokenizers.normalizers.Lowercase()] if kind == "albert" else []), spaces])
    learned.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    learned.decoder = tokenizers.decoders.Metaspace()
    learned.train_from_iterator(TEXT * 20, tokenizers.trainers.UnigramTrainer(
        vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False))
    pair = f"{first} $A {last} $B:1 {last}:1" if kind == "albert" else f"{first} $A {last} {last} $B {last}"
    learned.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=pair,
        special_tokens=[(token, learned.token_to_id(token)) for token in (first, last)])
    learned.save(str(folder / "tokenizer.json"))


def tokenizer_of(kind, folder, **more):
    """The family's tokenizer, with everything that people set on one, in `folder` beside a config.json of its family."""
    if kind == "gpt2":
        byte_level(folder, ["<|endoftext|>"])
    elif kind == "roberta":
        byte_level(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    elif kind in ("camembert", "xlm-roberta", "albert"):
        sentence_piece(kind, folder)
    else:
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,?!", "the", "cat", "dog", "hat",
                  "rain", "town", "and", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    classes = {"gpt2": "GPT2Tokenizer", "bert": "BertTokenizer", "roberta": "RobertaTokenizer",
               "distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizer", "camembert": "CamembertTokenizer",
               "xlm-roberta": "XLMRobertaTokenizer", "albert": "AlbertTokenizer"}
    # ALBERT's class gives token types in transformers 4 and gives none in 5.
    names = dict(model_input_names=["input_ids", "token_type_ids", "attention_mask"]) if kind == "albert" else {}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": classes[kind], **names}))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=POSITIONS - 1, **more)
    for file in folder.iterdir():
        file.unlink()
    return tokenizer


CONFIGS = {"gpt2": GPT2Config, "bert": BertConfig, "roberta": RobertaConfig, "distilbert": DistilBertConfig,
           "camembert": CamembertConfig, "xlm-roberta": XLMRobertaConfig, "electra": ElectraConfig, "albert": AlbertConfig}
ROBERTAS = ("roberta", "camembert", "xlm-roberta")


def sizes(kind):
    """Hugging Face's generic names; RoBERTa's positions begin at 2."""
    common = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3)
    if kind == "gpt2":
        return dict(n_embd=48, n_layer=2, n_head=4, n_positions=POSITIONS, initializer_range=0.3)
    if kind == "distilbert":
        return dict(dim=48, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=POSITIONS, initializer_range=0.3)
    narrow = dict(embedding_size=20) if kind in ("electra", "albert") else {}
    return dict(common, intermediate_size=64, max_position_embeddings=POSITIONS + 2 * (kind in ROBERTAS),
                type_vocab_size=1 if kind in ROBERTAS else 2, **narrow)


def train_text(name, task, model, data, *overrides, tokenizer=""):
    """Trains two steps; the run folder."""
    config, output = SCRATCH / f"{name}.toml", SCRATCH / f"{name}-run"
    shutil.rmtree(output, ignore_errors=True)
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in model.items())
    config.write_text(f"[model]\n{keys}\n[data]\ntask = \"{task}\"\n{data}\n[tokenizer]\n{tokenizer}\n[trainer]\nmax_steps = 2\n"
                      "per_device_train_batch_size = 2\nlearning_rate = 1e-3\nsave_strategy = \"steps\"\nsave_steps = 1\n"
                      "[device]\nkind = \"cpu\"\n")
    settings = [f"run.output_dir={output}", *overrides]
    run(KILN, "train", config, *[part for setting in settings for part in ("--set", setting)])
    return output


def model_folders(output):
    """Every folder with a model that a run makes: model/, its checkpoints, the archive."""
    archive, unpacked = output / "model.tar.gz", output / "unpacked"
    run(KILN, "export", output, "--tar", archive)
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    checkpoints = [folder for folder in (output / "checkpoints").iterdir() if folder.is_dir()]
    assert checkpoints, f"{output}: no checkpoint"
    return [output / "model", unpacked, *checkpoints]


def came(what, source, output):
    """The files of the tokenizer and of generation stand in every folder as they came."""
    own = {"config.json", "model.safetensors"}
    names = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()} - own
    for folder in model_folders(output):
        for name in names:
            assert (folder / name).is_file(), f"{what}: {folder} has no {name}"
            same(f"{what}: {folder / name}", (folder / name).read_bytes(), (source / name).read_bytes())
        here = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        same(f"{what}: {folder}: files", here - names - own - {"generation_config.json", "optimizer.safetensors", "state.json", "state.sha256", "README.md"}, set())


def predicted(folder, task, columns, rows, *more):
    """The lines of `kiln predict`."""
    file = SCRATCH / "rows.csv"
    with open(file, "w", newline="") as out:
        csv.writer(out).writerows([columns, *rows])
    command = [KILN, "predict", folder, "--input", file, "--task", task, "--text-column", columns[0]]
    command += ["--text-pair-column", columns[1]] if len(columns) > 1 else []
    return [json.loads(line) for line in run(*command, *more).splitlines()]


def compare_classes(what, folder):
    """`kiln predict` against `pipeline`, and against AutoTokenizer with padding and truncation."""
    classify = pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    for columns, rows in ((["text"], [[text] for text in SINGLES]), (["one", "two"], PAIRS)):
        given = [dict(text=row[0], text_pair=row[1]) if len(row) == 2 else row[0] for row in rows]
        for row, kiln, hugging in zip(rows, predicted(folder, "sequence-classification", columns, rows), map(classify, given)):
            hugging = hugging[0] if isinstance(hugging[0], list) else hugging
            for label in hugging:
                close(f"{what}: {row}: {label['label']}", kiln["probabilities"][label["label"]], label["score"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    rows = [[one * 3, two * 3] for one, two in PAIRS] + [["cat", "dog"]]
    if tokenizer.pad_token is None:  # as everybody does with GPT-2
        tokenizer.pad_token = tokenizer.eos_token
        same(f"{what}: pad_token_id", model.config.pad_token_id, tokenizer.pad_token_id)
    inputs = tokenizer([row[0] for row in rows], [row[1] for row in rows], truncation=True, max_length=13, padding=True,
                       return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits.softmax(-1)
    for row, kiln in zip(expected, predicted(folder, "sequence-classification", ["one", "two"], rows, "--max-length", 13)):
        for score, found in zip(row.tolist(), kiln["probabilities"].values()):
            close(f"{what}: cut pairs", found, score)
    print(f"ok  {what}: single texts, pairs, padded and cut pairs", flush=True)


def compare_answers(what, folder):
    rows = [["who ate the hat?", "the dog and the cat. the rain."], ["rain?", "in the town the cat and the dog."]]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, attn_implementation="eager").eval()
    # The run had shorter windows.
    found = predicted(folder, "question-answering", ["question", "context"], rows, "--max-length", 48)
    for (question, context), kiln in zip(rows, found):
        inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets, sequence = inputs.pop("offset_mapping")[0].tolist(), inputs.sequence_ids()
        with torch.no_grad():
            output = model(**inputs)
        start, end = output.start_logits[0], output.end_logits[0]
        top = lambda logits: logits.argsort(descending=True)[:20].tolist()
        spans = [((start[a] + end[b]).item(), a, b) for a in top(start) for b in top(end)
                 if sequence[a] == 1 and sequence[b] == 1 and a <= b < a + 30]
        _, a, b = max(spans)
        same(f"{what}: {question}", kiln["answer"], context[offsets[a][0]:offsets[b][1]])
        if transformers.__version__.startswith("4."):  # 5 has no such pipeline
            answer = pipeline("question-answering", model=str(folder), device="cpu")(
                question=question, context=context, max_answer_len=30, align_to_words=False)
            same(f"{what}: {question}: pipeline", kiln["answer"].strip(), answer["answer"])
    print(f"ok  {what}: answers", flush=True)


def compare_masks(what, folder):
    fill = pipeline("fill-mask", model=str(folder), device="cpu", top_k=5)
    text = f"the cat {fill.tokenizer.mask_token} the dog."
    batch = {name: tensor.tolist() for name, tensor in fill.tokenizer(text, return_tensors="pt").items()}
    file, out = SCRATCH / "batch.json", SCRATCH / "out.safetensors"
    file.write_text(json.dumps(batch))
    run(KILN, "forward", folder, "--batch", file, "--task", "mlm", "--out", out)
    scores = load_file(out)["logits"][0, batch["input_ids"][0].index(fill.tokenizer.mask_token_id)].softmax(-1)
    for guess in fill(text):
        close(f"{what}: {guess['token_str']}", scores[guess["token"]].item(), guess["score"])
    print(f"ok  {what}: fill-mask", flush=True)


def compare_text(what, folder, prompts, count=20):
    write = pipeline("text-generation", model=str(folder), device="cpu")
    for prompt in prompts:
        hugging = write(prompt, max_new_tokens=count, do_sample=False, return_full_text=True)[0]["generated_text"]
        kiln = run(KILN, "generate", folder, "--prompt", prompt, "--max-new-tokens", count, "--temperature", 0)
        same(f"{what}: {prompt}", kiln.removesuffix("\n"), hugging)
    print(f"ok  {what}: greedy text", flush=True)


def described(what, folder, kind, types):
    """Checks the class and the settings of a tokenizer that Kiln wrote."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names = {"gpt2": "GPT2Tokenizer", "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "roberta": "RobertaTokenizer"}
    same(f"{what}: class", type(tokenizer).__name__.removesuffix("Fast"), names[kind])
    same(f"{what}: model_max_length", tokenizer.model_max_length, POSITIONS)
    same(f"{what}: token types", "token_type_ids" in tokenizer("a", "b"), types)
    file = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) if (folder / "tokenizer.json").is_file() else None
    for text in TEXT + ["Ünïcode 你好 <|endoftext|> [MASK] <mask>"] if file else []:
        same(f"{what}: ids of {text}", tokenizer(text)["input_ids"], file.encode(text).ids)
    return tokenizer


def tokenizers_and_pipelines():
    print(f"transformers {transformers.__version__}", flush=True)
    text_file = SCRATCH / "text.txt"
    text_file.write_text("\n".join(TEXT * 40))
    lines = f'train = [{json.dumps(str(text_file))}]\ndocuments = "line"\nblock_size = 16'
    csv_file = SCRATCH / "labels.csv"
    with open(csv_file, "w", newline="") as out:
        csv.writer(out).writerows([["one", "two", "label"], *([a, b, ["yes", "no"][i % 2]] for i, (a, b) in enumerate(PAIRS * 4))])
    table = f'format = "csv"\ntrain = {json.dumps(str(csv_file))}\ntext_column = "one"'
    pairs = table + '\ntext_pair_column = "two"'
    squad_file = SCRATCH / "squad.json"
    context = "the dog ate the hat in the town."
    questions = [dict(id=str(i), question="who ate?", answers=[dict(text="the dog", answer_start=0)]) for i in range(4)]
    squad_file.write_text(json.dumps(dict(version="1.1", data=[dict(title="t", paragraphs=[dict(context=context, qas=questions)])])))
    squad = f'format = "squad"\ntrain = {json.dumps(str(squad_file))}\nmax_length = 24\ndoc_stride = 8'

    # A learned tokenizer.
    output = train_text("learned", "clm", dict(kind="gpt2", **sizes("gpt2")), lines, tokenizer="train_vocab_size = 300")
    for folder in model_folders(output):
        tokenizer = described("learned", folder, "gpt2", False)
        same("learned: special tokens", (tokenizer.bos_token, tokenizer.eos_token), ("<|endoftext|>", "<|endoftext|>"))
    compare_text("learned", output / "model", ["The cat", "A dog ate"])

    # GPT-2 from a folder, with a template for chats, added tokens, and settings of generation.
    source = fresh(SCRATCH / "chat-model")
    tokenizer = tokenizer_of("gpt2", source, padding_side="left")
    tokenizer.chat_template = CHAT
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.add_tokens([tokenizers.AddedToken("<|im_start|>", special=True), tokenizers.AddedToken("<|im_end|>", special=True),
                          "weatherly"])
    tokenizer.save_pretrained(source)
    model = build(GPT2LMHeadModel, GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0,
                                              pad_token_id=tokenizer.pad_token_id, **sizes("gpt2")))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(source)
    output = train_text("chat", "clm", {"from": str(source)}, lines)
    came("chat", source, output)
    again = AutoTokenizer.from_pretrained(output / "model")
    talk = [dict(role="user", content="The weatherly cat?")]
    for name in ("padding_side", "model_max_length", "chat_template", "pad_token_id", "eos_token_id", "all_special_tokens"):
        same(f"chat: {name}", getattr(again, name), getattr(tokenizer, name))
    prompt = tokenizer.apply_chat_template(talk, tokenize=False)
    same("chat: a talk", again.apply_chat_template(talk, tokenize=False), prompt)
    compare_text("chat", output / "model", [prompt, "The cat"], count=8)
    # Both libraries obey the eos_token_id of generation_config.json, which is now the third token that follows the prompt.
    settings = output / "model" / "generation_config.json"
    ids = again(prompt, return_tensors="pt")
    made = GPT2LMHeadModel.from_pretrained(output / "model").generate(**ids, max_new_tokens=8, do_sample=False)[0]
    end = made[ids["input_ids"].shape[1] + 2].item()
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token_id": [end, 0]}))
    kiln = run(KILN, "generate", output / "model", "--prompt", prompt, "--max-new-tokens", 8, "--temperature", 0)
    stop = made.tolist().index(end, ids["input_ids"].shape[1])
    same("chat: the end", kiln.removesuffix("\n"), again.decode(made[:stop], clean_up_tokenization_spaces=False))
    # Trained from Kiln's own folder, the files are still those that came.
    second = train_text("chat-again", "clm", {"from": str(SCRATCH / "chat-run/checkpoints/step-000001")}, lines)
    came("chat, again", source, second)

    for kind in ("bert", "distilbert", "roberta", "camembert", "xlm-roberta", "electra", "albert", "gpt2"):
        source = fresh(SCRATCH / f"{kind}-tokenizer")
        tokenizer = tokenizer_of(kind, source)
        tokenizer.save_pretrained(source)
        config = CONFIGS[kind](vocab_size=len(tokenizer), **sizes(kind), id2label={0: "no", 1: "yes"}, label2id=dict(no=0, yes=1),
                               **(dict(bos_token_id=0, eos_token_id=0) if kind == "gpt2" else {}))
        own = fresh(SCRATCH / f"{kind}-own")
        build({"bert": BertForSequenceClassification, "distilbert": DistilBertForSequenceClassification,
               "roberta": RobertaForSequenceClassification, "camembert": CamembertForSequenceClassification,
               "xlm-roberta": XLMRobertaForSequenceClassification, "electra": ElectraForSequenceClassification,
               "albert": AlbertForSequenceClassification, "gpt2": GPT2ForSequenceClassification}[kind], config).save_pretrained(own)
        tokenizer.save_pretrained(own)
        for name, model, more in ((f"{kind} of its folder", {"from": str(own)}, ""),
                                  (f"{kind} new", dict(kind=kind, **sizes(kind)), f"from = {json.dumps(str(source))}")):
            output = train_text(name.replace(" ", "-"), "sequence-classification", model, pairs, tokenizer=more)
            came(name, source, output)
            compare_classes(name, output / "model")
        again = train_text(f"{kind}-again", "sequence-classification", {"from": str(output / "model")}, pairs)
        came(f"{kind}, again", source, again)
        if kind == "gpt2":
            continue
        new = dict(kind=kind, **sizes(kind))
        output = train_text(f"{kind}-answers", "question-answering", new, squad, tokenizer=more)
        came(f"{kind} answers", source, output)
        compare_answers(f"{kind} answers", output / "model")
        output = train_text(f"{kind}-masks", "mlm", new, lines, tokenizer=more)
        came(f"{kind} masks", source, output)
        compare_masks(f"{kind} masks", output / "model")

    # Tokenizers that say nothing of themselves: the vocabulary alone, and tokenizer.json alone.
    for kind, files in (("bert", ["vocab.txt"]), ("distilbert", ["vocab.txt"]), ("bert", ["tokenizer.json"]),
                        ("distilbert", ["tokenizer.json"]), ("roberta", ["tokenizer.json"]), ("gpt2", ["tokenizer.json"])):
        name, source = f"{kind} with {files[0]} alone", fresh(SCRATCH / "bare")
        tokenizer = tokenizer_of(kind, source)
        if files == ["vocab.txt"]:
            (source / "vocab.txt").write_text("\n".join(sorted(vocab := tokenizer.get_vocab(), key=vocab.get)) + "\n")
        else:
            tokenizer.backend_tokenizer.save(str(source / "tokenizer.json"))
        output = train_text(f"{kind}-bare", "sequence-classification", dict(kind=kind, **sizes(kind)), pairs,
                            tokenizer=f"from = {json.dumps(str(source))}")
        described(name, output / "model", kind, kind == "bert")
        compare_classes(name, output / "model")

    # BERT's tokenizer in front of other families: the names of what it gives are the model's.
    source = SCRATCH / "bert-tokenizer"
    for kind in ("distilbert", "gpt2"):
        name = f"{kind} with BERT's tokenizer"
        output = train_text(f"{kind}-bert", "sequence-classification", dict(kind=kind, **sizes(kind)), pairs,
                            tokenizer=f"from = {json.dumps(str(source))}")
        same(f"{name}: names", AutoTokenizer.from_pretrained(output / "model").model_input_names, ["input_ids", "attention_mask"])
        compare_classes(name, output / "model")


def jobs():
    """A job, which has hyperparameters as texts and channels, leaves at the root of its model folder what transformers opens."""
    def job(name, hyperparameters, files):
        root = fresh(SCRATCH / f"job-{name}")
        (root / "input/config").mkdir(parents=True)
        given = {key: json.dumps(value) for key, value in hyperparameters.items()}
        (root / "input/config/hyperparameters.json").write_text(json.dumps(given))
        for path, text in files.items():
            (root / "input/data" / path).parent.mkdir(parents=True, exist_ok=True)
            (root / "input/data" / path).write_text(text)
        run(KILN, "job", "--root", root)
        return root / "model"

    lines = "\n".join(TEXT * 20)
    model = job("clm", dict(training_script="run_clm.py", kind="gpt2", **sizes("gpt2"), train_vocab_size=300, block_size=16,
                            max_steps=2, learning_rate=5e-5, use_cpu=True, output_dir="/opt/ml/model"),
                {"train/a.txt": lines, "validation/b.txt": lines})
    AutoModelForCausalLM.from_pretrained(model)
    described("job: clm", model, "gpt2", False)
    compare_text("job: clm", model, ["The cat"], count=4)
    rows = "".join(f"{i % 2},{TEXT[i % len(TEXT)]!r}\n".replace("'", '"') for i in range(24))
    source = SCRATCH / "bert-own"
    model = job("classes", dict(sagemaker_program="run_glue.py", model_name_or_path=str(source), max_steps=2, do_train=True,
                                max_seq_length=16, use_cpu=True), {"train/a.csv": "label,text\n" + rows})
    AutoModelForSequenceClassification.from_pretrained(model)
    compare_classes("job: classes", model)


tokenizers_and_pipelines()
jobs()
print("transformers and Kiln agree")
