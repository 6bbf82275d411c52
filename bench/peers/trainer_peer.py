"""Training steps in Python, and the same ones here: bench/peers/trainer.sh runs this."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

PROMPT, ANSWERS, LONGEST, BUDGET = 24, 8, 400, 4096
VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, FF = 13, 256, 4, 4, 2, 704


def batch(rollouts):
    """Groups of 8 answers to a prompt; most are short."""
    rng = random.Random(1)
    groups = []
    for _ in range(rollouts // ANSWERS):
        prompt = [rng.randrange(10) for _ in range(PROMPT)]
        groups.append([prompt + [rng.randrange(10) for _ in range(8 + int(rng.random() ** 4 * (LONGEST - 8)))]
                       for _ in range(ANSWERS)])
    return groups


class Packed(torch.nn.Module):
    """The model as one would write it for packed sequences."""

    def __init__(self):
        super().__init__()
        dim = WIDTH // HEADS
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict({
                "n1": torch.nn.RMSNorm(WIDTH, eps=1e-6), "n2": torch.nn.RMSNorm(WIDTH, eps=1e-6),
                "qkv": linear(WIDTH, (HEADS + 2 * KV_HEADS) * dim), "o": linear(WIDTH, WIDTH),
                "gate_up": linear(WIDTH, 2 * FF), "down": linear(FF, WIDTH)}) for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-6)
        angles = torch.outer(torch.arange(1024.), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)

    def rotate(self, x, positions):
        a, b = x.chunk(2, -1)
        return x * self.cos[positions].unsqueeze(1) + torch.cat((-b, a), -1) * self.sin[positions].unsqueeze(1)

    def forward(self, tokens, positions, ends):
        x, dim = self.embedding(tokens), WIDTH // HEADS
        for l in self.layers:
            q, k, v = l["qkv"](l["n1"](x)).view(len(tokens), -1, dim).split([HEADS, KV_HEADS, KV_HEADS], 1)
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            parts, at = [], 0
            for end in ends:
                one = lambda t: t[at:end].transpose(0, 1).unsqueeze(0)
                parts.append(F.scaled_dot_product_attention(one(q), one(k), one(v), is_causal=True, enable_gqa=True)
                             .squeeze(0).transpose(0, 1).reshape(end - at, WIDTH))
                at = end
            x = x + l["o"](torch.cat(parts))
            gate, up = l["gate_up"](l["n2"](x)).chunk(2, -1)
            x = x + l["down"](F.silu(gate) * up)
        return self.norm(x)


def micro_batches(lengths):
    """The longest first, each to where the fewest are."""
    parts = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [p for p in parts if sum(lengths[j] for j in p) + lengths[i] <= BUDGET]
        if fitting:
            min(fitting, key=len).append(i)
        else:
            parts.append([i])
    return parts


class PackedPeer:
    def __init__(self, sequences, advantages):
        self.model = Packed()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0, fused=True)
        self.parts = []
        for part in micro_batches([len(s) for s in sequences]):
            tokens, positions, ends, rows, targets, weights = [], [], [], [], [], []
            for i in part:
                s = sequences[i]
                rows += [len(tokens) + t for t in range(PROMPT - 1, len(s) - 1)]
                targets += s[PROMPT:]
                weights += [advantages[i]] * (len(s) - PROMPT)
                positions += range(len(s) - 1)
                tokens += s[:-1]
                ends.append(len(tokens))
            self.parts.append([torch.tensor(x) for x in (tokens, positions)] + [ends]
                              + [torch.tensor(x) for x in (rows, targets, weights)])
        self.trained = sum(len(s) - PROMPT for s in sequences)

    def step(self):
        began = time.perf_counter()
        for tokens, positions, ends, rows, targets, weights in self.parts:
            hidden = self.model(tokens, positions, ends)[rows]
            logp = F.log_softmax(hidden @ self.model.embedding.weight.t(), -1).gather(1, targets[:, None])[:, 0]
            ratio = (logp - logp.detach()).exp()
            (-torch.minimum(ratio * weights, ratio.clamp(0.8, 1.2) * weights).sum() / self.trained).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began


class PaddedPeer:
    """As many sequences at a time as the budget holds of the longest, padded to the longest of them."""

    def __init__(self, sequences, advantages):
        from transformers import LlamaConfig, LlamaForCausalLM
        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=FF, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=512,
            rms_norm_eps=1e-6, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None))
        self.model.config.use_cache = False
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0, fused=True)
        count = BUDGET // (PROMPT + LONGEST)
        self.parts = []
        for at in range(0, len(sequences), count):
            some = sequences[at:at + count]
            longest = max(map(len, some))
            tokens = torch.tensor([s + [0] * (longest - len(s)) for s in some])
            mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in some])
            weights = torch.tensor([[advantages[at + i] if PROMPT <= t < len(s) else 0.0 for t in range(longest)]
                                    for i, s in enumerate(some)])
            self.parts.append((tokens, mask, weights))
        self.trained = sum(len(s) - PROMPT for s in sequences)

    def step(self):
        began = time.perf_counter()
        for tokens, mask, weights in self.parts:
            logits = self.model(input_ids=tokens, attention_mask=mask).logits[:, :-1]
            logp = F.log_softmax(logits, -1).gather(2, tokens[:, 1:, None])[:, :, 0]
            ratio, w = (logp - logp.detach()).exp(), weights[:, 1:]
            (-torch.minimum(ratio * w, ratio.clamp(0.8, 1.2) * w).sum() / self.trained).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began


class Here:
    def __init__(self, program, groups, share_prompts):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump({"groups": groups, "prompt": PROMPT, "share_prompts": share_prompts, "threads": 1}, self.file)
        self.file.flush()
        self.process = subprocess.Popen([program, "trainer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | {"MILLRACE_BENCH_ROUNDS": self.file.name})

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline().split()[0])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--bench", required=True)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json")
    a = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    groups = batch(32 if a.quick else 64)
    sequences = [s for g in groups for s in g]
    advantages = [1.0 if i % 2 else -1.0 for i in range(len(sequences))]
    contenders = {"here": Here(a.bench, groups, False), "here, shared prompts": Here(a.bench, groups, True),
                  "PyTorch, packed": PackedPeer(sequences, advantages),
                  "transformers, padded": PaddedPeer(sequences, advantages)}
    times = {name: [] for name in contenders}
    for round in range(3 if a.quick else 8):
        for name, c in contenders.items():
            took = c.step()
            print(f"round {round}, {name}: {took:.3f} s", file=sys.stderr)
            if round > 0:
                times[name].append(took)
    trained = contenders["PyTorch, packed"].trained
    speed = {name: trained / statistics.median(t) for name, t in times.items()}
    read = sum(len(s) for s in sequences)
    padded = sum(t.numel() for t, _, _ in contenders["transformers, padded"].parts)
    result = [{"name": f"trained, {name}", "value": v, "unit": "tokens/s", "against": "", "ratio": None, "bar": None,
               "holds": None} for name, v in speed.items()]

    def compare(one, other, bar):
        ratio = speed[one] / speed[other]
        result.append({"name": f"{one} over {other}", "value": speed[one], "unit": "tokens/s", "against": other,
                       "ratio": ratio, "bar": bar, "holds": None if bar is None else ratio >= bar})

    compare("here", "PyTorch, packed", 1.0)
    compare("here", "transformers, padded", padded / read)
    compare("here, shared prompts", "here", None)
    result.append({"name": "padding", "value": padded / read, "unit": "× the tokens", "against": "", "ratio": None,
                   "bar": None, "holds": None})
    print(json.dumps(result, indent=2))
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f, indent=2)
    sys.exit(0 if all(r["holds"] is not False for r in result) else 1)


if __name__ == "__main__":
    main()
