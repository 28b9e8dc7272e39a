"""Two ranks of Kiln beside two processes of transformers under torchrun with Gloo, on the same data from the same weights:

    python tests/ranks_beside_transformers.py target/debug/kiln OUT_FOLDER

GPT-2 and BERT without dropout, 24 rows with different numbers of labels, two micro-batches of three rows on each process in an
optimizer step, clipping. Fails where the loss or the gradient norm of any step differs by more than 1e-3. Needs torch, transformers,
accelerate, and an mpirun.
"""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent
CASES = {"gpt2-lm": "clm", "bert-mlm": "mlm", "bert-classification": "sequence-classification"}
ARGS = dict(per_device_train_batch_size=3, gradient_accumulation_steps=2, num_train_epochs=4, learning_rate=3e-3,
            weight_decay=0.1, max_grad_norm=0.5, lr_scheduler_type="linear", warmup_steps=2, logging_steps=1, seed=23,
            optim="adamw_torch")


def worker(case, out):
    import torch
    import transformers
    torch.set_num_threads(1)

    class Sequential(transformers.Trainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    kind = {"clm": transformers.AutoModelForCausalLM, "mlm": transformers.AutoModelForMaskedLM,
            "sequence-classification": transformers.AutoModelForSequenceClassification}[CASES[case]]
    model = kind.from_pretrained(ROOT / "fixtures/oracle" / f"trainer-window-{case}" / "model")
    rows = json.loads((out / f"{case}.json").read_text())
    examples = [{name: torch.tensor(value) for name, value in row.items()} for row in rows]
    arguments = transformers.TrainingArguments(output_dir=str(out / "hf"), save_strategy="no", report_to="none", use_cpu=True,
                                               ddp_backend="gloo", disable_tqdm=True, **ARGS)
    trainer = Sequential(model=model, train_dataset=examples, args=arguments)
    # The mean over all labels of a step, which the Trainer takes of models that can compute it.
    trainer.train()
    if trainer.is_world_process_zero():
        history = [row for row in trainer.state.log_history if "loss" in row]
        (out / f"{case}.hf.json").write_text(json.dumps(history))


def main(kiln, out):
    worst = 0.0
    for case, task in CASES.items():
        data = json.loads((ROOT / "fixtures/oracle" / f"trainer-window-{case}" / "data.json").read_text())[:24]
        (out / f"{case}.json").write_text(json.dumps(data))
        run = out / f"{case}-kiln"
        config = out / f"{case}.toml"
        config.write_text(
            f"[run]\noutput_dir = {json.dumps(str(run))}\non_existing = \"overwrite\"\n"
            f"[model]\nfrom = {json.dumps(str(ROOT / 'fixtures/oracle' / f'trainer-window-{case}' / 'model'))}\n"
            f"[data]\ntask = \"{task}\"\nformat = \"tokenized\"\ntrain = {json.dumps(str(out / f'{case}.json'))}\n"
            "sampler = \"sequential\"\n[device]\nkind = \"cpu\"\n[trainer]\n"
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in ARGS.items())
            + "accumulation = \"transformers\"\n")
        launch = [kiln, "launch", "-n", "2", "--mpirun", os.environ.get("KILN_MPIRUN", "mpirun"), "--", "train", str(config)]
        subprocess.run(launch, check=True, stdout=subprocess.DEVNULL)
        ours = [row for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "loss" in row]
        # Standalone: torchrun looks for a free port. A fixed one may still be held by the run before.
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__, "--worker", case,
                    str(out)]
        child = subprocess.run(torchrun, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if child.returncode != 0:
            sys.exit(f"{case}: torchrun ended with {child.returncode}:\n{child.stderr}")
        theirs = json.loads((out / f"{case}.hf.json").read_text())
        assert len(ours) == len(theirs) == 8, (len(ours), len(theirs))
        for name in ("loss", "grad_norm"):
            # A log of the Trainer's rounds the loss to four digits in some versions.
            apart = max(abs(a[name] - b[name]) / abs(b[name]) for a, b in zip(ours, theirs))
            worst = max(worst, apart)
            print(f"{case}: {name} of {len(ours)} steps, apart by at most {apart:.1e}")
            assert apart < 1e-3, (case, name, [a[name] for a in ours], [b[name] for b in theirs])
    print(f"two ranks beside transformers under torchrun: at most {worst:.1e} apart")


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        target = pathlib.Path(sys.argv[2])
        target.mkdir(parents=True, exist_ok=True)
        main(sys.argv[1], target.resolve())
