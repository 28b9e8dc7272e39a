#!/usr/bin/env python3
"""Greedy generation by Kiln and by transformers, in turn, with one folder of random weights of a published size:

    benches/pytorch/generation.py --kiln target/release/kiln --precision bf16

A token's time is the difference of a long and a short continuation over the tokens between them, so that start, reading of
weights and the pass over the prompt are apart; what is left of the short continuation is given as its own column. Kiln is a new
process each time (`kiln generate`, compiled); transformers is one process, its model in the type of --precision, with its
default (SDPA) attention and a dynamic cache of keys. Needs torch and transformers. Prints JSON.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {
    "smollm2-135m": dict(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                         intermediate_size=1536, vocab_size=49152, max_position_embeddings=8192),
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 intermediate_size=96, vocab_size=512, max_position_embeddings=512),
}


def make(folder, size):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(3)
    config = LlamaConfig(**SIZES[size], tie_word_embeddings=True, bos_token_id=None, eos_token_id=0, pad_token_id=0,
                         initializer_range=0.04)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    # A character of the prompt is a token, and every id has a text.
    names = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"t{i}" for i in range(len(names), config.vocab_size)]
    bpe = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>", pad_token="<end>").save_pretrained(folder)


def run(command):
    """Seconds, what `command` has written, and MiB of its peak."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    return took, process.returncode, out, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kiln", default="target/release/kiln")
    parser.add_argument("--size", choices=SIZES, default="smollm2-135m")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, nargs=2, default=[16, 144], metavar=("SHORT", "LONG"))
    parser.add_argument("--batch", type=int, default=1, help="prompts that are continued together")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    # A small process starts Kiln's: the peak of a process counts the memory of the one that starts it.
    starter = multiprocessing.get_context("spawn").Pool(1)

    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        # A process of its own, so that its memory is not this one's peak.
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(folder, args.size))
        maker.start()
        maker.join()
        assert maker.exitcode == 0, maker.exitcode
        tokenizer = AutoTokenizer.from_pretrained(folder)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.precision]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        text = ("the quick brown fox jumps over the lazy dog and " * args.prompt_tokens)[: args.prompt_tokens]
        prompts = [text[i:] + text[:i] for i in range(args.batch)]
        ids = tokenizer(prompts, return_tensors="pt")
        assert ids.input_ids.shape == (args.batch, args.prompt_tokens), ids.input_ids.shape

        def theirs(new):
            start = time.perf_counter()
            with torch.inference_mode():
                out = model.generate(**ids, do_sample=False, max_new_tokens=new, min_new_tokens=new)
            return time.perf_counter() - start, out[:, args.prompt_tokens :].tolist(), None

        def ours(new):
            command = [args.kiln, "generate", folder, "--json", "--temperature", "0", "--precision", args.precision,
                       "--compiler", "compiled", "--batch-size", str(args.batch), "--max-new-tokens", str(new),
                       "--min-new-tokens", str(new)]
            for prompt in prompts:
                command += ["--prompt", prompt]
            took, code, out, peak = starter.apply(run, [command])
            if code:
                sys.exit(f"error: kiln ended with exit code {code}")
            return took, [json.loads(line)["token_ids"] for line in out.splitlines()], peak

        arms = {"kiln": ours, "transformers": theirs}
        short, long = args.tokens
        times = {name: {short: [], long: []} for name in arms}
        answers, peaks = {}, {}
        for arm in arms.values():  # what only the first call does
            arm(short)
        for turn in range(args.rounds):
            for name in list(arms)[:: 1 if turn % 2 == 0 else -1]:
                for new in (short, long):
                    took, tokens, peak = arms[name](new)
                    assert all(len(row) == new for row in tokens), [len(row) for row in tokens]
                    times[name][new].append(took)
                    answers[name], peaks[name] = tokens, peak
        peaks["transformers"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result = {"size": args.size, "precision": args.precision, "batch": args.batch, "prompt_tokens": args.prompt_tokens,
                  "threads": threads, "torch": torch.__version__, "transformers": transformers.__version__}
        each = {}
        for name in arms:
            pairs = zip(times[name][short], times[name][long])
            each[name] = [(b - a) * 1e3 / (long - short) for a, b in pairs]
            result[name] = {"ms_per_token": statistics.median(each[name]), "all_ms_per_token": each[name],
                            "short_s": times[name][short], "long_s": times[name][long], "peak_mib": peaks[name]}
        result["transformers_by_kiln"] = result["transformers"]["ms_per_token"] / result["kiln"]["ms_per_token"]
        same = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), long) for x, y in zip(*answers.values())]
        result["equal_tokens"] = same
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
