#!/usr/bin/env python3
"""What a warp of each kernel of npu/cuda does, by the machine code of NVIDIA's compiler: bench/cuda/sass.tsv, which bench/cuda_step.py computes times with.

usage: sass.py            prints the table, compiled by NVRTC 12.9 and shown by nvdisasm
       sass.py --write    writes the file

A kernel's code is walked in order, as one warp that is alone issues it. Of two ways at a branch that is walked which loads more; code behind a call is not. A loop is walked once;
the loop whose rounds multiply most by matrix instructions, else load most, is the *main*
one, and has columns of its own, for one round more. An instruction waits until its operands are there (LATENCY below, whole clocks, from
public measurements of Volta to Hopper: Jia et al. 2018, Luo et al. 2024). Loads from memory take no time in "clocks", and "waits" is how often their latency is waited for: that is
the difference of two walks.

Columns: generation, kernel; instructions, clocks, waits, macs of a walk; bytes in flight: the most that a thread has asked for and not used; then a round of the main loop: bytes that
a thread loads, instructions, clocks, waits, macs. macs are multiply-adds of matrix instructions, of a warp.
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import cuda_compilers  # noqa: E402

TABLE = ROOT / "bench" / "cuda" / "sass.tsv"
HEAD = ["sm", "kernel", "instructions", "clocks", "waits", "macs", "in_flight", "loop_bytes", "loop_instructions", "loop_clocks", "loop_waits", "loop_macs"]
ALU = 5
LATENCY = {"MUFU": 20, "SHFL": 24, "LDS": 29, "LDSM": 33, "LDC": 40, "S2R": 25, "S2UR": 25, "R2UR": 12, "BAR": 30, "HMMA": 33, "IMMA": 33, "ATOMS": 60, "REDUX": 20, "VOTE": 12, "F2F": 12,
           "F2I": 12, "I2F": 12, "MEMBAR": 200}
FAR = 1000  # the latency of the walk that counts waits
MACS = {"16832": 16 * 8 * 32, "16816": 16 * 8 * 16, "1688": 16 * 8 * 8}
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")


NO_RESULT = {"STG", "STS", "STL", "BAR", "BRA", "EXIT", "RED", "LDGSTS", "ST", "BSSY", "BSYNC", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "MEMBAR"}
TWO_PREDICATES = {"ISETP", "FSETP", "PLOP3", "UISETP", "DSETP", "UPLOP3"}


def registers(first, n):
    """The names of n registers from one on; predicates are single."""
    kind, number = re.match(r"(U?[RP])(\d+)", first).groups()
    return [first] if kind.endswith("P") else [f"{kind}{int(number) + i}" for i in range(n)]


class Instruction:
    def __init__(self, guard, name, operands):
        self.guard, self.name = guard, name
        self.left = int((re.findall(r"0x([0-9a-f]+)", operands) or ["0"])[0], 16)  # of DEPBAR: groups that it leaves
        self.base = name.split(".")[0]
        # BRA.DIV and the like are for warps whose lanes have gone apart.
        self.target = (re.findall(r"`\((\.L\w+)\)", operands) or [None])[0] if name in ("BRA", "BRA.U") else None
        self.sets, self.needs = [], re.findall(r"U?P\d+", guard or "")
        fields = [f.strip() for f in operands.split(",")]
        n_written = 0 if self.base in NO_RESULT else 2 if self.base in TWO_PREDICATES else 1
        for i, field in enumerate(fields):
            for r, wide in re.findall(r"\b(U?[RP]\d+)\b(\.64)?", field):
                if i < n_written:
                    self.sets += registers(r, self.words())
                else:
                    self.needs += registers(r, 2 if wide else self.source_words(i - n_written, i == len(fields) - 1))

    def source_words(self, i, is_last):
        """32-bit registers of an operand that is no address."""
        if self.base in ("HMMA", "IMMA"):
            return (4, 2, 4)[min(i, 2)]
        if self.base in ("STG", "STS", "STL"):
            return self.words()
        return 2 if (".WIDE" in self.name and is_last) or (".64" in self.name and self.base in ("IADD", "MOV", "SEL", "LOP3")) else 1

    def words(self):
        if self.base in ("HMMA", "IMMA") or ".128" in self.name or (self.base == "LDSM" and self.name.endswith(".4")):
            return 4
        return 2 if ".64" in self.name or ".WIDE" in self.name or self.name == "CS2R" or (self.base == "LDSM" and ".2" in self.name) else 1

    def loaded(self):
        """Bytes that a thread asks memory for."""
        if self.base not in ("LDG", "LDGSTS", "LD"):
            return 0
        width = re.search(r"\.(?:[US](8|16)|(64|128))\b", self.name)
        return int(width[1] or width[2]) // 8 if width else 4

    def macs(self):
        shape = re.search(r"\.(\d+)", self.name) if self.base in ("HMMA", "IMMA") else None
        return MACS.get(shape[1], 0) if shape else 0


def functions(sass):
    """{kernel: (instructions, {label: index})}"""
    found, code, labels = {}, None, {}
    for line in sass.splitlines():
        if start := re.match(r"^(td_\w+):$", line):
            code, labels = [], {}
            found[start[1]] = (code, labels)
        elif line.lstrip().startswith(".section"):
            code = None
        elif code is not None:
            if label := re.match(r"^(\.L\w+):", line):
                labels[label[1]] = len(code)
            elif given := LINE.match(line):
                code.append(Instruction(given[2], given[3], given[4]))
    return found


def way(code, labels):
    """Indices of what is walked: forward only, of two ways the one that loads more."""
    n = len(code)
    score, after = [0] * (n + 1), [None] * (n + 1)
    for i in range(n - 1, -1, -1):
        it = code[i]
        own = it.loaded() ** 2 + (1 if it.macs() else 0)
        ends = it.base in ("EXIT", "RET") and not it.guard
        to = labels.get(it.target)
        ahead = to is not None and to > i
        choices = [] if ends else [to] if ahead and not it.guard else [i + 1, to] if ahead else [i + 1]
        best = max(choices, key=lambda c: score[c], default=None)
        score[i], after[i] = own + (score[best] if best is not None else 0), best
    walked, i = [], 0
    while i is not None and i < n:
        walked.append(i)
        i = after[i]
    return walked


def loops(code, labels, walked):
    """(first, last) of each loop on the way, as places in it."""
    place = {i: p for p, i in enumerate(walked)}
    found = []
    for p, i in enumerate(walked):
        to = labels.get(code[i].target)
        if to is not None and to <= i:
            first = next((place[j] for j in range(to, i + 1) if j in place), None)
            if first is not None:
                found.append((first, p))
    return found


class Warp:
    """One warp that is alone, on a scheduler of its own."""

    def __init__(self, far):
        self.far, self.now, self.ready, self.of_loads, self.asked, self.most = far, 0, {}, {}, 0, 0
        self.copies, self.group, self.groups = 0, 0, []

    def take(self, it):
        start = self.now + 1
        for r in it.needs:
            start = max(start, self.ready.get(r, 0))
            self.asked -= self.of_loads.pop(r, 0)
        if it.base == "DEPBAR" or it.base == "LDGDEPBAR":
            self.fence(it)
            start = max(start, self.now)
        self.now = start
        latency = self.far if it.base in ("LDG", "LD", "ATOMG", "ATOM") else LATENCY.get(it.base, ALU)
        for r in it.sets:
            self.ready[r] = start + latency
            self.asked -= self.of_loads.pop(r, 0)
        bytes_ = it.loaded()
        if bytes_ and it.base == "LDGSTS":
            self.group = max(self.group, start + self.far)
            self.copies += bytes_
            self.asked += bytes_
        elif bytes_ and it.sets:
            self.of_loads[it.sets[0]] = bytes_
            self.asked += bytes_
        if it.base == "BAR":
            self.now += LATENCY["BAR"]
        self.most = max(self.most, self.asked)

    def fence(self, it):
        """Groups of copies into shared memory: the end of one, and the wait for all but some."""
        if it.base == "LDGDEPBAR":
            self.groups.append((self.group, self.copies))
            self.group, self.copies = 0, 0
            return
        while len(self.groups) > it.left:
            ready, bytes_ = self.groups.pop(0)
            self.now = max(self.now, ready)
            self.asked -= bytes_


def walk(code, walked, loop, far):
    """(clocks of all with one round, clocks of a round more, the most bytes asked for)"""
    once, twice = Warp(far), Warp(far)
    for i in walked:
        once.take(code[i])
    for p, i in enumerate(walked):
        twice.take(code[i])
        if loop and p == loop[1]:
            for j in walked[loop[0]:loop[1] + 1]:
                twice.take(code[j])
    return once.now, twice.now - once.now, twice.most


def facts(code, labels):
    walked = way(code, labels)
    found = loops(code, labels, walked)
    loaded = {f: sum(code[i].loaded() for i in walked[f[0]:f[1] + 1]) for f in found}
    macs = {f: sum(code[i].macs() for i in walked[f[0]:f[1] + 1]) for f in found}
    main = max(found, key=lambda f: (macs[f], loaded[f], f[0] - f[1]), default=None)
    near, far = walk(code, walked, main, 0), walk(code, walked, main, FAR)
    body = [code[i] for i in walked[main[0]:main[1] + 1]] if main else []
    all_ = [code[i] for i in walked]
    return [len(all_), near[0], round((far[0] - near[0]) / FAR, 2), sum(i.macs() for i in all_), far[2], loaded[main] if main else 0, len(body), near[1],
            round((far[1] - near[1]) / FAR, 2), sum(i.macs() for i in body)]


def disassembler():
    fetched = subprocess.run([ROOT / "scripts" / "cuda_nvdisasm.sh"], capture_output=True, text=True)
    if fetched.returncode:
        sys.exit("sass: " + (fetched.stderr.strip().splitlines() or ["scripts/cuda_nvdisasm.sh failed"])[-1])
    return fetched.stdout.strip()


def shown(compiler, program, source, sm):
    """The machine code of a source as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        log, image = compiler.compile(source, sm)
        if image is None:
            sys.exit(f"sass: {source.name} for sm_{sm}:\n{log}")
        cubin.write(image)
        cubin.flush()
        return subprocess.run([program, "-c", cubin.name], capture_output=True, text=True, check=True).stdout


def read_table():
    """{(generation, kernel): {column: number}}"""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {(int(r[0]), r[1]): dict(zip(HEAD[2:], map(float, r[2:]))) for r in rows}


def main():
    compiler, why = cuda_compilers.nvrtc(cuda_compilers.NVRTC_VERSIONS[0])
    if not compiler:
        sys.exit(f"sass: {why}")
    program = disassembler()
    jobs = [(sm, source) for sm in cuda_compilers.ARCHITECTURES for source in sorted(cuda_compilers.KERNELS.glob("*.cu"))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda job: shown(compiler, program, job[1], job[0]), jobs))
    rows = sorted([sm, name, *facts(*code)] for (sm, _), text in zip(jobs, texts) for name, code in functions(text).items())
    cuda_compilers.give_table(TABLE, [HEAD, *rows])


if __name__ == "__main__":
    main()
