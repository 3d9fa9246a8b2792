#!/usr/bin/env python3
"""Boot a machine with NUMA nodes in qemu and run the NUMA tests in it.

The guest has two nodes of two cores and 768 MiB each, and a third node of 256 MiB without cores. Its root is an initramfs: busybox, test_numa,
tandem, the demo model, and the libraries that these need; there is no disk and no network. What it prints on its serial port decides.

Needs (Debian): apt-get install --no-install-recommends qemu-system-x86 busybox-static linux-image-cloud-amd64
A kernel that is not in /boot (say, unpacked from the package by dpkg-deb -x) is named by TD_NUMA_KERNEL. Exits with 77, and a sentence, where
one of these is missing. The cores are emulated (TCG), which takes about a minute; TD_NUMA_ACCEL=kvm takes the real ones.

usage: boot_guest.py TEST_NUMA TANDEM MODEL_DIR [--verbose]
"""
import glob
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile

SKIPPED = 77
TIMEOUT_S = 400
NODES = [(2, 768), (2, 768), (0, 256)]  # cores, MiB
DONE = "tandem-numa-guest: "

INIT = r"""#!/bin/busybox sh
export PATH=/bin
busybox mkdir -p /proc /sys /dev /tmp
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs tmp /tmp
busybox ip link set lo up
run() { # NAME COMMAND...: its output between marks, and its exit status
    name=$1; shift
    echo "tandem-numa-guest: begin $name"
    "$@" </dev/null; echo "tandem-numa-guest: end $name $?"
}
serve() { # FLAGS...: one greedy answer, then stop
    tandem launch_server --model-path /model --served-model-name m --port 8080 --quantization none --max-total-tokens 1024 --skip-server-warmup "$@" &
    server=$!
    for i in $(busybox seq 240); do
        busybox wget -q -O /dev/null http://127.0.0.1:8080/health 2>/dev/null && break
        busybox sleep 0.5
    done
    busybox wget -q -O - --header 'Content-Type: application/json' --post-data \
        '{"model": "m", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}' http://127.0.0.1:8080/v1/completions
    status=$?
    echo
    kill $server; wait $server
    return $status
}
run test_numa test_numa
run topo tandem topo --json
run topo_npu tandem topo --json --cpuinfer 2 --npu-threads 2
run topo_one_cpu busybox taskset -c 3 tandem topo --json
run serve_one_subpool serve --subpool-count 1 --cpuinfer 1
run serve serve
run serve_npu serve --cpuinfer 2 --npu-threads 2
echo "tandem-numa-guest: off"
busybox poweroff -f
"""


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def find_kernel():
    named = os.environ.get("TD_NUMA_KERNEL")
    found = [named] if named else sorted(glob.glob("/boot/vmlinuz-*"), key=os.path.getmtime, reverse=True)
    for path in found:
        if os.access(path, os.R_OK):
            return path
    skip(f"{named} cannot be read" if named else "no readable kernel in /boot (linux-image-cloud-amd64, or TD_NUMA_KERNEL=FILE)")


