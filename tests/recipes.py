#!/usr/bin/env python3
"""Gives models of Kiln's to other tools, as the chapter `other-tools` of the guide does, and compares what they compute.

    python3 tests/recipes.py TOOL GPT2 BERT

GPT2 and BERT are folders `model`, in their run folders, of a causal and a masked language model with tokenizers. TOOL is one of those below. Exit code 3
means that the tool is not there; it is said on standard error how to get it.
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
TEXT = "the guide of the command"


def missing(what):
    print(what, file=sys.stderr)
    sys.exit(3)


def need(module, package=None):
    try:
        __import__(module)
    except Exception as error:  # a package may be there and not fit its neighbours
        missing(f"{sys.executable} has no usable {module} ({error}): pip install {package or module}")


def run(*command, **options):
    ended = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {ended.returncode}:\n{ended.stdout[-3000:]}")
    return ended.stdout


def close(one, other, tolerance, what):
    import numpy

    one, other = numpy.asarray(one, dtype="float64"), numpy.asarray(other, dtype="float64")
    assert one.shape == other.shape, (what, one.shape, other.shape)
    difference = abs(one - other).max() / max(abs(other).max(), 1e-30)
    assert difference < tolerance, f"{what}: they differ by {difference}"


def gguf(gpt2, bert):
    """llama.cpp's converter; it knows tokenizers by the ids of a text, so that of GPT-2 is put beside the weights."""
    root = os.environ.get("KILN_LLAMA_CPP") or missing("KILN_LLAMA_CPP names no checkout of llama.cpp")
    need("transformers")
    root = pathlib.Path(root)
    sys.path.insert(0, str(root / "gguf-py"))
    import numpy
    from gguf import GGUFReader
    from safetensors.numpy import load_file, save_file

    def words(vocabulary, field):
        known = GGUFReader(root / "models" / f"ggml-vocab-{vocabulary}.gguf").fields[f"tokenizer.ggml.{field}"]
        return [bytes(known.parts[index]).decode() for index in known.data]

    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        copy = shutil.copytree(gpt2, scratch / "model")
        (copy / "tokenizer.json").unlink(missing_ok=True)
        (copy / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words("gpt-2", "tokens"))}))
        (copy / "merges.txt").write_text("#version: 0.2\n" + "\n".join(words("gpt-2", "merges")) + "\n")
        end = {name: "<|endoftext|>" for name in ("bos_token", "eos_token", "unk_token")}
        (copy / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **end}))
        config = json.loads((copy / "config.json").read_text())
        config["vocab_size"], weights = 50257, load_file(copy / "model.safetensors")
        name = "transformer.wte.weight"
        weights[name] = numpy.resize(weights[name], (50257, weights[name].shape[1]))
        save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
        (copy / "config.json").write_text(json.dumps(config))
        out = scratch / "model.gguf"
        paths = {**os.environ, "PYTHONPATH": str(root / "gguf-py")}
        run(sys.executable, root / "convert_hf_to_gguf.py", copy, "--outfile", out, "--outtype", "f32", env=paths)
        written = {tensor.name: tensor.data for tensor in GGUFReader(out).tensors}
        close(written["token_embd.weight"], weights["transformer.wte.weight"], 1e-12, "embedding")
        close(written["blk.0.attn_qkv.weight"], weights["transformer.h.0.attn.c_attn.weight"].T, 1e-12, "attention")


def sentence_transformers(gpt2, bert):
    """The mean of the last hidden states, as the library makes it of a model that is none of its own."""
    need("sentence_transformers", "sentence-transformers")
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    embedding = SentenceTransformer(bert, device="cpu").encode([TEXT])[0]
    encoded = transformers.AutoTokenizer.from_pretrained(bert)(TEXT, return_tensors="pt")
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(bert)(**encoded).last_hidden_state
    close(embedding, hidden.mean(1)[0], 1e-5, "embedding of a sentence")


