#!/usr/bin/env python3
"""`tandem grammar --regex` against Python's re: random regexes of the supported kind, random texts.

usage: test_regex_python.py TANDEM [--count N] [--seed N]
"""
import argparse
import json
import random
import re
import signal
import subprocess
import sys

LETTERS = "abcx1_ -é€😀.\n"


def atom(rng, depth):
    kind = rng.randrange(8)
    if kind < 3:
        return re.escape(rng.choice(LETTERS))
    if kind == 3:
        return "."
    if kind == 4:
        return rng.choice(["\\d", "\\w", "\\s", "\\D", "\\W", "\\S"])
    if kind == 5 or depth == 0:
        inside = "".join(rng.choice(["a-c", "1", "\\d", "é-ü", "x", "\\n", "\\w", "_", "😀"]) for _ in range(rng.randint(1, 3)))
        return "[" + rng.choice(["", "^"]) + inside + "]"
    return rng.choice(["(", "(?:"]) + regex(rng, depth - 1) + ")"


def quantified(rng, depth):
    return atom(rng, depth) + rng.choice(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{1,2}?"])


def regex(rng, depth=3):
    return "|".join("".join(quantified(rng, depth) for _ in range(rng.randint(0 if depth < 3 else 1, 3))) for _ in range(rng.randint(1, 2)))


ENDS = ["", "\\Z"]


def looking_ahead(rng):
    """Conditions on the whole text, where it begins."""
    conditions = "".join(f"(?{rng.choice('=!')}{regex(rng, 1)}{rng.choice(ENDS)})" for _ in range(rng.randint(1, 2)))
    return "^" + conditions + "".join(quantified(rng, 1) for _ in range(rng.randint(1, 3)))


def python_says(source, text):
    """None where Python's backtracking takes too long."""
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        return re.fullmatch(source, text, re.ASCII) is not None
    except TimeoutError:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def too_long(number, frame):
    raise TimeoutError


def main():
    signal.signal(signal.SIGALRM, too_long)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tandem")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    print("seed", args.seed)
    rng = random.Random(args.seed)
    accepted = compared = 0
    for _ in range(args.count):
        looks = rng.random() < 0.2
        source = looking_ahead(rng) if looks else regex(rng)
        if not looks and rng.random() < 0.2:
            source = f"^(?:{source})$"
        texts = ["".join(rng.choice(LETTERS) for _ in range(rng.randint(0, 5))) for _ in range(60)]
        lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
        done = subprocess.run([args.tandem, "grammar", "--regex", source], input=lines, capture_output=True, text=True)
        if done.returncode:
            if "too large" in done.stderr:
                continue
            if looks and "no text matches" in done.stderr and not any(python_says(source, t) for t in texts):
                continue
            sys.exit(f"{source!r}: {done.stderr}")
        for text, line in zip(texts, done.stdout.splitlines(), strict=True):
            got, want = json.loads(line)["accepted"], python_says(source, text)
            if want is None:
                continue
            if got != want:
                sys.exit(f"{source!r} on {text!r}: accepted is {got}, re says {want}")
            compared += 1
            accepted += want
    print(f"{compared} texts compared, {accepted} accepted")
    sys.exit(0 if accepted > compared / 100 else "too few texts are accepted for the test to mean much")


if __name__ == "__main__":
    main()
