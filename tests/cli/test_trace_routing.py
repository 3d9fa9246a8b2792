"""`tandem trace-routing` on the demo model: its file compared with the routing of the plain numpy model, its replay, and refusals."""
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np
from bpe import Tokenizer
from program import MODEL, SOURCE, FolderTest, tandem
from reference import DeepSeekV3

TEXT = os.path.join(MODEL, "valid.txt")
NONE = ("--quantization", "none", "--expert-quantization", "none")
LAYERS, EXPERTS, TOP_K = 5, 16, 4
WINDOW, LIMIT = 64, 200


class TraceRouting(FolderTest):
    def setUp(self):
        super().setUp()
        self.output = self.path("trace")

    def trace(self, *args):
        return tandem("trace-routing", "--model-path", MODEL, "--text", TEXT, "--output", self.output, *args)

    def read(self):
        data = pathlib.Path(self.output).read_bytes()
        self.assertEqual((data[:8], struct.unpack("<4I", data[8:24])), (b"TDROUTES", (1, LAYERS, EXPERTS, TOP_K)))
        (n_tok,) = struct.unpack("<Q", data[24:32])
        return np.frombuffer(data[32:], "<u2").reshape(n_tok, LAYERS, TOP_K)

    def test_the_experts_are_those_of_the_reference(self):
        p = self.trace("--window", str(WINDOW), "--limit", str(LIMIT), *NONE)
        self.assertEqual((p.returncode, p.stdout), (0, f"{LIMIT} tokens, {LAYERS} MoE layers of {EXPERTS} experts, {TOP_K} of them a token: {self.output}\n"), p.stderr)
        with open(TEXT, encoding="utf-8") as f:
            tokens = Tokenizer(MODEL).encode_plain(f.read(8 * LIMIT))[:LIMIT]
        model, want = DeepSeekV3(MODEL), []
        for begin in range(0, LIMIT, WINDOW):
            model.routed = []
            model.hidden([0] + tokens[begin:begin + WINDOW][:-1])
            want.append(np.stack([ranked[:, :TOP_K] for ranked, _, _ in model.routed], 1))
        got, want = np.sort(self.read(), -1), np.sort(np.concatenate(want), -1)
        self.assertEqual(got.shape, want.shape)
        self.assertGreater((got == want).all(-1).mean(), 0.99)  # a near tie may fall the other way
        self.assertFalse(os.path.exists(self.output + ".partial"))

    def test_a_trace_is_replayed(self):
        self.assertEqual(self.trace("--limit", "600").returncode, 0)
        p = tandem("bench", "residency", "--routing", self.output)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual([line.split()[5:8] for line in p.stdout.splitlines()[2:]], [["600", "5", "25.0%"], ["600", "5", "50.0%"]])

    def test_a_public_trace_is_converted(self):
        """Decoded tokens alone, and only whole ones."""
        source = self.path("public.csv")
        with open(source, "w") as f:
            f.write("# route_trace v1\n# model=m.gguf arch=a n_layer=2 n_expert=8 n_expert_used=2\n# layer=0 expert_bytes=1\nturn,phase,step,layer,slot,expert,weight\n")
            for phase, step, layer, experts in ((0, 0, 0, (0, 1)), (1, 1, 0, (2, 3)), (1, 1, 1, (4, 5)), (1, 2, 0, (6, 7)), (1, 3, 0, (1, 2)), (1, 3, 1, (3, 4))):
                f.writelines(f"0,{phase},{step},{layer},{slot},{expert},0.5\n" for slot, expert in enumerate(experts))
        subprocess.run([sys.executable, os.path.join(SOURCE, "bench/public_trace.py"), source, self.output], check=True, timeout=60)
        self.assertEqual(pathlib.Path(self.output).read_bytes(), b"TDROUTES" + struct.pack("<4IQ8H", 1, 2, 8, 2, 2, 2, 3, 4, 5, 1, 2, 3, 4))

    def test_refusals(self):
        text = self.write("text", "Once upon a time")
        for args, status, said in [
                ((), 2, "--model-path, --text and --output are needed; --help lists the flags"),
                (("--model-path", MODEL, "--text", TEXT), 2, "--model-path, --text and --output are needed"),
                (("--model-path", MODEL, "--text", TEXT, "--output", self.output, "--window", "1"), 2, "--window must be "),
                (("--model-path", MODEL, "--text", text, "--output", text), 1, f"{text} would be overwritten"),
                (("--model-path", MODEL, "--text", "/nonexistent", "--output", self.output), 1, "/nonexistent"),
                (("--model-path", MODEL, "--text", text, "--output", "/dev/null"), 1, "/dev/null: it is not a regular file"),
                (("--model-path", MODEL, "--text", text, "--output", self.path("no/trace")), 1, "no/trace.partial: No such file"),
                (("--model-path", MODEL, "--text", text, "--output", self.output, "--window", "4096", "--limit", "4000"), 0, "")]:
            with self.subTest(args=args):
                p = tandem("trace-routing", *args)
                self.assertEqual(p.returncode, status, p.stderr)
                if status:
                    self.assertEqual(p.stdout, "")
                    self.assertIn("tandem trace-routing: ", p.stderr.splitlines()[-1])
                    self.assertIn(said, p.stderr.splitlines()[-1])
        self.assertEqual(pathlib.Path(text).read_text(), "Once upon a time")
