#!/usr/bin/env python3
"""How near `tandem quantize` without calibration comes to the disk: bytes read and written a second, against the disk's own speed.

usage: quantize_speed.py TANDEM MODEL_DIR OUT_DIR [--rounds N] [-- more flags of tandem quantize]

OUT_DIR lies on the disk to be measured and is removed again. In each round the disk first reads MODEL_DIR's shards and writes as many bytes as the
output has, with O_DIRECT, 16 MiB at a time. Then follow a quantisation whose source is not in the page cache, and one whose source is. The bound of
the first is the time to read and to write at those speeds, one after the other; of the second, the time to write alone. The sample and the run lie
seconds apart, since a rented disk's speed changes by the minute.
"""
import argparse
import mmap
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

PIECE = 16 << 20


def shards(folder):
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith((".safetensors", ".tdx")))


def drop(paths):
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def cache(paths):
    buffer = bytearray(PIECE)
    for path in paths:
        with open(path, "rb", buffering=0) as f:
            while f.readinto(buffer):
                pass


def read_speed(paths, buffer):
    begin, done = time.monotonic(), 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        while n := os.readv(fd, [buffer]):
            done += n
        os.close(fd)
    return done / (time.monotonic() - begin)


def write_speed(path, size, buffer):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    begin, done = time.monotonic(), 0
    while done < size:
        done += os.pwritev(fd, [buffer], done)
    os.fsync(fd)
    seconds = time.monotonic() - begin
    os.close(fd)
    os.unlink(path)
    return done / seconds


def quantize(a):
    shutil.rmtree(a.out, ignore_errors=True)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([a.tandem, "quantize", "--model-path", a.model, "--output", a.out] + a.flags, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1e6


def main():
    argv = sys.argv[1:]
    flags = argv[argv.index("--") + 1:] if "--" in argv else []
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tandem")
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args(argv[:argv.index("--")] if "--" in argv else argv)
    a.flags = flags
    source = shards(a.model)
    size_in = sum(os.path.getsize(f) for f in source)
    buffer = mmap.mmap(-1, PIECE)
    buffer.write(os.urandom(PIECE))
    quantize(a)
    size_out = sum(os.path.getsize(f) for f in shards(a.out))
    print(f"{size_in / 1e9:.2f} GB of source, {size_out / 1e9:.2f} GB of output")
    print("source | disk reads GB/s | disk writes GB/s | bound s | took s | CPU s | GB/s of source | of the bound | peak GB")
    fractions = {"disk": [], "cached": []}
    for _ in range(a.rounds):
        for where, found in fractions.items():
            shutil.rmtree(a.out)
            drop(source)
            read = read_speed(source, buffer)
            write = write_speed(a.out + ".sample", size_out, buffer)
            if where == "cached":
                cache(source)
            seconds, cpu, peak = quantize(a)
            bound = size_out / write + (size_in / read if where == "disk" else 0)
            found.append(bound / seconds)
            print(f"{where} | {read / 1e9:.2f} | {write / 1e9:.2f} | {bound:.1f} | {seconds:.1f} | {cpu:.1f} | {size_in / seconds / 1e9:.2f} | "
                  f"{found[-1]:.2f} | {peak:.2f}", flush=True)
    print(", ".join(f"{where}: median {statistics.median(f):.2f}" for where, f in fractions.items()))
    shutil.rmtree(a.out)


if __name__ == "__main__":
    main()
