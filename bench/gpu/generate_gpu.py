"""What bench/gpu/generate.sh runs. Engines are processes that answer lines of JSON and are asked in
turn; speeds are of decoding alone, prompts being done when the clock starts."""

import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
from generate_peer import PROMPT_TOKENS, Worker, measured, rate_here, serve  # noqa: E402

BATCHES = (1, 8, 32, 128)
CONTEXT = 512


def transformers_worker(model, device):
    import torch
    from transformers import AutoModelForCausalLM

    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device).eval()
    net.generation_config.eos_token_id = None  # answers run to their full length
    net.generation_config.pad_token_id = 0

    def seconds(ids, count):
        given = torch.tensor(ids, device=device)
        begin = time.perf_counter()
        with torch.inference_mode():
            net.generate(given, attention_mask=torch.ones_like(given), do_sample=False,
                         min_new_tokens=count, max_new_tokens=count).cpu()
        return time.perf_counter() - begin

    def speed(ask):
        ids, count = ask["prompts"], ask["max_tokens"]
        return {"rate": len(ids) * count / (seconds(ids, count + 1) - seconds(ids, 1))}

    serve(speed)


def transformers_there(device):
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError:
        return False
    return device != "cuda" or torch.cuda.is_available()


def prompts_of(model, batch):
    with open(os.path.join(model, "config.json")) as file:
        vocabulary = json.load(file)["vocab_size"]
    return [[(1000 + 7919 * s + 104729 * i) % vocabulary for i in range(PROMPT_TOKENS)]
            for s in range(batch)]


def load(worker, how, dtype, device, batch):
    worker.ask(op="load", model=how.model, device=device, dtype=dtype, batch=batch,
               context=CONTEXT, prefill=PROMPT_TOKENS * batch, threads=min(16, os.cpu_count()))


def compare_answers(worker, how):
    """Greedy continuations in fp32 by the GPU beside those by the CPU's own decoder."""
    prompts = prompts_of(how.model, 8)
    tokens = {}
    for device in (how.device, "cpu"):
        load(worker, how, "fp32", device, len(prompts))
        tokens[device] = worker.ask(op="generate", prompts=prompts,
                                    max_tokens=16 if how.quick else 64)["tokens"]
    equal = sum(a == b for a, b in zip(tokens[how.device], tokens["cpu"]))
    return [measured("greedy continuations equal to the CPU decoder's, fp32", equal,
                     f"of {len(prompts)}", "the CPU's decoder", None, len(prompts))]


def compare_pause(worker, how, dtype):
    """New weights at two token boundaries of 32 sequences."""
    load(worker, how, dtype, how.device, 32)
    prompts, tokens = prompts_of(how.model, 32), 16 if how.quick else 64
    plain = worker.ask(op="generate", prompts=prompts, max_tokens=tokens)
    step = plain["decode_s"] / (plain["decoded"] / len(prompts))
    run = worker.ask(op="generate", prompts=prompts, max_tokens=tokens,
                     swap_at=[tokens // 4, tokens // 2])
    swap = min(s["pause_s"] - s["prefill_s"] for s in run["swaps"])
    return [measured(f"pause of a swap without re-prefill, batch 32, {dtype}", 1e3 * swap, "ms"),
            measured(f"re-prefill in that, {dtype}", 1e3 * min(s["prefill_s"] for s in run["swaps"]),
                     "ms"),
            measured(f"a decode step of 32, {dtype}", 1e3 * step, "ms")]


def compare_speed(how):
    engines = {d: Worker(how.probe) for d in ("bf16", "fp8")}
    for dtype, worker in engines.items():
        load(worker, how, dtype, how.device, max(how.batches))
    peer = None
    if transformers_there(how.device):
        peer = Worker(sys.executable, os.path.abspath(__file__), "transformers", how.model,
                      "cuda" if how.device == "cuda" else "cpu")
    else:
        print("no transformers with CUDA in this Python: no comparison with it", file=sys.stderr)
    out, tokens = [], 16 if how.quick else 128
    for batch in how.batches:
        prompts, rates = prompts_of(how.model, batch), {}
        for round_ in range(2 if how.quick else 6):
            for dtype, worker in engines.items():
                rates.setdefault(dtype, []).append(rate_here(worker, prompts, tokens))
            if peer:
                rates.setdefault("peer", []).append(
                    peer.ask(prompts=prompts, max_tokens=tokens)["rate"])
        median = {n: statistics.median(r[1:]) for n, r in rates.items()}  # the first warms up
        if peer:
            out.append(measured(f"decode, batch {batch}: transformers, bf16", median["peer"], "tok/s"))
        for dtype in engines:
            against = ("transformers, bf16", median[dtype] / median["peer"]) if peer else ("", None)
            out.append(measured(f"decode, batch {batch}: millrace, {dtype}", median[dtype], "tok/s",
                                *against))
        print(f"batch {batch}: " + ", ".join(f"{n} {r:.1f}" for n, r in median.items()),
              file=sys.stderr)
    out += [m for d, w in engines.items() for m in compare_pause(w, how, d)]
    for worker in list(engines.values()) + ([peer] if peer else []):
        worker.close()
    return out


def main():
    if sys.argv[1] == "transformers":
        return transformers_worker(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "libtorch"),
                        help="libtorch: the same code on the CPU, to try this without a GPU")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    how = parser.parse_args()
    worker = Worker(how.probe)
    out = compare_answers(worker, how)
    worker.close()
    out += compare_speed(how)
    text = json.dumps(out, indent=2)
    print(text)
    if how.json:
        with open(how.json, "w") as file:
            file.write(text + "\n")
    return 0 if all(m["holds"] is not False for m in out) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as problem:
        sys.exit(f"generate_gpu.py: {problem}")
