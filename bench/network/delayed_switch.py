#!/usr/bin/env python3
"""A switch between network namespaces that holds every frame for a while.

    delayed_switch.py DELAY_MS NAMESPACE=ADDRESS/BITS …

Gives each namespace an interface eth0 with that address, prints "ready", and passes frames on until
it is killed. For kernels without netem. Needs root and /dev/net/tun.
"""
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MTU = 9000
QUEUE = 20000  # frames; further ones are dropped, as by any switch


def port(index, namespace, address):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"mrswitch{index}"
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    for command in (
        f"ip link set {name} netns {namespace} name eth0 mtu {MTU}",
        f"ip -n {namespace} addr add {address} dev eth0",
        f"ip -n {namespace} link set eth0 up",
        f"ip -n {namespace} link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    return fd


def forward(ports, delay):
    home = {}  # hardware address -> port
    held = []  # (when, order, port, frame)
    order = 0
    while True:
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, _, to, frame = heapq.heappop(held)
            try:
                os.write(to, frame)
            except OSError:
                pass  # its queue is full: dropped
        wait = max(0, held[0][0] - now) if held else None
        for fd in select.select(ports, [], [], wait)[0]:
            for _ in range(64):
                try:
                    frame = os.read(fd, MTU + 64)
                except OSError:
                    break  # nothing there, or its namespace is going away
                home[frame[6:12]] = fd
                known = home.get(frame[:6])
                for to in ports if known is None else (known,):
                    if to != fd and len(held) < QUEUE:
                        order += 1
                        heapq.heappush(held, (time.monotonic() + delay, order, to, frame))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    ends = [a.split("=") for a in sys.argv[2:]]
    ports = [port(i, *end) for i, end in enumerate(ends)]
    print("ready", flush=True)
    forward(ports, float(sys.argv[1]) / 1000)


main()
