"""A server for the benchmarks of this folder, running already or started here; what is to be known about it; and venvs of the clients."""
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))

# Models of this repository: flags of launch_server, and where the tokenizer is.
PRESETS = {
    # 14 million parameters that tell stories; the whole model fits the caches of a server.
    "demo": ("--model-path models/tale-v3-14m --quantization none", "models/tale-v3-14m"),
    # DeepSeek-V2-Lite's shape with random weights and DeepSeek-V3's vocabulary (its tokenizer is in the tests).
    "v2-lite": ("--model-path configs/models/deepseek-v2-lite.json --load-format dummy --tokenizer-path build/tokenizer-deepseek-v3 "
                '--json-model-override-args {\\"vocab_size\\":129280} --context-length 17408 --max-total-tokens 163840', "build/tokenizer-deepseek-v3"),
}


def unpack_tokenizer():
    to, source = os.path.join(ROOT, "build/tokenizer-deepseek-v3"), os.path.join(ROOT, "tests/data/tokenizers/deepseek_v3")
    if os.path.exists(os.path.join(to, "tokenizer.json")):
        return
    os.makedirs(to, exist_ok=True)
    with tarfile.open(os.path.join(source, "tokenizer.json.tar.xz")) as tar:
        tar.extract("tokenizer.json", to)
    with open(os.path.join(source, "tokenizer_config.json"), "rb") as f, open(os.path.join(to, "tokenizer_config.json"), "wb") as g:
        g.write(f.read())


def add_arguments(parser):
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--url", help="of a server that runs already")
    which.add_argument("--preset", choices=PRESETS, help="start a server with a model of this repository")
    parser.add_argument("--server-args", default="", help="start a server with these flags of launch_server, after the preset's; a single one as --server-args=--FLAG")
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/cli/tandem"))
    parser.add_argument("--tokenizer-path", help="folder with tokenizer.json; default: the preset's, or what the server was given when it is on this machine")


class Service:
    """A context manager; url, model, context, tokenizer and info are valid within. `flags` are for a server that is started, whose log goes to
    the file `log`; without one, warnings are shown."""

    def __init__(self, args, *flags, log=None):
        if args.url and args.server_args:
            raise SystemExit("--server-args are for a server that is started here, not for the one at --url")
        if not args.url and not args.preset and not args.server_args:
            raise SystemExit("give --url of a running server, or --preset or --server-args to start one")
        self.args, self.process, self.log = args, None, log
        self.flags = flags if log else [*flags, "--log-level", "warning"]

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # a started server does not outlive this program
        try:
            self.url = self.args.url.rstrip("/") if self.args.url else self.start()
            self.info, model = self.get("/get_server_info"), self.get("/v1/models")["data"][0]
            self.model, self.context = model["id"], model["max_model_len"]
            self.tokenizer = self.find_tokenizer()
            return self
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_):
        self.stop()

    def start(self):
        if not os.access(self.args.program, os.X_OK):
            raise SystemExit(f"no program at {self.args.program}: build the preset release, or give --program")
        preset = shlex.split(PRESETS[self.args.preset][0]) if self.args.preset else []
        if self.args.preset == "v2-lite":
            unpack_tokenizer()
        command = [self.args.program, "launch_server", *preset, *self.flags, "--port", "0", *shlex.split(self.args.server_args)]
        print("starting:", shlex.join(command), flush=True)
        # A session of its own: an interrupt from the keyboard reaches the server by stop(), when nothing is measured any more.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, cwd=ROOT, text=True, start_new_session=True)
        found = re.search(r"at (http://\S+)$", self.process.stdout.readline())
        if not found:
            if self.log:
                self.log.seek(0)
                sys.stderr.write(self.log.read())
            raise SystemExit("the server did not start")
        return found[1]

    def stop(self):
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def get(self, path):
        try:
            with urllib.request.urlopen(self.url + path) as answer:
                return json.load(answer)
        except (OSError, ValueError) as e:
            raise SystemExit(f"{self.url}{path}: {e}") from None

    def find_tokenizer(self):
        path = self.args.tokenizer_path or (PRESETS[self.args.preset][1] if self.args.preset else self.get("/get_model_info")["tokenizer_path"])
        for folder in (path, os.path.join(ROOT, path)):
            if os.path.exists(os.path.join(folder, "tokenizer.json")):
                return os.path.abspath(folder)
        raise SystemExit(f"no tokenizer.json in {path}: give --tokenizer-path")


def make_venv(package):
    """Path of the Python of the venv with package, which is installed where it is not yet."""
    subprocess.run([os.path.join(ROOT, "bench/serve/venv.sh"), package], check=True)
    return os.path.join(ROOT, f"build/venv-{package}/bin/python")


def facts(service):
    """What a row of figures needs beside it. The processor is this machine's, so it is told of a server that is here only."""
    info, here = service.info, re.match(r"http://(127\.|localhost|\[::1\])", service.url)
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = re.search(r"model name\s*: (.*)", f.read())
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip() if service.process else None
    flags = [f"--{k}" if v is True else f"--{k} {shlex.quote(str(v))}" for k, v in info.get("server_args", {}).items()]
    return {"date": time.strftime("%Y-%m-%d"), "command": shlex.join([os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]), "model": service.model,
            "architecture": info.get("architecture"), "version": info.get("version"), "commit": commit, "cpu": cpu[1] if here and cpu else None,
            "cores": len(os.sched_getaffinity(0)) if here else None, "device": info.get("device"), "quantization": info.get("quantization"),
            "expert_quantization": info.get("expert_quantization"), "expert_kernel": info.get("expert_kernel"), "context": service.context,
            "server_flags": " ".join(flags)}
