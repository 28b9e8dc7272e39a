"""PyTorch's side of `kiln bench`: an arm that makes optimizer steps when it is its turn.

It reads a case folder that Kiln has written (`case.json`, `data.jsonl`, `model/`, and `adapter/` where LoRA learns), loads the
same weights with `transformers` and `peft`, and trains on the same rows in the same order: AdamW(fused=True), constant rate, the global norm clipped,
SDPA, autocast for bf16. `--mode compile` wraps the model in `torch.compile`. Protocol (crates/measure/src/interleaved/protocol.rs): a line of
JSON when it is ready, then `run N` on stdin is answered with a line of JSON on stdout; everything else goes to stderr.

    kiln bench --suite cpu --peer "eager=python3 benches/pytorch/worker.py --mode eager"
"""

import argparse
import json
import os
import platform
import sys
import time

# Nothing but answers may reach stdout, whatever libraries print.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402

MODELS = {
    "clm": transformers.AutoModelForCausalLM,
    "mlm": transformers.AutoModelForMaskedLM,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
IGNORED = -100


def say(answer):
    ANSWERS.write(json.dumps(answer) + "\n")
    ANSWERS.flush()


def fail(message):
    """Ends with an error, told to Kiln in JSON and to people."""
    if answer := os.environ.get("KILN_ANSWER"):
        with open(answer, "w") as file:
            json.dump({"error": {"exit_code": 1, "message": message}}, file)
    sys.exit(f"error: {message}")


def commands():
    """The N of every `run N` until `end`, or until stdin ends."""
    for line in sys.stdin:
        word, _, count = line.strip().partition(" ")
        if word == "end":
            return
        if word != "run" or not count.isdigit() or int(count) < 1:
            fail(f"expected `run N` or `end`, got {line!r}")
        yield int(count)


class Place:
    """The device, how it is waited for, and its memory."""

    def __init__(self, case):
        # A rehearsal on an emulated device has no device that torch could use.
        if case["device"] == "cpu" or os.environ.get("KILN_BENCH_TORCH_DEVICE") == "cpu":
            torch.set_num_threads(case["threads"])
            self.device = torch.device("cpu")
        else:
            if not torch.cuda.is_available():
                fail("the case is for a GPU, and torch.cuda finds none")
            self.device = torch.device("cuda")

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_mib(self):
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved() / 2**20
        # VmHWM, as Kiln reads it: getrusage's would count the driver that forked this process.
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024


def provenance(mode, place):
    cuda = place.device.type == "cuda"
    return {
        "framework": "pytorch",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "mode": mode,
        "attention": "sdpa",
        "optimizer": "AdamW(fused=True)",
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
    }


class Batches:
    """Batch k: the k-th `batch` rows, padded to the longest of them; after the last one the first again."""

    def __init__(self, folder, case):
        with open(os.path.join(folder, "data.jsonl")) as file:
            self.rows = [json.loads(line) for line in file]
        self.size, self.task = case["batch"], case["task"]
        self.count = len(self.rows) // self.size

    def __call__(self, step, device):
        first = (step % self.count) * self.size
        rows = self.rows[first : first + self.size]
        longest = max(len(row["input_ids"]) for row in rows)
        pad = lambda values, fill: values + [fill] * (longest - len(values))  # noqa: E731
        batch = {"input_ids": torch.tensor([pad(row["input_ids"], 0) for row in rows], device=device)}
        lengths = [len(row["input_ids"]) for row in rows]
        if min(lengths) < longest:
            batch["attention_mask"] = torch.tensor([pad([1] * n, 0) for n in lengths], device=device)
        if self.task == "sequence-classification":
            labels = [row["labels"] for row in rows]
        else:
            labels = [pad(row.get("labels", row["input_ids"]), IGNORED) for row in rows]
        batch["labels"] = torch.tensor(labels, device=device)
        return batch, len(rows), sum(lengths)


def adapted(model, adapter):
    try:
        import peft
    except ImportError:
        fail("the case has adapters, and this Python has no peft: pip install peft")
    return peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)


def serve_steps(folder, case, mode, place):
    # The attention of transformers' own default, by name, so that a change of the default is no change here.
    narrow = TYPES.get(case["precision"])
    # Frozen weights lie in the type of the products, as people load a base for adapters; what learns stays in f32.
    base = {"dtype": narrow} if case.get("has_adapter") and narrow else {}
    model = MODELS[case["task"]].from_pretrained(os.path.join(folder, "model"), attn_implementation="sdpa", **base)
    model.config.use_cache = False
    if case.get("has_adapter"):
        model = adapted(model, os.path.join(folder, "adapter"))
    model = model.to(place.device).train()
    # The parameters of the model itself: a compiled one has the same.
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=case["learning_rate"], weight_decay=0.0, fused=True)
    forward = torch.compile(model) if mode == "compile" else model
    batches = Batches(folder, case)
    # The device is waited for as often as Kiln's arms wait for it: every step on the CPU, every tenth on a GPU.
    every = 1 if place.device.type == "cpu" else 10
    say({"provenance": provenance(mode, place), "batch": case["batch"], "total_steps": 2**40})
    made = 0
    for count in commands():
        steps = []
        for _ in range(count):
            made += 1
            marks = [time.perf_counter()]
            mark = lambda: marks.append(time.perf_counter())  # noqa: E731
            batch, samples, tokens = batches(made - 1, place.device)
            if case["task"] != "sequence-classification":
                # The mean over the predicted tokens, which are those behind the first of each row of a causal model.
                predicted = batch["labels"][:, 1:] if case["task"] == "clm" else batch["labels"]
                batch["num_items_in_batch"] = (predicted != IGNORED).sum()
            mark()
            with torch.autocast(place.device.type, dtype=narrow, enabled=narrow is not None):
                loss = forward(**batch).loss
            mark()
            loss.backward()
            mark()
            torch.nn.utils.clip_grad_norm_(parameters, case["max_grad_norm"])
            optimizer.step()
            optimizer.zero_grad()
            mark()
            reads = made % every == 0 or made == 1
            value = loss.item() if reads else None
            mark()
            parts = [(b - a) * 1e3 for a, b in zip(marks, marks[1:])]
            names = ["data_ms", "forward_ms", "backward_ms", "update_ms", "sync_ms"]
            step = {"step": made, "samples": samples, "tokens": tokens, "step_ms": sum(parts)}
            steps.append(step | dict(zip(names, parts)) | {"synced": reads, "loss": value})
        say({"steps": steps, "peak_mib": place.peak_mib()})


