#!/usr/bin/env python3
"""Runs two ranks in two network namespaces that a link of a given rate and delay joins (Linux, root):

  python3 bench/delayed_link.py --gbit 1 --ms 1 -- build/cpu/moracle bench --model-shape qwen3-30b-a3b --parallel ep=2 …

The link is a pair of TUN devices. This process carries their packets: a packet leaves when those before it have left at the
link's rate, and arrives a delay later. So TCP sees a slow, distant link, also where the kernel has no netem. Prints what rank 0 prints,
then the bytes that each rank sent and the delay that pings see."""
import argparse
import collections
import fcntl
import os
import re
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
NAMES, ADDRESSES, MTU, PORT = ("moracle0", "moracle1"), ("10.77.0.1", "10.77.0.2"), 9000, "29511"


def ip(*arguments, check=True):
    subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)


def tun(name):
    """Creates a device in its own namespace and keeps its descriptor here."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


class Direction:
    """Carries packets from one device to the other one."""

    def __init__(self, source, target, bytes_per_second, delay):
        self.source, self.target, self.rate, self.delay = source, target, bytes_per_second, delay
        self.queue, self.bytes = collections.deque(), 0
        self.arrived = threading.Semaphore(0)
        for work in (self.take, self.give):
            threading.Thread(target=work, daemon=True).start()

    def take(self):
        free = 0.0
        while True:
            try:
                packet = os.read(self.source, MTU + 100)
            except OSError:  # the namespace is gone
                return
            free = max(free, time.monotonic()) + len(packet) / self.rate
            self.bytes += len(packet)
            self.queue.append((free + self.delay, packet))
            self.arrived.release()

    def give(self):
        while True:
            self.arrived.acquire()
            due, packet = self.queue.popleft()
            while (left := due - time.monotonic()) > 0:
                if left > 1e-4:  # the system wakes a sleeper about so much late
                    time.sleep(left - 1e-4)
            try:
                os.write(self.target, packet)
            except OSError:
                return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", type=float, required=True, help="rate of each direction, Gbit/s")
    parser.add_argument("--ms", type=float, required=True, help="delay of each direction, milliseconds")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    sys.setswitchinterval(1e-4)
    for name in NAMES:
        ip("netns", "del", name, check=False)
    descriptors = [tun(name) for name in NAMES]
    try:
        for name, address in zip(NAMES, ADDRESSES):
            ip("netns", "add", name)
            ip("link", "set", name, "netns", name)
            for command in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/24", "dev", name],
                            ["link", "set", name, "mtu", str(MTU), "up"]):
                ip("-n", name, *command)
        rate, delay = options.gbit * 1e9 / 8, options.ms * 1e-3
        ways = [Direction(descriptors[i], descriptors[1 - i], rate, delay) for i in (0, 1)]
        ping = subprocess.run(["ip", "netns", "exec", NAMES[0], "ping", "-c", "20", "-i", "0.01", "-q", ADDRESSES[1]],
                              capture_output=True, text=True)
        processes = [subprocess.Popen(
            ["ip", "netns", "exec", NAMES[rank], *options.command],
            env=dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR=ADDRESSES[0],
                     MASTER_PORT=PORT), stdout=None if rank == 0 else subprocess.DEVNULL) for rank in (0, 1)]
        codes = [process.wait() for process in processes]
        seen = re.search(r"= [\d.]+/([\d.]+)/", ping.stdout)
        print(f"link: rank 0 sent {ways[0].bytes} bytes, rank 1 {ways[1].bytes}; "
              f"there and back {seen[1] + ' ms' if seen else 'not measured'}", file=sys.stderr)
        return max(codes)
    finally:
        for name in NAMES:
            ip("netns", "del", name, check=False)


if __name__ == "__main__":
    sys.exit(main())
