"""`tandem perplexity` on the demo model. The protocol and every figure are compared with scripts/golden/make_perplexity.py, a plain numpy program.
Also reference files, damaged ones too, and refusals."""
import json
import math
import os
import pathlib
import shutil
import struct
import tempfile
import unittest

import numpy as np
from bpe import Tokenizer
from program import MODEL, SOURCE, tandem
from reference import DeepSeekV3

DATA = os.path.join(SOURCE, "tests/data/perplexity")
TEXTS = {"valid.txt": os.path.join(MODEL, "valid.txt"), "documents.jsonl": os.path.join(DATA, "documents.jsonl")}
EXPECTED = json.loads(pathlib.Path(os.path.join(DATA, "expected.json")).read_text())
NONE = ("--quantization", "none")
SMALL = ("--text", TEXTS["valid.txt"], "--window", "64", "--limit", "200")
HEADER = struct.Struct("<8s4I4Q")  # magic, version, vocabulary, window, stride, limit, hash, rows, windows


def run(*args, model=("--model-path", MODEL), **more):
    return tandem("perplexity", *model, *args, **more)


def protocol(case):
    return ["--text", TEXTS[case["text"]], "--window", str(case["window"]), "--stride", str(case["stride"])] + (
        ["--limit", str(case["limit"])] if case["limit"] else [])