def operators(shapes, device, compiled):
    """Single operators with the sizes and the names of crates/measure/src/operators.rs: (name, shape, inputs, function)."""
    batch, length, width = shapes["batch"], shapes["length"], shapes["width"]
    heads, inner, vocabulary = shapes["heads"], shapes["inner"], shapes["vocabulary"]
    tokens = batch * length
    torch.manual_seed(1)
    leaf = lambda *size: torch.randn(*size, device=device).mul_(0.5).requires_grad_()  # noqa: E731
    # By Zipf's law, as kiln's.
    ids = [min(int((vocabulary + 1) ** (i * 0.618033988749895 % 1)), vocabulary) - 1 for i in range(tokens)]
    ids = torch.tensor(ids, device=device)
    form = "tanh" if shapes["gelu_tanh"] else "none"
    # Of Llama's family: keys and values may have fewer heads.
    queries, keys = shapes.get("llama") or (width, width)
    head_dim = queries // heads

    def attention(query, key, value):
        split = lambda x: x.view(batch, length, -1, head_dim).transpose(1, 2)  # noqa: E731
        y = F.scaled_dot_product_attention(
            split(query), split(key), split(value), is_causal=shapes["causal"], enable_gqa=keys != queries
        )
        return y.transpose(1, 2).reshape(tokens, queries)

    def rms_norm(x, weight):  # as LlamaRMSNorm computes it
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    angles = torch.rand(1, length, 1, head_dim // 2, device=device) * 6
    cos, sin = (torch.cat([turn(angles)] * 2, -1) for turn in (torch.cos, torch.sin))

    def rotary(x):  # as apply_rotary_pos_emb computes it
        x = x.view(batch, length, heads, head_dim)
        first, second = x.chunk(2, -1)
        return (x * cos + torch.cat((-second, first), -1) * sin).reshape(tokens, queries)

    x, small, table = leaf(tokens, width), leaf(width), leaf(vocabulary, width)
    all_ = [
        ("embedding", [table], lambda table: F.embedding(ids, table)),
        ("dropout", [x, small, leaf(tokens, width)], lambda x, bias, residual: residual + F.dropout(x + bias, 0.1)),
        (
            "layer_norm",
            [x, leaf(tokens, width), small, leaf(width)],
            lambda x, residual, weight, bias: F.layer_norm(x + residual, (width,), weight, bias, 1e-5),
        ),
        ("linear", [x, leaf(width, inner), leaf(inner)], lambda x, weight, bias: torch.addmm(bias, x, weight)),
        ("attention", [leaf(tokens, size) for size in (queries, keys, keys)], attention),
        ("gelu", [leaf(tokens, inner), leaf(inner)], lambda x, bias: F.gelu(x + bias, approximate=form)),
    ]
    if shapes.get("llama"):
        all_ = [operator for operator in all_ if operator[0] not in ("dropout", "layer_norm", "gelu")] + [
            ("rms_norm", [x, small], rms_norm),
            ("rotary", [leaf(tokens, queries)], rotary),
            ("swiglu", [leaf(tokens, inner), leaf(tokens, inner)], lambda gate, up: F.silu(gate) * up),
        ]
    if shapes["predicts_tokens"]:
        all_.append(("cross_entropy", [x, table], lambda x, table: F.cross_entropy(x @ table.T, ids)))
    wrap = torch.compile if compiled else lambda function: function
    return [(name, inputs, wrap(function)) for name, inputs, function in all_]


def serve_operators(case, mode, place):
    timed = operators(case["shapes"], place.device, mode == "compile")
    narrow = TYPES.get(case["precision"])
    say({"provenance": provenance(mode, place), "batch": case["batch"], "total_steps": 2**40})
    for count in commands():
        answer = []
        for name, inputs, function in timed:
            times = []
            for _ in range(count):
                place.wait()
                start = time.perf_counter()
                with torch.autocast(place.device.type, dtype=narrow, enabled=narrow is not None):
                    y = function(*inputs)
                y.backward(torch.ones_like(y))
                for leaf in inputs:
                    leaf.grad = None
                del y
                place.wait()
                times.append((time.perf_counter() - start) * 1e3)
            answer.append({"name": name, "shape": "", "ms": times})
        say({"operators": answer, "peak_mib": place.peak_mib()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", help="the case folder, which `kiln bench` gives")
    parser.add_argument("--mode", choices=["eager", "compile"], default="eager")
    parser.add_argument("--operators", action="store_true", help="measure single operators instead of steps")
    args = parser.parse_args()
    with open(os.path.join(args.case, "case.json")) as file:
        case = json.load(file)
    if case["schema"] != "kiln.bench-case/1":
        fail(f"expected the schema kiln.bench-case/1, got {case['schema']}")
    place = Place(case)
    if args.operators:
        serve_operators(case, args.mode, place)
    else:
        serve_steps(args.case, case, args.mode, place)


if __name__ == "__main__":
    main()