def libraries(program):
    """Paths of what the dynamic linker loads for it, itself included."""
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(/\S+) \(0x", out))


class Initramfs:
    """A cpio archive in the format that the kernel reads ("newc"), uncompressed."""

    def __init__(self, path):
        self.f = open(path, "wb")
        self.seen = set()
        self.inode = 0

    def _entry(self, name, mode, data=b""):
        self.inode += 1
        raw = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        self.f.write(b"070701" + b"".join(b"%08x" % v for v in fields) + raw)
        self._pad()
        self.f.write(data)
        self._pad()

    def _pad(self):
        self.f.write(b"\0" * (-self.f.tell() % 4))

    def add(self, name, data, mode=0o755):
        name = name.strip("/")
        parts = name.split("/")
        for i in range(1, len(parts)):
            folder = "/".join(parts[:i])
            if folder not in self.seen:
                self.seen.add(folder)
                self._entry(folder, stat.S_IFDIR | 0o755)
        if name not in self.seen:
            self.seen.add(name)
            self._entry(name, stat.S_IFREG | mode, data)

    def add_file(self, name, path):
        with open(path, "rb") as f:
            self.add(name, f.read())

    def close(self):
        self._entry("TRAILER!!!", 0)
        self.f.close()


def make_initramfs(path, busybox, test_numa, tandem, model):
    root = Initramfs(path)
    root.add("init", INIT.encode())
    root.add_file("bin/busybox", busybox)
    for name, program in (("bin/test_numa", test_numa), ("bin/tandem", tandem)):
        root.add_file(name, program)
        for library in libraries(program):
            root.add_file(library, library)
    for name in os.listdir(model):
        if os.path.isfile(os.path.join(model, name)):
            root.add_file("model/" + name, os.path.join(model, name))
    root.close()


def command(qemu, kernel, initramfs):
    cpus = sum(cores for cores, _ in NODES)
    cmd = [qemu, "-machine", f"q35,accel={os.environ.get('TD_NUMA_ACCEL', 'tcg')}", "-cpu", "max", "-smp", f"{cpus},sockets=2,cores={cpus // 2},threads=1",
           "-m", f"{sum(mib for _, mib in NODES)}M", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
           "-kernel", kernel, "-initrd", initramfs, "-append", "console=ttyS0 quiet panic=-1"]
    first = 0
    for i, (cores, mib) in enumerate(NODES):
        cmd += ["-object", f"memory-backend-ram,id=m{i},size={mib}M",
                "-numa", f"node,nodeid={i},memdev=m{i}" + (f",cpus={first}-{first + cores - 1}" if cores else "")]
        first += cores
    return cmd


def sections(console):
    """name -> (exit status, text) of what ran in the guest."""
    pattern = DONE + r"begin (\w+)\n(.*?)" + DONE + r"end \1 (\d+)\n"
    return {m[1]: (int(m[3]), m[2]) for m in re.finditer(pattern, console, re.S)}


def check(ok, why):
    if not ok:
        raise AssertionError(why)


def json_line(text):
    return json.loads(next(line for line in text.splitlines() if line.startswith("{")))


def check_console(console):
    ran = sections(console)
    for name in ("test_numa", "topo", "topo_npu", "topo_one_cpu", "serve_one_subpool", "serve", "serve_npu"):
        check(name in ran, f"{name} did not run to its end")
        check(ran[name][0] == 0, f"{name} ended with {ran[name][0]}")

    check("[  PASSED  ] 6 test(s)" in ran["test_numa"][1], "not all of test_numa ran")

    topo = json_line(ran["topo"][1])
    check([(n["node"], n["cores"], n["cpus"]) for n in topo["nodes"]] == [(0, 2, [0, 1]), (1, 2, [2, 3]), (2, 0, [])], f"nodes: {topo['nodes']}")
    for i, row in enumerate(topo["read_gbps"]):
        check(all((x is not None and x > 0) == (NODES[i][0] > 0) for x in row), f"row {i} of the matrix: {row}")
    subpools = [(s["node"], s["memory"], s["cpus"]) for s in topo["plan"]["subpools"]]
    check(subpools == [(0, 0, [0, 1]), (1, 1, [2, 3])], f"subpools: {subpools}")
    check(topo["plan"]["device"]["memory"] == "spread", f"device: {topo['plan']['device']}")
    plan = json_line(ran["topo_npu"][1])["plan"]
    check([len(s["cpus"]) for s in plan["subpools"]] == [1, 1] and len(plan["device"]["cpus"]) == 2, f"plan with device threads: {plan}")

    topo_one = json_line(ran["topo_one_cpu"][1])
    check([n["cpus"] for n in topo_one["nodes"]] == [[], [3], []], f"nodes for one cpu: {topo_one['nodes']}")
    subpools = [(s["node"], s["memory"], s["cpus"]) for s in topo_one["plan"]["subpools"]]
    check(subpools == [(1, 1, [3])], f"subpools for one cpu: {subpools}")

    answers = {name: json_line(ran[name][1])["choices"][0]["text"] for name in ("serve_one_subpool", "serve", "serve_npu")}
    check(len(answers["serve"]) > 10 and len(set(answers.values())) == 1, f"answers differ: {answers}")
    for name in ("serve", "serve_npu"):
        placed = re.findall(r"MoE layer (\d+), shard (\d): (\d+) of (\d+) sampled pages lie on node (\d)", ran[name][1])
        check(placed, f"{name}: no placement was reported")
        check({p[1] for p in placed} == {"0", "1"}, f"{name}: shards {placed}")
        for layer, shard, on, known, node in placed:
            check(on == known and shard == node, f"{name}: layer {layer}, shard {shard}: {on} of {known} pages on node {node}")
    return topo


def main():
    args = [a for a in sys.argv[1:] if a != "--verbose"]
    if len(args) != 3:
        sys.exit("usage: boot_guest.py TEST_NUMA TANDEM MODEL_DIR [--verbose]")
    qemu, busybox = shutil.which("qemu-system-x86_64"), shutil.which("busybox")
    if not qemu:
        skip("qemu-system-x86_64 is not installed (qemu-system-x86)")
    if not busybox or libraries_or_none(busybox):
        skip("no static busybox is installed (busybox-static)")
    kernel = find_kernel()
    with tempfile.TemporaryDirectory(prefix="tandem-numa-") as folder:
        initramfs = os.path.join(folder, "initramfs")
        make_initramfs(initramfs, busybox, *args)
        print(f"{kernel}, initramfs of {os.path.getsize(initramfs) >> 20} MiB", flush=True)
        p = subprocess.Popen(command(qemu, kernel, initramfs), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            out, _ = p.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            p.kill()
            out, _ = p.communicate()
            print(f"the guest did not end within {TIMEOUT_S} s")
    console = out.decode(errors="replace").replace("\r\n", "\n")
    try:
        topo = check_console(console)
    except AssertionError as e:
        print(console)
        sys.exit(f"FAILED: {e}")
    if "--verbose" in sys.argv:
        print(console)
    print(f"read_gbps of the emulated machine (no figures to go by): {topo['read_gbps']}")
    print("PASS")


def libraries_or_none(program):
    """ldd fails on what is static."""
    try:
        return libraries(program)
    except subprocess.CalledProcessError:
        return None


if __name__ == "__main__":
    main()