class Perplexity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.saved = os.path.join(cls.folder.name, "small.lp")
        cls.first = run(*SMALL, *NONE, "--save", cls.saved, "--json")

    def figures(self, *args, **kw):
        p = run(*args, "--json", **kw)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(p.stdout.count("\n"), 1)
        return json.loads(p.stdout)

    def refused(self, *args, status=1, model=("--model-path", MODEL)):
        p = run(*args, model=model)
        self.assertEqual((p.returncode, p.stdout), (status, ""), p.stderr)
        last = p.stderr.splitlines()[-1]
        if status == 1:
            self.assertTrue(last.startswith("tandem perplexity: "), p.stderr)
        return p.stderr

    def write(self, name, data):
        path = os.path.join(self.folder.name, name)
        pathlib.Path(path).write_bytes(data)
        return path

    def tokenizer_without_bos(self):
        folder = os.path.join(self.folder.name, "no_bos")
        os.makedirs(folder, exist_ok=True)
        for name, key, value in (("tokenizer.json", "post_processor", None), ("tokenizer_config.json", "add_bos_token", False)):
            content = json.loads(pathlib.Path(os.path.join(MODEL, name)).read_text())
            content[key] = value
            pathlib.Path(os.path.join(folder, name)).write_text(json.dumps(content))
        return folder

    def test_protocol(self):
        """Which tokens are scored, each in which context, and the standard error over windows."""
        for case in EXPECTED["cases"]:
            with self.subTest(case=case):
                got = self.figures(*protocol(case), *NONE, *([] if case["bos"] else ["--tokenizer-path", self.tokenizer_without_bos()]))
                self.assertEqual({k: got[k] for k in ("tokens", "windows", "window", "stride", "prefix_tokens")},
                                 {**{k: case[k] for k in ("tokens", "windows", "window", "stride")}, "prefix_tokens": int(case["bos"])})
                self.assertAlmostEqual(got["nll"], case["nll"], delta=1e-4)
                self.assertAlmostEqual(got["nll_error"], case["nll_error"], delta=1e-4)

    def test_protocol_of_the_models_readme(self):
        got = self.figures("--text", TEXTS["valid.txt"], "--window", "256", "--stride", "256", "--limit", "16384", "--drafts", *NONE)
        self.assertEqual((got["tokens"], got["windows"]), (16384, 64))
        self.assertAlmostEqual(got["nll"], 3.41884, delta=2e-5)
        self.assertAlmostEqual(got["perplexity"], 30.534, delta=1e-3)
        self.assertAlmostEqual(got["draft_nll"], 3.59998, delta=2e-5)
        self.assertAlmostEqual(got["draft_agreement"], 0.655, delta=0.02)  # of train_log.txt, over other tokens

    def test_against_another_function(self):
        """The model with two deferred experts a token against the model without."""
        want = EXPECTED["deferred"]
        defer = ("--enable-defer", "--max-deferred-experts-per-token", str(want["max_deferred"]))
        got = self.figures(*protocol(want), *NONE, *defer, "--against", MODEL)
        for name in ("kl", "kl_99", "logprob_change"):
            self.assertAlmostEqual(got[name] / want[name], 1, delta=2e-3, msg=name)
        for name in ("kl_error", "logprob_change_error", "top1_agreement_error"):
            self.assertAlmostEqual(got[name] / want[name], 1, delta=1e-2, msg=name)
        self.assertAlmostEqual(got["top1_agreement"], want["top1_agreement"], delta=2.5 / 600)
        self.assertAlmostEqual(got["ratio"], 2.718281828459045 ** want["nll_difference"], delta=1e-4)
        self.assertAlmostEqual(got["ratio"], got["perplexity"] / got["reference_perplexity"], delta=1e-6)
        window = self.figures("--text", TEXTS["valid.txt"], "--window", str(want["window"]), "--limit", str(want["window"]), *NONE, *defer, "--against", MODEL)
        hidden = [layer["hidden_db"] for layer in window["layers"]]
        self.assertEqual([x is None for x in hidden], [x is None for x in want["one_window_hidden_db"]])
        for a, b in zip(hidden[1:], want["one_window_hidden_db"][1:]):
            self.assertAlmostEqual(a, b, delta=0.05)
        self.assertEqual(["routed_db" in layer for layer in window["layers"]], [False] + 5 * [True])

    def test_against_itself(self):
        got = self.figures(*SMALL, *NONE, "--against", MODEL)
        self.assertEqual((got["kl"], got["kl_99"], got["ratio"], got["ratio_error"], got["top1_agreement"], got["logprob_change"]), (0, 0, 1, 0, 1, 0))
        self.assertEqual(got["perplexity"], got["reference_perplexity"])
        self.assertEqual([(x["hidden_db"], x.get("routed_db")) for x in got["layers"]], 6 * [(None, None)])
        self.assertEqual([x["db"] for x in got["worst_experts"]], 10 * [None])

    def test_apart(self):
        """The test device gives the host's figures, to the last bit."""
        figures = self.figures(*SMALL)
        self.assertEqual(self.figures(*SMALL, "--device", "apart"), figures)
        self.assertEqual(self.figures(*SMALL, "--device", "apart", "--against", MODEL)["model"], figures["model"])
        self.assertIn("--device abacus is not supported yet", self.refused(*SMALL, "--device", "abacus", status=2))

    def test_worst_experts(self):
        """Each expert on the reference's input: its own format's error alone, and all pairs of the reference's routing are seen."""
        got = self.figures(*SMALL, *NONE, "--expert-quantization", "int4", "--against", MODEL, "--worst", "1000")
        experts = got["worst_experts"]
        self.assertEqual([x["db"] for x in experts], sorted(x["db"] for x in experts))
        self.assertEqual({x["layer"] for x in experts}, {1, 2, 3, 4, 5})
        self.assertEqual(len({(x["layer"], x["expert"]) for x in experts}), len(experts))
        tokens = [sum(x["tokens"] for x in experts if x["layer"] == layer) for layer in range(1, 6)]
        self.assertEqual(tokens, 5 * [4 * (5 * 64 + 40)])  # top 4 of every row: five whole windows, and the last
        for x in experts:
            self.assertTrue(8 < x["db"] < 30, x)  # 4 bits by rounding to nearest: 20 log10(7 sqrt(12) / peak), peak of a Gaussian row 2.5 to 4
        exact = self.figures(*SMALL, "--expert-quantization", "none", "--against", MODEL)
        for x in exact["worst_experts"]:
            self.assertGreater(x["db"], 40)  # W8A8 elsewhere: only the input and output are rounded to bf16

    def test_turned_model(self):
        """Of a rotated folder the figures of layers and experts are those of one that is not, but for the rounding of its bf16 weights and activations."""
        folders = [os.path.join(self.folder.name, name) for name in ("plain", "turned")]
        for folder, rotation in zip(folders, ("none", "hadamard")):
            p = tandem("quantize", "--model-path", MODEL, "--output", folder, "--expert-quantization", "int8", "--rotation", rotation)
            self.assertEqual(p.returncode, 0, p.stderr)
        plain, turned = (self.figures(*SMALL, "--against", MODEL, model=("--model-path", folder)) for folder in folders)
        for a, b in zip(plain["layers"], turned["layers"]):
            for name in a:
                self.assertGreater(b[name], a[name] - 3, (name, a, b))
        self.assertGreater(turned["worst_experts"][0]["db"], plain["worst_experts"][0]["db"] - 3)
        back = run(*SMALL, *NONE, "--against", folders[1], "--json")
        self.assertIn("the reference is rotated and the model is not", back.stderr)
        self.assertNotIn("layers", json.loads(back.stdout))

    def test_per_tensor(self):
        """Every matrix once, and what rounding costs some of them, computed here from the file's bytes."""
        got = self.figures(*SMALL, "--against", MODEL, "--per-tensor")["tensors"]
        db = {x["name"]: x["db"] for x in got}
        self.assertEqual(len(db), len(got))
        with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(n))
            shared = {k for k in header if k.startswith("model.layers.6.") and (".embed_tokens." in k or ".shared_head.head." in k)}
            matrices = {k for k, t in header.items() if len(t.get("shape", [])) == 2} - shared
            self.assertEqual(set(db), matrices)
            self.assertEqual({x["name"]: [x["rows"], x["columns"]] for x in got}, {k: header[k]["shape"] for k in matrices})

            def rounded_db(name, top):
                begin, end = header[name]["data_offsets"]
                f.seek(8 + n + begin)
                values = [struct.unpack("<f", b"\0\0" + f.read(2))[0] for _ in range((end - begin) // 2)]
                columns, signal, noise = header[name]["shape"][1], 0.0, 0.0
                for i in range(0, len(values), columns):
                    row = values[i:i + columns]
                    scale = max(map(abs, row)) / top
                    signal += sum(v * v for v in row)
                    noise += sum((v - scale * round(v / scale)) ** 2 for v in row)
                return 10 * math.log10(signal / noise)

            for name, top in (("model.layers.1.mlp.experts.8.up_proj.weight", 7), ("model.layers.5.mlp.experts.3.down_proj.weight", 7),
                              ("model.layers.2.self_attn.o_proj.weight", 127), ("model.layers.0.mlp.down_proj.weight", 127)):
                self.assertAlmostEqual(db[name], rounded_db(name, top), delta=0.01, msg=name)
        for name, value in db.items():
            carried = ".kv_b_proj." in name or name.endswith(".mlp.gate.weight") or ".embed_tokens." in name
            self.assertEqual(value is None, carried, name)
        order = [math.inf if x["db"] is None else x["db"] for x in got]
        self.assertEqual(order, sorted(order))
        same = self.figures(*SMALL, *NONE, "--against", MODEL, "--per-tensor")["tensors"]
        self.assertEqual({x["db"] for x in same}, {None})
        self.assertIn("with those of a model's folder only", self.refused(*SMALL, "--against", self.saved, "--per-tensor"))

    def test_per_tensor_outputs(self):
        """What linears give for rows that they read: layer 0's, which read the normed embeddings of the first window's tokens."""
        got = {x["name"]: x for x in self.figures(*SMALL, "--against", MODEL, "--per-tensor")["tensors"]}
        model = DeepSeekV3(MODEL)
        ids = [0] + list(Tokenizer(MODEL).encode_plain(pathlib.Path(TEXTS["valid.txt"]).read_text()))[:31]
        x = model.norm(model.w["model.embed_tokens.weight"][ids], "model.layers.0.input_layernorm")
        for name in ("model.layers.0.self_attn.q_a_proj", "model.layers.0.self_attn.kv_a_proj_with_mqa"):
            w = model.w[name + ".weight"]
            scale = np.abs(w).max(1, keepdims=True) / 127
            want = x @ w.T
            noise = want - x @ (scale * np.rint(w / scale)).T
            self.assertAlmostEqual(got[name + ".weight"]["output_db"], 10 * math.log10((want ** 2).sum() / (noise ** 2).sum()), delta=0.05, msg=name)
        for name, t in got.items():
            linear = name.startswith(("lm_head", "model.layers")) and ".layers.6." not in name and not any(
                x in name for x in (".experts.", ".kv_b_proj."))
            self.assertEqual("output_db" in t, linear, name)

    def test_reference_file(self):
        """A file gives what the model gives that wrote it."""
        self.assertEqual(self.first.returncode, 0, self.first.stderr)
        folder, file = self.figures(*SMALL, "--against", MODEL), self.figures(*SMALL, "--against", self.saved)
        self.assertEqual((folder["quantization"], folder["expert_quantization"]), ("w8a8_int8", "int4"))
        self.assertGreater(folder["kl"], 0.003)
        for name in ("reference_perplexity", "ratio", "ratio_error", "kl", "kl_error", "kl_99", "logprob_change", "top1_agreement"):
            self.assertAlmostEqual(file[name] / folder[name], 1, delta=1e-3, msg=name)
        self.assertNotIn("layers", file)
        self.assertLess(folder["layers"][5]["hidden_db"], 40)
        itself = self.figures(*SMALL, *NONE, "--against", self.saved)
        self.assertLess(abs(itself["kl"]), 1e-7)
        self.assertAlmostEqual(itself["ratio"], 1, delta=1e-6)

    def test_damaged_reference_files(self):
        whole = pathlib.Path(self.saved).read_bytes()
        fields = list(HEADER.unpack(whole[:HEADER.size]))
        self.assertEqual(fields[:2] + fields[2:6], [b"TDLOGPRB", 1, 4096, 64, 32, 200])
        self.assertEqual(len(whole), HEADER.size + fields[7] * (8 + 2 * 4096))
        for n in [0, 1, 8, 12, 16, 20, 24, 32, 40, 48, HEADER.size, HEADER.size + 4, len(whole) - 1]:
            self.assertIn("cut.lp", self.refused(*SMALL, "--against", self.write("cut.lp", whole[:n])))
        self.assertIn("damaged", self.refused(*SMALL, "--against", self.write("long.lp", whole + b"\0")))

        def changed(field, value):
            other = list(fields)
            other[field] = value
            return self.refused(*SMALL, "--against", self.write("changed.lp", HEADER.pack(*other) + whole[HEADER.size:]))

        self.assertIn("is not a file of log-probabilities", changed(0, b"GGUF\0\0\0\0"))
        self.assertIn("has version 7", changed(1, 7))
        self.assertIn("damaged", changed(2, 0))
        self.assertIn("damaged", changed(2, 0xffffffff))
        self.assertIn("damaged", changed(2, 4095))
        self.assertIn("window 63", changed(3, 63))
        self.assertIn("stride 31", changed(4, 31))
        self.assertIn("limit 0", changed(5, 0))
        self.assertIn("another text", changed(6, 1))
        for field in (7, 8):
            for value in (0, fields[field] + 1, 2**64 - 1):
                self.assertIn("damaged", changed(field, value))
        for at, value in [(0, b"\0\0\xc0\x7f"), (0, b"\0\0\x80\x3f"), (4, b"\0\0\x80\x7f"), (4, b"\0\0\x80\xbf"), (4, b"\0\0\xc0\xff")]:
            bad = bytearray(whole)
            bad[HEADER.size + at:HEADER.size + at + 4] = value
            self.assertIn("a row is not one of log-probabilities", self.refused(*SMALL, "--against", self.write("row.lp", bytes(bad))))
        vocab = list(fields)
        vocab[2] = 2048
        rows = b"".join(whole[HEADER.size + i * (8 + 8192):][:8 + 4096] for i in range(fields[7]))
        self.assertIn("a vocabulary of 2048, the model one of 4096", self.refused(*SMALL, "--against", self.write("vocab.lp", HEADER.pack(*vocab) + rows)))

    def test_other_text_or_protocol(self):
        for args, said in [(("--text", TEXTS["valid.txt"], "--window", "64", "--limit", "201"), "limit 200: use the same"),
                           (("--text", TEXTS["valid.txt"], "--window", "64", "--stride", "64", "--limit", "200"), "stride 32"),
                           (("--text", TEXTS["documents.jsonl"], "--window", "64", "--limit", "200"), "another text")]:
            self.assertIn(said, self.refused(*args, "--against", self.saved))

    def test_bad_texts(self):
        for name, data, said in [("empty.txt", b"", "has 0 tokens"), ("empty.jsonl", b"\n\n", "has 0 tokens in 0 documents"),
                                 ("broken.jsonl", b'{"text": "a"}\n{"text": \n', "broken.jsonl, line 2: "),
                                 ("zeros.jsonl", b'{"text": "a"}\n\t \r\n\0\0\n', "zeros.jsonl, line 3: "),
                                 ("list.jsonl", b'["a"]\n', 'line 1: it is not an object with a string "text"'),
                                 ("number.jsonl", b'{"text": 5}\n', 'line 1: it is not an object with a string "text"')]:
            with self.subTest(name=name):
                self.assertIn(said, self.refused("--text", self.write(name, data)))
        self.assertIn("cannot open /nonexistent.txt", self.refused("--text", "/nonexistent.txt"))
        one = self.figures("--text", self.write("one.txt", b"a"), "--window", "8")
        self.assertEqual((one["tokens"], one["perplexity_error"]), (1, None))
        junk = self.figures("--text", self.write("junk.txt", bytes(range(256)) * 4))
        self.assertGreater(junk["tokens"], 100)

    def test_refusals(self):
        for args, said in [(("--window", "1"), "window 1: at least 2"), (("--window", "16", "--stride", "17"), "stride 17 is outside [1, 16]"),
                           (("--window", "4096", "--stride", "64", "--context-length", "256"), "the model's context has 256"),
                           (("--save", "/nonexistent/x.lp"), "cannot write /nonexistent/x.lp"),
                           (("--drafts", "--json-model-override-args", '{"num_nextn_predict_layers": 0}'), "has no multi-token-prediction layer"),
                           (("--against", "/nonexistent.lp"), "cannot open /nonexistent.lp"), (("--against", self.folder.name), "the reference: ")]:
            with self.subTest(args=args):
                self.assertIn(said, self.refused("--text", TEXTS["valid.txt"], *args))
        for args, said in [(("--text",), "--text needs a value"), ((), "--model-path and --text are needed"), (("--text", "x", "y"), "'y' is not a flag"),
                           (("--text", "x", "--limit", "0"), "--limit must be between 1 and"), (("--text", "x", "--cpuinfer", "x"), "--cpuinfer needs a whole number"),
                           (("--text", "x", "--against-quantization"), "needs a value"), (("--what",), "there is no flag '--what'"),
                           (("--text", "x", "--quantization", "int3"), "--quantization int3 is not supported yet"), (("--max-running-requests", "2"), "there is no flag"),
                           (("--text", "x", "--against-device", "tpu"), "--against-device tpu is not supported yet")]:
            with self.subTest(args=args):
                self.assertIn(said, self.refused(*args, status=2))
        self.assertEqual(os.listdir(self.folder.name).count("small.lp.partial"), 0)
        for args in ("--against-quantization", "none"), ("--worst", "3"), ("--against", self.saved, "--against-quantization", "none"), ("--against", self.saved, "--worst", "3"):
            with self.subTest(args=args):
                self.assertIn("need a model's folder as --against", self.refused("--text", "x", *args, status=2))
        pipe = os.path.join(self.folder.name, "pipe")
        os.mkfifo(pipe)
        self.assertIn("it is not a regular file, and would be replaced", self.refused(*SMALL, "--save", pipe))
        self.assertTrue(os.path.exists(pipe) and not os.path.isfile(pipe))
        text = os.path.join(self.folder.name, "text.txt")
        shutil.copy(TEXTS["valid.txt"], text)
        for path, args in (text, ("--text", text)), (self.saved, (*SMALL, "--against", self.saved)):
            before = os.path.getsize(path)
            self.assertIn(f"{path} would be overwritten", self.refused(*args, "--save", path))
            self.assertEqual(os.path.getsize(path), before)

    def test_a_full_disk_is_told(self):
        for args in (), ("--json",):
            with self.subTest(args=args), open("/dev/full", "w") as full:
                p = run(*SMALL, *args, stdout=full)
                self.assertEqual((p.returncode, p.stderr.splitlines()[-1]), (1, "tandem perplexity: cannot write standard output"))
