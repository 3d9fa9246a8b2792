#!/usr/bin/env python3
"""How long short chats take beside clients that have texts of megabytes tokenised, and alone: median, p99, and the ratio of p99.

usage: beside_texts.py --preset demo [--texts 8] [--mib 15] [--chats 300]

The texts go to /v1/messages/count_tokens, which tokenises a text of any length; each client sends the next when the last is answered. Chats come one
after the other, in rounds that alternate with and without the texts. Standard library only.
"""
import argparse
import json
import multiprocessing
import os
import statistics
import time
import urllib.request

import service

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
service.add_arguments(parser)
parser.add_argument("--texts", type=int, default=8, help="clients with long texts")
parser.add_argument("--mib", type=int, default=15, help="of each text; a body may have 16")
parser.add_argument("--chats", type=int, default=300, help="of each kind, in all rounds")
parser.add_argument("--tokens", type=int, default=16, help="of an answer")
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()


def post(server, path, body):
    request = urllib.request.Request(server.url + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def body(server, content, **more):
    return json.dumps({"model": server.model, "messages": [{"role": "user", "content": content}], **more}).encode()


def chats(server, n):
    """Seconds of each of n chats."""
    seconds = []
    for i in range(n):
        begin = time.perf_counter()
        post(server, "/v1/chat/completions", body(server, f"Tell me story {i}.", max_tokens=args.tokens, temperature=0))
        seconds.append(time.perf_counter() - begin)
    return seconds


def send_texts(server, text, ending, done):
    """A client in a process of its own. It gives way to all others, as one on another machine would take nothing from them."""
    os.nice(19)
    while not ending.is_set():
        post(server, "/v1/messages/count_tokens", text)
        with done:
            done.value += 1


def beside_texts(server, n, text):
    """(seconds of n chats, texts that were tokenised meanwhile)"""
    ending, done = multiprocessing.Event(), multiprocessing.Value("i", 0)
    clients = [multiprocessing.Process(target=send_texts, args=(server, text, ending, done)) for _ in range(args.texts)]
    for c in clients:
        c.start()
    time.sleep(1)  # until the first are being tokenised
    seconds = chats(server, n)
    ending.set()
    for c in clients:
        c.join()
    return seconds, done.value


def p99(seconds):
    return statistics.quantiles(seconds, n=100)[98]


with service.Service(args, "--max-connections", "64") as server:
    sentence = "The king gave the youngest son a golden key and a horse that could speak. "
    text = body(server, sentence * (args.mib * (1 << 20) // len(sentence)))
    alone, beside, n_texts = [], [], 0
    chats(server, 10)
    for _ in range(args.rounds):
        alone += chats(server, args.chats // args.rounds)
        seconds, n = beside_texts(server, args.chats // args.rounds, text)
        beside, n_texts = beside + seconds, n_texts + n
    print("chats       median ms   p99 ms")
    for name, seconds in (("alone", alone), ("beside", beside)):
        print(f"{name:10} {1000 * statistics.median(seconds):10.1f} {1000 * p99(seconds):8.1f}")
    print(f"p99 beside {args.texts} clients with texts of {args.mib} MiB: {p99(beside) / p99(alone):.2f} of that alone; {n_texts} texts were tokenised")
