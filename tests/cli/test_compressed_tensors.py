"""`tandem quantize --output-format compressed-tensors`: its tensors, which are decoded here, their description in config.json, the folder read back,
runs that are continued, and refusals."""
import array
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
import tempfile
import unittest

from program import MODEL, tandem

EXPERTS = [f"model.layers.{layer}.mlp.experts.{e}.{m}_proj" for layer in range(1, 7) for e in range(16) for m in ("gate", "up", "down")]
SHAPES = {"gate": (128, 256), "up": (128, 256), "down": (256, 128)}
SMALL = ("--text", os.path.join(MODEL, "valid.txt"), "--window", "64", "--limit", "200", "--json")


def sha(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


class Folder:
    """Tensors of a folder with an index, checked against the safetensors format as they are read."""

    def __init__(self, path):
        index = json.loads(pathlib.Path(os.path.join(path, "model.safetensors.index.json")).read_text())
        self.files, self.where, total = {}, index["weight_map"], 0
        for name in sorted(set(self.where.values())):
            data = pathlib.Path(os.path.join(path, name)).read_bytes()
            n = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + n])
            assert header.pop("__metadata__")["format"] == "pt", name  # transformers refuses the file otherwise
            at = 0
            for t in sorted(header.values(), key=lambda t: t["data_offsets"]):  # no gaps, no overlap
                assert t["data_offsets"][0] == at, name
                at = t["data_offsets"][1]
            assert 8 + n + at == len(data), name
            assert {k for k, v in self.where.items() if v == name} == set(header), name
            self.files[name] = (header, data[8 + n:])
            total += at
        assert index["metadata"]["total_size"] == total
        self.quantization = json.loads(pathlib.Path(os.path.join(path, "config.json")).read_text())["quantization_config"]

    def get(self, name):
        """dtype, shape, values."""
        header, data = self.files[self.where[name]]
        t = header[name]
        raw = data[slice(*t["data_offsets"])]
        if t["dtype"] == "BF16":
            values = [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)]
        else:
            values = array.array({"F32": "f", "I32": "I", "I64": "q", "I8": "b"}[t["dtype"]], raw)
        return t["dtype"], t["shape"], values

    def unpacked(self, name):
        """Codes of a packed matrix."""
        dtype, shape, words = self.get(name + ".weight_packed")
        n, k = self.get(name + ".weight_shape")[2]
        assert (dtype, shape) == ("I32", [n, (k + 7) // 8])
        return [[(words[r * shape[1] + c // 8] >> 4 * (c % 8) & 15) - 8 for c in range(k)] for r in range(n)]


class CompressedTensors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.at = folder.name
        cls.main = cls.quantize("main")
        with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            cls.header = json.loads(f.read(n))
            cls.payload = f.read()

    @classmethod
    def quantize(cls, name, *args, output_format="compressed-tensors"):
        path = os.path.join(cls.at, name)
        p = tandem("quantize", "--model-path", MODEL, "--output", path, "--output-format", output_format, *args)
        assert p.returncode == 0, p.stderr
        return path

    def original(self, name):
        """Rows of a bf16 matrix of the model."""
        begin, end = self.header[name + ".weight"]["data_offsets"]
        columns = self.header[name + ".weight"]["shape"][1]
        values = [struct.unpack("<f", b"\0\0" + self.payload[i:i + 2])[0] for i in range(begin, end, 2)]
        return [values[i:i + columns] for i in range(0, len(values), columns)]

    def check_rounding(self, name, codes, scales, top, group):
        """Every code is a nearest one, every scale the largest of its row over top; of a group (in bf16: rounded) of the end with code -8 over 8, or of the other
        over 7, and below zero where the positive end is the larger."""
        for r, row in enumerate(self.original(name)):
            for g in range(0, len(row), group):
                scale, part = scales[r * (len(row) // group) + g // group], row[g:g + group]
                rounded = group < len(row)
                want = max(map(abs, part)) / top
                if rounded:
                    most, least = max(0, *part), max(0, *(-x for x in part))
                    want = -max(most / 8, least / 7) if most > least else max(least / 8, most / 7)
                self.assertAlmostEqual(scale / want, 1, delta=2**-8 if rounded else 1e-6)
                for code, w in zip(codes[r][g:g + group], part):
                    beyond = abs(w) * 2**-8 if rounded else 0  # where a scale was rounded to less than reaches the end
                    self.assertLessEqual(abs(w - code * scale), abs(scale) * (0.5 + 1e-5) + beyond)

    def test_packed_experts_and_int8_linears(self):
        f = Folder(self.main)
        for name in EXPERTS[::29]:
            self.assertEqual(self.get_shape(f, name), ("F32", [SHAPES[name.split(".")[-1][:-5]][0], 1]))
            self.check_rounding(name, f.unpacked(name), f.get(name + ".weight_scale")[2], 7, len(self.original(name)[0]))
        for name in ("model.layers.2.self_attn.o_proj", "model.layers.0.mlp.down_proj", "model.layers.3.mlp.shared_experts.up_proj"):
            dtype, (n, k), codes = f.get(name + ".weight")
            self.assertEqual((dtype, self.get_shape(f, name)), ("I8", ("F32", [n, 1])))
            self.check_rounding(name, [codes[i:i + k] for i in range(0, n * k, k)], f.get(name + ".weight_scale")[2], 127, k)
        for name in ("lm_head", "model.layers.6.eh_proj", "model.layers.1.self_attn.kv_b_proj", "model.embed_tokens"):
            self.assertEqual(f.get(name + ".weight")[0], "BF16", name)
            self.assertEqual(f.get(name + ".weight")[2], [v for row in self.original(name) for v in row])
        self.assertFalse([x for x in os.listdir(self.main) if x.endswith(".tdx")])

    def get_shape(self, f, name):
        return f.get(name + ".weight_scale")[:2]

    @staticmethod
    def group_of(q, module):
        """As engines look a linear up: ignored, else the target that is its name, else the one of its class; what has neither SGLang refuses."""
        if any(re.match(t[3:], module) if t.startswith("re:") else t == module for t in q["ignore"]):
            return None
        by_name = [g for g in q["config_groups"].values() for t in g["targets"] if t.startswith("re:") and re.match(t[3:], module)]
        found = by_name or [g for g in q["config_groups"].values() if "Linear" in g["targets"]]
        assert len(found) == 1, module
        return found[0]

    def test_description(self):
        """Each linear with scales belongs to one group, which says how it is stored, each other one is ignored, and so for the names under which engines fuse them."""
        for args, formats in (((), {"int-quantized", "pack-quantized"}), (("--quantization", "none"), {"pack-quantized"}),
                              (("--expert-quantization", "int8"), {"int-quantized"}), (("--expert-quantization", "int4-g32"), {"int-quantized", "pack-quantized"}),
                              (("--quantization", "none", "--expert-quantization", "int8"), {"int-quantized"})):
            with self.subTest(args=args):
                f = Folder(self.quantize("-".join(("described", *args)), *args) if args else self.main)
                q = f.quantization
                self.assertEqual((q["quant_method"], q["quantization_status"]), ("compressed-tensors", "compressed"))
                self.assertEqual(q["format"], max(formats))  # SGLang takes experts of 4 bits from pack-quantized folders alone
                self.assertEqual({g["format"] for g in q["config_groups"].values()}, formats)
                for module in {x.rsplit(".", 1)[0] for x in f.where if "norm" not in x and "embed_tokens" not in x}:
                    group = self.group_of(q, module)
                    tensors = {x.rsplit(".", 1)[1] for x in f.where if x.rsplit(".", 1)[0] == module}
                    for part, fused in (("q_a_proj", "fused_qkv_a_proj"), ("kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa"), ("gate_proj", "gate_up_proj"),
                                        ("up_proj", "gate_up_proj")):
                        if module.endswith("." + part) and ".experts." not in module:
                            self.assertEqual(self.group_of(q, module[:-len(part)] + fused), group)
                    if tensors == {"weight_packed", "weight_scale", "weight_shape"}:
                        self.assertEqual((group["format"], group["weights"]["num_bits"], group["input_activations"]), ("pack-quantized", 4, None), module)
                        groups_of_row = f.get(module + ".weight_scale")[1][1]
                        size = group["weights"]["group_size"]
                        self.assertEqual(groups_of_row, f.get(module + ".weight_shape")[2][1] // size if size else 1)
                        self.assertEqual(group["weights"]["strategy"], "group" if size else "channel")
                    elif "weight_scale" in tensors:
                        self.assertEqual((group["format"], group["weights"]["num_bits"], group["weights"]["strategy"]), ("int-quantized", 8, "channel"), module)
                        self.assertEqual((group["input_activations"]["strategy"], group["input_activations"]["dynamic"]), ("token", True))
                    else:
                        self.assertIsNone(group, module)

    def test_groups_and_int8(self):
        f = Folder(self.quantize("g32", "--expert-quantization", "int4-g32"))
        name = EXPERTS[100]
        dtype, shape, scales = f.get(name + ".weight_scale")
        self.assertEqual((dtype, shape[1] * 32), ("BF16", f.get(name + ".weight_shape")[2][1]))
        self.check_rounding(name, f.unpacked(name), scales, 7, 32)
        f = Folder(self.quantize("int8", "--expert-quantization", "int8"))
        dtype, (n, k), codes = f.get(name + ".weight")
        self.assertEqual((dtype, self.get_shape(f, name)), ("I8", ("F32", [n, 1])))
        self.check_rounding(name, [codes[i:i + k] for i in range(0, n * k, k)], f.get(name + ".weight_scale")[2], 127, k)

    def test_group_of_zeros(self):
        """It has no scale of its own; what is written is one that readers take."""
        model, name = os.path.join(self.at, "zeros"), "model.layers.1.mlp.experts.2.down_proj"
        shutil.copytree(MODEL, model)
        begin, _ = self.header[name + ".weight"]["data_offsets"]
        with open(os.path.join(model, "model.safetensors"), "r+b") as f:
            f.seek(8 + struct.unpack("<Q", f.read(8))[0] + begin)
            f.write(bytes(2 * 128 + 2 * 32))  # row 0, and the first group of row 1
        for experts, groups in (("int4", 1), ("int4-g32", 4)):
            path = os.path.join(self.at, "zeros-" + experts)
            p = tandem("quantize", "--model-path", model, "--output", path, "--output-format", "compressed-tensors", "--expert-quantization", experts)
            self.assertEqual(p.returncode, 0, p.stderr)
            f = Folder(path)
            self.assertEqual(list(f.get(name + ".weight_scale")[2][:groups]), groups * [1.0])
            self.assertEqual(f.unpacked(name)[0] + f.unpacked(name)[1][:32], 160 * [0])
            self.assertEqual(tandem("perplexity", "--model-path", path, *SMALL).returncode, 0)

    def test_read_back(self):
        """As a model it has the packed folder's weights, each of them to the last bit, and its figures."""
        calibrated = ("--calibration", os.path.join(MODEL, "valid.txt"), "--calibration-tokens", "512", "--calibration-window", "128")
        for experts, more in (("int4", ()), ("int4", calibrated), ("int4-g64", ()), ("int8", ())):
            with self.subTest(experts=experts, more=more):
                name = experts + ("-calibrated" if more else "")
                args = ("--expert-quantization", experts, "--rotation", "none", *more)  # a rotated MTP layer is not for others
                packed = self.quantize("packed-" + name, *args, output_format="tandem")
                shared = self.quantize("shared-" + name, *args)
                numbers = ("--quantization", "w8a8_int8", "--expert-quantization", experts)
                p = tandem("perplexity", "--model-path", shared, *SMALL, *numbers, "--against", packed, *(f"--against-{x[2:]}" if x.startswith("--") else x for x in numbers),
                           "--per-tensor")
                self.assertEqual(p.returncode, 0, p.stderr)
                got = json.loads(p.stdout)
                self.assertEqual((got["kl"], got["ratio"]), (0, 1))
                # as stored for others, rounded to nearest while loading, and by what it reads in a calibrated folder
                differ = {x["name"] for x in got["tensors"] if x["db"] is not None}
                self.assertLessEqual(differ, {"model.layers.6.eh_proj.weight"} if more else set())
                self.assertGreater(len(got["tensors"]), 6 * 48)

    def test_continued(self):
        """A run that lost shards writes them again, the same bytes; a whole folder is left alone."""
        path = self.quantize("continued")
        files = {x: sha(os.path.join(path, x)) for x in os.listdir(path)}
        self.assertEqual(files, {x: sha(os.path.join(self.main, x)) for x in os.listdir(self.main)})
        times = {x: os.stat(os.path.join(path, x)).st_mtime_ns for x in files if x.startswith("model-")}
        self.quantize("continued")
        self.assertEqual(times, {x: os.stat(os.path.join(path, x)).st_mtime_ns for x in times})
        for lost in ("model-experts-00003-of-00006.safetensors", "model-experts-00006-of-00006.safetensors", "config.json"):
            os.remove(os.path.join(path, lost))
        self.quantize("continued")
        self.assertEqual(files, {x: sha(os.path.join(path, x)) for x in os.listdir(path)})

    def test_refusals(self):
        for args, status, said in ((("--output-format", "gguf"), 2, "--output-format must be one of tandem, compressed-tensors, not 'gguf'"),
                                   (("--output-format", "compressed-tensors", "--expert-quantization", "mxfp4"), 1,
                                    "experts in mxfp4 cannot be written as compressed-tensors")):
            p = tandem("quantize", "--model-path", MODEL, "--output", os.path.join(self.at, "refused"), *args)
            self.assertEqual(p.returncode, status)
            self.assertIn(said, p.stderr)
        p = tandem("quantize", "--model-path", MODEL, "--output", self.main)
        self.assertIn("holds the output of another model or of other options", p.stderr)
