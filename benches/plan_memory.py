#!/usr/bin/env python3
"""The plan's estimate of memory beside the peak of the process, for configurations of all tasks:

    benches/plan_memory.py [--only NAME,..] [--repeats 1] [--out FILE.md]

Data and weights are random, so nothing is downloaded; adapters stand on a base that the script trains for one step. Every run is a
process of its own, of 4 steps with their rows, evaluations after steps 2 and 4 and, where the table says so, checkpoints after both.
Planned is the number of `kiln plan`. Measured is the largest memory that the whole process has had resident (`ru_maxrss`, which is
the kernel's VmHWM), its end with the saved model included. Needs kiln ($KILN, else target/release/kiln) and Python 3 on Linux.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile

KILN = pathlib.Path(os.environ.get("KILN", pathlib.Path(__file__).resolve().parents[1] / "target/release/kiln")).resolve()

GPT2 = {"kind": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 8, "n_positions": 128, "vocab_size": 4096}
DEEP = GPT2 | {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 8192}
BERT = {"kind": "bert", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
        "max_position_embeddings": 128, "vocab_size": 4096}
MINI = BERT | {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "vocab_size": 30522}
LLAMA = {"kind": "llama", "num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8,
         "num_key_value_heads": 2, "max_position_embeddings": 256, "vocab_size": 4096, "tie_word_embeddings": True}
QWEN3 = LLAMA | {"kind": "qwen3", "head_dim": 48, "vocab_size": 8192, "tie_word_embeddings": False}
SMOLLM2 = LLAMA | {"num_hidden_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,  # 135M
                   "num_key_value_heads": 3, "max_position_embeddings": 512, "vocab_size": 49152}
LORA = {"r": 8, "alpha": 16}
ALL = {"r": 8, "alpha": 16, "target_modules": "all-linear"}
# Name, model, task, batch, tokens of a sequence, mode, precision, checkpoints, further settings.
CONFIGS = [
    ("clm", GPT2, "clm", 8, 128, "native", "f32", False, {}),
    ("clm", GPT2, "clm", 12, 128, "compiled", "f32", False, {}),
    ("clm", GPT2, "clm", 8, 128, "native", "bf16", False, {}),
    ("clm", GPT2, "clm", 12, 128, "compiled", "bf16", False, {}),
    ("clm, deep", DEEP, "clm", 4, 128, "native", "f32", True, {}),
    ("clm, deep", DEEP, "clm", 4, 128, "compiled", "f32", True, {}),
    ("clm, 4 micro-batches", GPT2, "clm", 8, 128, "native", "f32", True, {"trainer.gradient_accumulation_steps": 4}),
    ("clm, blocks", DEEP, "clm", 8, 128, "native", "f32", False, {"trainer.activation_checkpointing": "blocks"}),
    ("clm, blocks", DEEP, "clm", 8, 128, "compiled", "f32", False, {"trainer.activation_checkpointing": "blocks"}),
    ("clm, balanced", GPT2, "clm", 8, 128, "native", "f32", False, {"trainer.activation_checkpointing": "balanced"}),
    ("mlm", BERT, "mlm", 16, 128, "native", "f32", False, {}),
    ("mlm", BERT, "mlm", 16, 128, "compiled", "bf16", False, {}),
    ("mlm, blocks", BERT, "mlm", 16, 128, "compiled", "f32", False, {"trainer.activation_checkpointing": "blocks"}),
    ("sequence-classification", MINI, "sequence-classification", 16, 64, "native", "f32", True, {}),
    ("sequence-classification", MINI, "sequence-classification", 16, 64, "compiled", "f32", True, {}),
    ("multi-label-classification", BERT, "multi-label-classification", 32, 64, "native", "f32", False, {}),
    ("multi-label-classification", BERT, "multi-label-classification", 32, 64, "compiled", "bf16", False, {}),
    ("regression", BERT, "regression", 32, 64, "native", "bf16", False, {}),
    ("regression", BERT, "regression", 32, 64, "compiled", "f32", False, {}),
    ("token-classification", BERT, "token-classification", 32, 64, "native", "f32", False, {}),
    ("token-classification", BERT, "token-classification", 32, 64, "compiled", "f32", True, {}),
    ("multiple-choice", BERT, "multiple-choice", 8, 64, "native", "f32", False, {}),
    ("multiple-choice", BERT, "multiple-choice", 16, 64, "compiled", "f32", False, {}),
    ("question-answering", BERT, "question-answering", 16, 128, "native", "f32", False, {}),
    ("question-answering", BERT, "question-answering", 16, 128, "compiled", "bf16", True, {}),
    ("clm, LoRA", DEEP, "clm", 8, 128, "native", "f32", True, {"lora": LORA}),
    ("clm, LoRA", DEEP, "clm", 8, 128, "compiled", "f32", False, {"lora": LORA}),
    ("clm, LoRA", DEEP, "clm", 8, 128, "native", "bf16", False, {"lora": LORA}),
    ("sequence-classification, LoRA", MINI, "sequence-classification", 32, 64, "compiled", "bf16", True, {"lora": LORA}),
    ("sequence-classification, LoRA", MINI, "sequence-classification", 32, 64, "native", "f32", False, {"lora": LORA}),
    ("llama", LLAMA, "clm", 8, 128, "native", "f32", False, {}),
    ("llama", LLAMA, "clm", 12, 128, "compiled", "f32", True, {}),
    ("llama", LLAMA, "clm", 8, 128, "native", "bf16", False, {}),
    ("llama", LLAMA, "clm", 12, 128, "compiled", "bf16", False, {}),
    ("llama, blocks", LLAMA, "clm", 16, 128, "compiled", "f32", False, {"trainer.activation_checkpointing": "blocks"}),
    ("llama, blocks", LLAMA, "clm", 16, 128, "native", "bf16", False, {"trainer.activation_checkpointing": "blocks"}),
    ("qwen3", QWEN3, "clm", 4, 256, "native", "f32", True, {}),
    ("qwen3", QWEN3, "clm", 8, 256, "compiled", "f32", False, {}),
    ("qwen3", QWEN3, "clm", 8, 256, "compiled", "bf16", False, {}),
    ("llama, classification", LLAMA, "sequence-classification", 32, 64, "native", "f32", False, {}),
    ("llama, classification", LLAMA, "sequence-classification", 32, 64, "compiled", "bf16", False, {}),
    ("llama, LoRA", LLAMA, "clm", 8, 128, "native", "f32", False, {"lora": ALL}),
    ("llama, LoRA", LLAMA, "clm", 12, 128, "compiled", "f32", False, {"lora": ALL}),
    ("llama, LoRA", LLAMA, "clm", 12, 128, "compiled", "bf16", False, {"lora": ALL}),
    ("llama, LoRA", LLAMA, "clm", 8, 128, "native", "bf16", False, {"lora": ALL}),
    ("smollm2, LoRA", SMOLLM2, "clm", 2, 512, "compiled", "f32", False, {"lora": ALL}),
    ("smollm2, LoRA", SMOLLM2, "clm", 2, 512, "compiled", "bf16", False, {"lora": ALL}),
    ("smollm2, LoRA, blocks", SMOLLM2, "clm", 2, 512, "compiled", "f32", False,
     {"lora": ALL, "trainer.activation_checkpointing": "blocks"}),
    ("smollm2, LoRA, blocks", SMOLLM2, "clm", 2, 512, "compiled", "bf16", False,
     {"lora": ALL, "trainer.activation_checkpointing": "blocks"}),
    ("smollm2, LoRA", SMOLLM2, "clm", 1, 512, "native", "f32", False, {"lora": ALL}),
    ("smollm2", SMOLLM2, "clm", 1, 512, "compiled", "f32", False, {}),
    ("smollm2, blocks", SMOLLM2, "clm", 2, 512, "compiled", "f32", False, {"trainer.activation_checkpointing": "blocks"}),
    ("qwen3, LoRA on attention", QWEN3, "clm", 8, 256, "compiled", "bf16", False, {"lora": LORA}),
]


def row(task, index, tokens, vocabulary):
    draw = random.Random(index)
    ids = [draw.randrange(5, vocabulary) for _ in range(tokens)]
    match task:
        case "clm":
            return {"input_ids": ids}
        case "mlm":
            return {"input_ids": ids, "labels": [id if place % 6 == 0 else -100 for place, id in enumerate(ids)]}
        case "sequence-classification":
            return {"input_ids": ids, "labels": index % 3}
        case "multi-label-classification":
            return {"input_ids": ids, "labels": [index % 2, index // 2 % 2, 1]}
        case "regression":
            return {"input_ids": ids, "labels": draw.random()}
        case "token-classification":
            return {"input_ids": ids, "labels": [id % 3 for id in ids]}
        case "multiple-choice":
            return {"input_ids": [ids, ids[::-1], ids, ids[::-1]], "labels": index % 4}
        case "question-answering":
            return {"input_ids": ids, "start_positions": index % 9, "end_positions": 10}


def toml(value):
    return json.dumps(value)


def write(folder, model, task, batch, tokens, saves, more):
    rows = 10 * batch
    (folder / "data.jsonl").write_text("".join(json.dumps(row(task, i, tokens, model["vocab_size"])) + "\n" for i in range(rows)))
    trainer = {
        "max_steps": 4, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch, "save_strategy": "steps" if saves else "no", "save_steps": 2, "save_total_limit": 1,
    }
    trainer |= {name.split(".")[1]: value for name, value in more.items() if name.startswith("trainer.")}
    sections = {
        "run": {"output_dir": "run", "on_existing": "overwrite"},
        "model": model,
        "data": {"task": task, "format": "tokenized", "train": "data.jsonl", "validation": "20%"},
        "trainer": trainer,
        "device": {"kind": "cpu"},
    }
    if "lora" in more:
        sections |= {"lora": more["lora"]}
    text = "".join(f"[{name}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in keys.items()) for name, keys in sections.items())
    (folder / "config.toml").write_text(text)


def command(*arguments):
    return [str(KILN), *arguments]


def with_base(folder, model, task, batch, tokens, saves, more):
    """A base of one step, and a config of adapters on it."""
    write(folder, model, task, batch, tokens, False, {})
    subprocess.run(command("train", "config.toml", "--set", "trainer.max_steps=1", "--set", "run.output_dir=base", "--compiler", "compiled"),
                   cwd=folder, check=True, stdout=subprocess.DEVNULL)
    write(folder, {"from": "base/model", "vocab_size": model["vocab_size"]}, task, batch, tokens, saves, more)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(re.sub(r"vocab_size = \d+\n", "", config))


def measure(folder, mode, precision):
    """MiB planned, MiB measured, the plan's line, and the peak after each row."""
    arguments = ["train", "config.toml", "--compiler", mode, "--precision", precision, "--log-format", "json"]
    process = subprocess.Popen(command(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{arguments}: exit code {process.returncode}\n{said}")
    line = next(line for line in said.splitlines() if line.startswith("memory "))
    planned = float(re.search(r"about (\d+) MiB", line)[1])
    rows = [json.loads(row) for row in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return planned, usage.ru_maxrss / 1024, line, [round(row["peak_mib"]) for row in rows if "step_ms" in row]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    lines = ["| | batch | mode | precision | checkpoints | planned, MiB | measured, MiB | |", "| --- | --- | --- | --- | --- | ---: | ---: | ---: |"]
    within = 0
    print("\n".join(lines))
    chosen = [config for config in CONFIGS if not given.only or config[0].split(",")[0] in given.only or config[0] in given.only]
    for name, model, task, batch, tokens, mode, precision, saves, more in chosen:
        folder = pathlib.Path(tempfile.mkdtemp())
        (with_base if "lora" in more else write)(folder, model, task, batch, tokens, saves, more)
        runs = [measure(folder, mode, precision) for _ in range(given.repeats)]
        planned, line, peaks = runs[-1][0], runs[-1][2], runs[-1][3]
        measured = [run[1] for run in runs]
        off = max((planned / one - 1 for one in measured), key=abs)
        within += abs(off) <= 0.12
        cells = [name, f"{batch} x {tokens}", mode, precision, "yes" if saves else "no", f"{planned:.0f}",
                 ", ".join(f"{one:.0f}" for one in measured), f"{100 * off:+.0f} %"]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], "<!--", line[10:].strip(), peaks, "-->", flush=True)
        shutil.rmtree(folder)
    lines.append(f"\n{within} of {len(chosen)} within 12 %.")
    print(lines[-1])
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
