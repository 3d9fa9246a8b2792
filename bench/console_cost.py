#!/usr/bin/env python3
"""What the console costs the server: CPU time while nobody looks, and while somebody looks at the machine.

usage: console_cost.py --build BUILD [--seconds N] [--rounds N]

BUILD is a build's folder (build/release), whose server of the demo model runs. "Looks" does what the page does, once a second: /health, /metrics and
/v1/requests over kept connections. CPU time of the server's process is counted, in alternating rounds, so that the figures survive a machine that is shared.
The requests are also made as fast as they come, which gives the time of one look without the clock's ticks of 10 ms.
"""
import argparse
import http.client
import os
import sys
import time

from overhead import DemoServer, spread

PATHS = ("/health", "/metrics", "/v1/requests")
FAST = 500  # looks


def look(connection):
    size = 0
    for path in PATHS:
        connection.request("GET", path)
        response = connection.getresponse()
        size += len(response.read())
        if response.status != 200:
            sys.exit(f"{path}: {response.status}")
    return size


def measure(server, connection, seconds):
    """CPU percent of a core over so many seconds; connection None: nobody looks."""
    begin = server.cpu_s()
    for i in range(seconds):
        if connection:
            look(connection)
        time.sleep(1)
    return 100 * (server.cpu_s() - begin) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--seconds", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="with and without somebody who looks")
    args = parser.parse_args()
    server = DemoServer(os.path.abspath(args.build))
    try:
        time.sleep(3)  # threads that still spin after the warm-up go to sleep
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        size = look(connection)
        got = {None: [], connection: []}
        for i in range(args.rounds):
            for who in (None, connection) if i % 2 == 0 else (connection, None):
                got[who].append(measure(server, who, args.seconds))
        begin = server.cpu_s()
        for _ in range(FAST):
            look(connection)
        one_ms = 1000 * (server.cpu_s() - begin) / FAST
    finally:
        server.stop()
    print(f"| the server's CPU, % of a core; medians of {args.rounds} rounds of {args.seconds} s (least to most) | |\n|---|---|")
    print(f"| nobody looks | {spread(got[None], 2)} |")
    print(f"| somebody looks, once a second | {spread(got[connection], 2)} |")
    print(f"| one look, over {FAST} without a pause | {one_ms:.3f} ms, {size} bytes: {one_ms / 10:.3f} % of a core |")


if __name__ == "__main__":
    main()
