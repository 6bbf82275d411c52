"""Two other ways to bring a trainer's weights to receivers, each a process, on the same bytes:

  gloo         torch.distributed broadcast, tensor by tensor, over loopback
  safetensors  the trainer saves a file, every receiver loads it and copies it into its own tensors

Prints {"gloo_s": …, "safetensors_s": …}: medians of the seconds until the last receiver has all.
Called by `millrace-bench weightsync` (see bench/peers/weightsync.sh).
"""

import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file


def tensors(total_bytes):
    """f32 tensors of 32 MB and what is left, as a model's layers are."""
    sizes, left = [], total_bytes // 4
    while left > 0:
        sizes.append(min(left, 8_388_608))
        left -= sizes[-1]
    return {f"model.layers.{i}.weight": torch.full((n,), float(i)) for i, n in enumerate(sizes)}


def gloo(rank, weights):
    for name in weights:
        dist.broadcast(weights[name], src=0)


def safetensors(rank, weights, file):
    if rank == 0:
        save_file(weights, file)
    dist.barrier()
    if rank != 0:
        for name, value in load_file(file).items():
            weights[name].copy_(value)


def work(rank, world, args, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    weights = tensors(args.bytes)
    file = os.path.join(args.folder, "model.safetensors")
    ways = {"gloo_s": lambda: gloo(rank, weights),
            "safetensors_s": lambda: safetensors(rank, weights, file)}
    found = {name: [] for name in ways}
    for round in range(args.rounds + 1):  # the first maps pages
        for name, way in ways.items():
            dist.barrier()
            begin = time.monotonic()
            way()
            dist.barrier()
            if round > 0:
                found[name].append(time.monotonic() - begin)
    if rank == 0:
        results.put({name: statistics.median(times) for name, times in found.items()})
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--receivers", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.folder = folder
        context = mp.get_context("spawn")
        results = context.SimpleQueue()
        world = args.receivers + 1
        port = 29_000 + os.getpid() % 2000
        processes = [context.Process(target=work, args=(r, world, args, port, results))
                     for r in range(world)]
        for p in processes:
            p.start()
        for p in processes:
            p.join()
        if any(p.exitcode != 0 for p in processes):
            raise SystemExit("a process of the peer failed")
        print(json.dumps(results.get()))


if __name__ == "__main__":
    main()
