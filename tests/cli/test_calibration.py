"""`tandem quantize --calibration` on the demo model. Its report is compared with the float32 program that came with the model; its gain in perplexity
is checked. A run that was killed and continued gives the bytes of one that was not. Wrong options are refused."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
from bpe import Tokenizer
from program import MODEL, TANDEM, FolderTest, tandem
from reference import DeepSeekV3, sigmoid
from server_process import wait_until

VALID = pathlib.Path(os.path.join(MODEL, "valid.txt")).read_text()
SCORED_TOKENS = 8192                # of valid.txt, from its beginning: less than 40 kB
CALIBRATION_TEXT = VALID[60000:]    # so nothing of it is scored
FEW = ("--calibration-tokens", "1024", "--calibration-window", "128")


def nearest_int4(w):
    scale = np.abs(w).max(1, keepdims=True) / np.float32(7)
    return np.rint(w / np.where(scale > 0, scale, 1)) * scale


class Calibration(FolderTest):
    def setUp(self):
        super().setUp()
        self.text = self.write("text.txt", CALIBRATION_TEXT)

    def command(self, output, *args, model=MODEL):
        return [TANDEM, "quantize", "--model-path", model, "--output", self.path(output), *args]

    def quantize(self, output, *args, **kwargs):
        return subprocess.run(self.command(output, *args, **kwargs), capture_output=True, text=True, timeout=250)

    def calibrate(self, output, *args, **kwargs):
        p = self.quantize(output, "--calibration", self.text, *args, **kwargs)
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(pathlib.Path(self.path(os.path.join(output, "calibration.json"))).read_text())

    def refused(self, output, sentence, *args, **kwargs):
        p = self.quantize(output, *args, **kwargs)
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertRegex(p.stderr.strip().splitlines()[-1], "^tandem quantize: .*" + sentence)

    def files(self, output):
        got = {}
        for name in os.listdir(self.path(output)):
            got[name] = pathlib.Path(os.path.join(self.path(output), name)).read_bytes()
        return got

    def assert_same_files(self, a, b):
        self.assertEqual(sorted(a), sorted(b))
        self.assertEqual([n for n in a if a[n] != b[n]], [])

    def test_report_against_the_reference_program(self):
        """Errors of rounding to nearest in the first layer with experts, whose inputs carry no rounding yet."""
        window = 128
        report = self.calibrate("out", "--quantization", "none", "--method", "nearest", "--calibration-tokens", "512", "--calibration-window", str(window))
        m, tok = DeepSeekV3(MODEL), Tokenizer(MODEL)
        c, ids = m.c, tok.encode_plain(CALIBRATION_TEXT)
        step = window - 1  # BOS stands before each window
        whole = len(ids) // step
        self.assertEqual((report["windows"], report["window"], report["method"]), (4, window, "nearest"))
        x, routed_ids, weights = [], [], []
        for i in range(4):
            at = i * whole // 4 * step
            h = m.layer(m.w["model.embed_tokens.weight"][[0] + ids[at:at + step]], 0)
            h = h + m.attention(m.norm(h, "model.layers.1.input_layernorm"), "model.layers.1.self_attn")
            h = m.norm(h, "model.layers.1.post_attention_layernorm")
            m.routed = []
            m.moe(h, "model.layers.1.mlp")
            x.append(h)
            routed_ids.append(m.routed[0][0][:, :c["num_experts_per_tok"]])
            weights.append(m.routed[0][2])
        x, routed_ids, weights = np.concatenate(x), np.concatenate(routed_ids), np.concatenate(weights)
        needed = max(c["hidden_size"], c["moe_intermediate_size"])
        errors, tokens, borrowing = {"gate_up": [], "down": []}, [], 0
        for e in range(c["n_routed_experts"]):
            name = "model.layers.1.mlp.experts.%d." % e
            gate, up, down = (m.w[name + n + "_proj.weight"] for n in ("gate", "up", "down"))
            t, k = np.nonzero(routed_ids == e)
            w, own = weights[t, k], len(t)
            borrowed = min(max(needed - own, 0), len(x))
            other = (2 * np.arange(borrowed) + 1) * len(x) // (2 * borrowed) if borrowed else np.zeros(0, int)
            rows = x[np.concatenate((t, other))]
            w = np.concatenate((w, np.full(borrowed, 0.5 * np.sqrt((w * w).mean()))))[:, None].astype(np.float32)
            qg, qu, qd = nearest_int4(gate), nearest_int4(up), nearest_int4(down)
            g = rows @ qg.T
            h = g * sigmoid(g) * (rows @ qu.T)
            both, q_both = np.concatenate((gate, up)), np.concatenate((qg, qu))
            for kind, inputs, a, b in (("gate_up", rows * w, both, q_both), ("down", h * w, down, qd)):
                errors[kind].append(float((((a - b) @ inputs.T) ** 2).sum() / ((a @ inputs.T) ** 2).sum()))
            tokens.append(own)
            borrowing += borrowed > 0
        experts = report["layers"][1]["experts"]
        self.assertEqual((experts["tokens_min"], experts["tokens_median"], experts["borrowing"]), (min(tokens), sorted(tokens)[len(tokens) // 2], borrowing))
        self.assertTrue(0 < borrowing, "some expert should borrow")
        for kind in errors:
            self.assertAlmostEqual(experts[kind]["nearest"] / np.mean(errors[kind]), 1, delta=1e-3)
            self.assertEqual(experts[kind]["nearest"], experts[kind]["error"])
            self.assertEqual(experts[kind]["worst_expert"], int(np.argmax(errors[kind])))
        self.assertNotIn("experts", report["layers"][0])

    def ratio(self, folder):
        p = tandem("perplexity", "--model-path", folder, "--text", os.path.join(MODEL, "valid.txt"), "--window", "256", "--stride", "256",
                   "--limit", str(SCORED_TOKENS), "--against", MODEL, "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        result = json.loads(p.stdout)
        return result["ratio"] - 1, result["kl"]

    def test_gptq_loses_less(self):
        self.assertEqual(self.quantize("nearest").returncode, 0)
        report = self.calibrate("gptq", "--calibration-tokens", "16384")  # without --method: gptq
        self.assertEqual((report["method"], report["expert_quantization"]), ("gptq", "int4"))
        for layer in report["layers"][1:]:  # the last is the MTP layer
            self.assertLess(layer["linears"]["error"], 0.7 * layer["linears"]["nearest"])
            for kind in ("gate_up", "down"):
                self.assertLess(layer["experts"][kind]["error"], 0.7 * layer["experts"][kind]["nearest"])
        loss, kl = self.ratio(self.path("gptq"))
        plain_loss, plain_kl = self.ratio(self.path("nearest"))
        print("perplexity: gptq %+.2f %%, nearest %+.2f %%; KL %.4f, %.4f" % (100 * loss, 100 * plain_loss, kl, plain_kl))
        self.assertLess(loss, 0.65 * plain_loss)  # half is what is seen with more tokens, here the standard error is 0.2 %
        self.assertLess(kl, 0.7 * plain_kl)

    def test_nearest_with_a_text_gives_the_plain_folder(self):
        self.assertEqual(self.quantize("plain").returncode, 0)
        self.calibrate("text", "--method", "nearest", *FEW)
        plain, text = self.files("plain"), self.files("text")
        self.assertIn("calibration.json", text)
        for folder in plain, text:
            for name in "calibration.json", "tandem_quantize.json":
                folder.pop(name, None)
        self.assert_same_files(plain, text)

    def test_killed_anywhere_it_ends_with_the_same_bytes(self):
        self.calibrate("whole", *FEW, "--threads", "1")
        whole = self.files("whole")
        self.assertFalse([n for n in whole if n.startswith("calibration-")])
        state = self.path("killed/calibration-state.json")
        for layers in (0, 1, 3, 7):
            p = subprocess.Popen(self.command("killed", "--calibration", self.text, *FEW, "--subpool-count", "1"), stderr=subprocess.DEVNULL)
            end = time.monotonic() + 120
            while p.poll() is None and time.monotonic() < end:  # until so many layers are done, then in the midst of the next
                try:
                    with open(state) as f:
                        if len(json.load(f)["layers"]) >= layers:
                            break
                except OSError:
                    if layers == 0 and os.path.exists(self.path("killed/tandem_quantize.json")):
                        break
                time.sleep(0.002)
            time.sleep(0.02)
            p.send_signal(signal.SIGKILL)
            p.wait()
        self.calibrate("killed", *FEW)
        self.assert_same_files(self.files("killed"), whole)
        before = {n: os.stat(self.path("killed/" + n)).st_mtime_ns for n in whole if n.startswith(("experts", "model-"))}
        self.calibrate("killed", *FEW)  # what is complete stays as it is
        self.assertEqual({n: os.stat(self.path("killed/" + n)).st_mtime_ns for n in before}, before)
        os.truncate(self.path("killed/experts-00002.tdx"), 5000)  # and what is damaged is made again
        self.calibrate("killed", *FEW)
        self.assert_same_files(self.files("killed"), whole)

    def test_without_its_stream_it_begins_anew(self):
        self.calibrate("whole", *FEW, "--threads", "1")
        whole = self.files("whole")
        state = self.path("stopped/calibration-state.json")
        for _ in range(20):  # until one is stopped before it has ended
            p = subprocess.Popen(self.command("stopped", "--calibration", self.text, *FEW, "--subpool-count", "1"), stderr=subprocess.DEVNULL)
            wait_until(lambda: p.poll() is not None or os.path.exists(state), 60, step=0.002, says="it does not begin")
            p.send_signal(signal.SIGKILL)
            if p.wait() == -signal.SIGKILL and os.path.exists(state):
                break
            shutil.rmtree(self.path("stopped"))
        stream = "calibration-%05d.safetensors" % len(json.loads(pathlib.Path(state).read_text())["layers"])
        for name, damage in ("removed", os.remove), ("damaged", lambda path: os.truncate(path, 5000)):
            shutil.copytree(self.path("stopped"), self.path(name))
            damage(self.path(os.path.join(name, stream)))
            p = self.quantize(name, "--calibration", self.text, *FEW)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertIn("files of the calibration are missing or damaged: it begins anew", p.stderr)
            self.assert_same_files(self.files(name), whole)

    def test_another_calibration_is_another_output(self):
        self.calibrate("out", *FEW)
        self.refused("out", "other options; choose another folder or use --force", "--calibration", self.text, *FEW, "--method", "clip")
        self.refused("out", "other options; choose another folder or use --force", "--calibration", self.write("other.txt", VALID[70000:]), *FEW)
        self.refused("out", "other options; choose another folder or use --force")
        self.assertEqual(self.calibrate("out", *FEW, "--method", "clip", "--force")["method"], "clip")
        model = self.path("model")
        shutil.copytree(MODEL, model)
        config = json.loads(pathlib.Path(os.path.join(model, "config.json")).read_text())
        for change, refused in ({}, False), ({"rms_norm_eps": 1e-3}, True):  # written in another way, and with another value
            os.remove(os.path.join(model, "config.json"))
            pathlib.Path(os.path.join(model, "config.json")).write_text(json.dumps({**config, **change}))
            p = self.quantize("out", "--calibration", self.text, *FEW, "--method", "clip", model=model)
            self.assertEqual((p.returncode, "other options; choose another folder or use --force" in p.stderr), (int(refused), refused), p.stderr)

    def test_json_lines_and_chats(self):
        pieces = [CALIBRATION_TEXT[i:i + 4000] for i in range(0, 40000, 4000)]
        lines = self.write("text.jsonl", "".join(json.dumps({"text": p, "id": 1}) + "\n" for p in pieces))
        self.assertEqual(self.quantize("text", "--calibration", lines, *FEW).returncode, 0)
        chats = self.write("chat.jsonl", "".join(json.dumps({"messages": [{"role": "user", "content": "Tell me a story."},
                                                                           {"role": "assistant", "content": p}]}) + "\n\n" for p in pieces))
        self.assertEqual(self.quantize("chat", "--calibration", chats, *FEW).returncode, 0)
        hashes = []
        for name in "text", "chat":
            hashes.append(json.loads(pathlib.Path(self.path(name + "/calibration.json")).read_text())["text_hash"])
        self.assertNotEqual(*hashes)

    def test_bad_texts(self):
        for content, name, sentence in (
                ("", "a.txt", r"a\.txt is empty"),
                ("Once upon a time.", "a.txt", r"a\.txt has \d+ tokens: too short for a window of 512"),
                (b"Once\nupon \xff\xfe a time", "a.txt", r"a\.txt, line 2: it is not UTF-8"),
                ('{"text": "a"}\nnot json\n', "a.jsonl", r"a\.jsonl, line 2: "),
                (b'{"text": "a"}\n \t\r\n\0\0\n', "a.jsonl", r"a\.jsonl, line 3: "),
                ('{"text": 3}\n', "a.jsonl", r"a\.jsonl, line 1: it is not an object with a string \"text\" or an array \"messages\""),
                ('{"messages": [{"role": "user"}]}\n' * 2, "a.jsonl", r"a\.jsonl, line 1: \"messages\" must be a list of objects with \"role\" and \"content\""),
                ('{"messages": [{"from": "human", "value": "%s"}]}\n' % ("Once upon a time. " * 500), "a.jsonl", r"a\.jsonl, line 1: \"messages\" must be")):
            self.refused("out", sentence, "--calibration", self.write(name, content))
        self.refused("out", "absent.txt", "--calibration", self.path("absent.txt"))
        self.refused("out", "less than one window of 512", "--calibration", self.text, "--calibration-tokens", "100")
        self.refused("out", "windows of 2049 tokens are longer than the model's context of 2048", "--calibration", self.text, "--calibration-window", "2049",
                     "--calibration-tokens", "4098")
        self.refused("out", "windows of 2 tokens are too short", "--calibration", self.text, "--calibration-window", "2")
        self.assertFalse(os.path.exists(self.path("out")))

    def test_bad_options(self):
        self.refused("out", "the method gptq needs a text: give --calibration", "--method", "gptq")
        for option in "--calibration-tokens", "--calibration-window":
            self.refused("out", "calibration-tokens and calibration-window say how a text is cut: give --calibration", option, "1024")
        self.refused("out", "dummy weights cannot be calibrated", "--load-format", "dummy", "--calibration", self.text)
        self.refused("out", "experts in mxfp4 are rounded to nearest alone", "--expert-quantization", "mxfp4", "--method", "clip")
        os.mkdir(self.path("theirs"))
        self.write("theirs/precious", "x")
        self.refused("theirs", "is not empty and was not written by 'tandem quantize'", "--calibration", self.text, *FEW)
        self.assertEqual(os.listdir(self.path("theirs")), ["precious"])
        for flags, sentence in [(("--calibration-tokens", "many"), "--calibration-tokens needs a whole number, not 'many'"),
                                (("--calibration-tokens", "0"), "--calibration-tokens must be between 1 and 268435456, not 0"),
                                (("--method", "awq"), "--method must be one of nearest, clip, gptq, not 'awq'")]:
            p = self.quantize("out", *flags)
            self.assertEqual((p.returncode, p.stderr), (2, f"tandem quantize: {sentence}\n"))
        self.assertFalse(os.path.exists(self.path("out")))

    def test_clip_without_a_text(self):
        self.assertEqual(self.quantize("plain").returncode, 0)
        self.assertEqual(self.quantize("clip", "--method", "clip").returncode, 0)
        plain, clip = self.files("plain"), self.files("clip")
        self.assertEqual(sorted(plain), sorted(clip))
        self.assertTrue(all((plain[n] == clip[n]) != n.startswith(("experts", "tandem_quantize")) for n in plain))

    def test_rotation_where_nobody_chooses(self):
        """With gptq, and of floats with experts in int8 unless they are for other engines."""
        others = ("--output-format", "compressed-tensors")
        for i, (args, rotation) in enumerate(((("--expert-quantization", "int8"), "hadamard"), (("--expert-quantization", "int8", *others), "none"),
                                              (("--expert-quantization", "int8", "--method", "clip", "--quantization", "none"), "hadamard"), ((), "none"),
                                              (("--calibration", self.text, *FEW), "hadamard"))):
            with self.subTest(args=args):
                auto, chosen = "auto%d" % i, "chosen%d" % i
                self.assertEqual(self.quantize(auto, *args).returncode, 0)
                self.assertEqual(self.quantize(chosen, *args, "--rotation", rotation).returncode, 0)
                self.assert_same_files(self.files(auto), self.files(chosen))

    def damaged_model(self, tensor, value):
        os.mkdir(self.path("model"))
        for name in os.listdir(MODEL):
            if name.endswith((".json", ".safetensors")):
                shutil.copy(os.path.join(MODEL, name), self.path("model"))
        with open(self.path("model/model.safetensors"), "r+b") as f:
            n = int.from_bytes(f.read(8), "little")
            at = json.loads(f.read(n))[tensor]["data_offsets"][0]
            f.seek(8 + n + at + 20)
            f.write(value)
        return self.path("model")

    def test_weights_that_are_no_numbers(self):
        model = self.damaged_model("model.layers.2.mlp.experts.5.up_proj.weight", b"\xc0\x7f")
        self.refused("out", "experts of layer 2: the weights of expert 5 ", "--calibration", self.text, *FEW, model=model)
        self.assertFalse(os.path.exists(self.path("out/config.json")))

    def test_full_disk(self):
        """A limit on the size of files stands for it: the largest ones cannot be written, and the run is continued when they can."""
        args = ("--calibration", self.text, *FEW)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores
            resource.setrlimit(resource.RLIMIT_FSIZE, (500000, 500000))

        p = subprocess.run(self.command("out", *args), capture_output=True, text=True, timeout=120, preexec_fn=limit)
        self.assertEqual(p.returncode, 1, p.stderr)
        self.assertRegex(p.stderr, r"tandem quantize: .*\.safetensors\.part: cannot write: File too large")
        self.assertFalse([n for n in os.listdir(self.path("out")) if n.endswith(".part")])
        self.assertFalse(os.path.exists(self.path("out/config.json")))
        self.assertEqual(self.quantize("out", *args).returncode, 0)
        self.assertEqual(self.quantize("whole", *args).returncode, 0)
        self.assert_same_files(self.files("out"), self.files("whole"))

    def test_help_names_every_option(self):
        p = tandem("quantize", "--help")
        for option in "--calibration FILE", "--method NAME", "--calibration-tokens N", "--calibration-window N":
            self.assertIn(option, p.stdout)
