"""The on-disk form of golden outputs: raw little-endian arrays beside one manifest.json (see tests/data/golden/README.md)."""
import json, os
import numpy as np

DTYPES = {"f32": "<f4", "i32": "<i4"}


class Writer:
    """Collects prompts; every array becomes DIR/pN_NAME.f32 or .i32, and close() writes DIR/manifest.json."""

    def __init__(self, folder, **head):
        os.makedirs(folder, exist_ok=True)
        self.folder, self.manifest = folder, dict(head, prompts=[])

    def prompt(self, ids, greedy, greedy_gaps, arrays, **more):
        """arrays: {name: (dtype, array)}; the rest goes into the manifest as it is."""
        n = len(self.manifest["prompts"])
        entry = {"ids": [int(i) for i in ids]}
        entry.update(more)
        for name, (dtype, a) in arrays.items():
            file = "p%d_%s.%s" % (n, name, dtype)
            a = np.ascontiguousarray(a).astype(DTYPES[dtype])
            a.tofile(os.path.join(self.folder, file))
            entry[name] = {"file": file, "dtype": dtype, "shape": list(a.shape)}
        entry["greedy"] = [int(i) for i in greedy]
        entry["greedy_gaps"] = [float("%.6g" % g) for g in greedy_gaps]
        self.manifest["prompts"].append(entry)

    def close(self):
        with open(os.path.join(self.folder, "manifest.json"), "w") as f:
            f.write(dump(self.manifest) + "\n")


def dump(v, depth=0):
    """JSON with one entry a line, but arrays of numbers and array descriptions on one line."""
    pad = " " * (depth + 1)
    if isinstance(v, dict) and "file" not in v:
        rows = ["%s%s: %s" % (pad, json.dumps(k), dump(x, depth + 1)) for k, x in v.items()]
        return "{\n" + ",\n".join(rows) + "\n" + pad[1:] + "}"
    if isinstance(v, list) and v and isinstance(v[0], dict):
        return "[\n" + ",\n".join(pad + dump(x, depth + 1) for x in v) + "\n" + pad[1:] + "]"
    return json.dumps(v)


def read(folder):
    """The manifest with every array description replaced by the array itself."""
    m = json.load(open(os.path.join(folder, "manifest.json")))
    for p in m["prompts"]:
        for k, v in p.items():
            if isinstance(v, dict) and "file" in v:
                p[k] = np.fromfile(os.path.join(folder, v["file"]), DTYPES[v["dtype"]]).reshape(v["shape"])
    return m