def pipeline(gpt2, bert):
    """transformers' pipelines for text and for masks, against `kiln generate` and `kiln predict`."""
    need("transformers")
    import transformers

    kiln = os.environ["KILN"]
    options = {"do_sample": False, "max_new_tokens": 8, "return_full_text": True}
    theirs = transformers.pipeline("text-generation", model=gpt2)(TEXT, **options)[0]["generated_text"]
    ours = run(kiln, "generate", gpt2, "--prompt", TEXT, "--max-new-tokens", "8", "--temperature", "0")
    assert ours.strip() == theirs.strip(), (ours, theirs)
    text = TEXT.replace("guide", "[MASK]")
    filled = transformers.pipeline("fill-mask", model=bert)(text, top_k=1)[0]
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "filled.jsonl"
        run(kiln, "predict", bert, "--text", text, "--out", out)
        row = json.loads(out.read_text())
    assert filled["token_str"] in json.dumps(row, ensure_ascii=False), (filled, row)


def onnx(gpt2, bert):
    """optimum's export, run by onnxruntime, against the logits of transformers."""
    need("optimum.exporters.onnx", "optimum[onnx]")
    need("onnxruntime")
    import numpy
    import onnxruntime
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as out:
        run(sys.executable, "-m", "optimum.exporters.onnx", "--model", bert, "--task", "fill-mask", out)
        encoded = transformers.AutoTokenizer.from_pretrained(bert)(TEXT, return_tensors="np")
        session = onnxruntime.InferenceSession(str(pathlib.Path(out) / "model.onnx"))
        logits = session.run(["logits"], {name: numpy.asarray(ids, dtype="int64") for name, ids in encoded.items()})[0]
    with torch.no_grad():
        model = transformers.AutoModelForMaskedLM.from_pretrained(bert)
        expected = model(**{name: torch.tensor(ids) for name, ids in encoded.items()}).logits
    close(logits, expected, 1e-4, "logits")


def lm_eval(gpt2, bert):
    """EleutherAI's harness on a task of local rows, against the scores of `kiln predict`."""
    need("transformers")
    need("datasets")
    need("lm_eval", "lm-eval")
    import transformers

    kiln = os.environ["KILN"]
    texts = [TEXT, "a run of a config file"]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (scratch / "local.yaml").write_text(
            "task: local\ndataset_path: json\noutput_type: loglikelihood_rolling\ntest_split: train\n"
            f"dataset_kwargs:\n  data_files: {scratch / 'rows.jsonl'}\n"
            'doc_to_text: ""\ndoc_to_target: "{{text}}"\nmetric_list:\n  - metric: byte_perplexity\n'
        )
        command = ["-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={gpt2}", "--tasks", "local", "--device", "cpu"]
        run(sys.executable, *command, "--include_path", scratch, "--output_path", scratch / "out")
        (found,) = (scratch / "out").rglob("results*.json")
        theirs = json.loads(found.read_text())["results"]["local"]["byte_perplexity,none"]
        # The harness lets a text begin behind the tokenizer's first special token.
        tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
        begin = tokenizer.bos_token or tokenizer.eos_token
        (scratch / "begun.jsonl").write_text("".join(json.dumps({"text": begin + text}) + "\n" for text in texts))
        run(kiln, "predict", gpt2, "--input", scratch / "begun.jsonl", "--out", scratch / "ours.jsonl")
        rows = [json.loads(line) for line in (scratch / "ours.jsonl").read_text().splitlines()]
    counted = [len(tokenizer(text)["input_ids"]) for text in texts]
    ours = sum(row["loss"] * count for row, count in zip(rows, counted)) / sum(len(text.encode()) for text in texts)
    close([theirs], [math.exp(ours)], 1e-5, "byte perplexity")


def trackio(gpt2, bert):
    """trackio's import of event files, against the rows of the run."""
    need("tbparse", "trackio[tensorboard]")
    run_folder = pathlib.Path(gpt2).parent
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRACKIO_DIR"] = scratch
        need("trackio", "trackio[tensorboard]")
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        trackio.import_tf_events(run_folder / "tensorboard", project="recipe")
        (name,) = SQLiteStorage.get_runs("recipe")
        logged = [row for row in SQLiteStorage.get_logs("recipe", name) if "train/loss" in row]
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert len(logged) == len(losses), logged
    assert {row["step"] for row in logged} == set(losses), (logged, losses)
    # Event files have single precision.
    close([row["train/loss"] for row in logged], [losses[row["step"]] for row in logged], 1e-6, "losses")


TOOLS = {tool.__name__: tool for tool in (gguf, sentence_transformers, pipeline, onnx, lm_eval, trackio)}

if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in TOOLS:
        sys.exit(__doc__ + "\nTOOL: " + ", ".join(TOOLS))
    TOOLS[sys.argv[1]](*sys.argv[2:])
