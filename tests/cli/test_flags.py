"""The flags of launch_server on the command line and in --config files, the errors about wrong ones, and docs/flags.md; and the table of flags of
every command."""
import contextlib
import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

from program import MODEL, SOURCE, TANDEM, tandem

PROGRAM = os.environ["TD_FAKE_TANDEM"]

# The command of the 2-card A+K deployment, device and paths changed.
AK = ("--host 0.0.0.0 --allow-no-key --port 8001 --model-path DIR --attention-backend ascend --chunked-prefill-size 8192 --tensor-parallel-size 1 "
      "--device host --trust-remote-code --mem-fraction-static 0.92 --disable-radix-cache --max-total-tokens 190000 "
      "--cpu-weight-path DIR --cpuinfer 2 --subpool-count 1 --num-gpu-experts 0 --quantization w8a8_int8 "
      "--served-model-name DeepSeek-R1-W8A8 --enable-defer").split()

# Flags that every deployment may bring: known, whatever becomes of them
KNOWN = """--model-path --model --tokenizer-path --served-model-name --trust-remote-code --load-format --weight-loader-disable-mmap --no-mmap --context-length
--json-model-override-args --config --host --port --api-key --device --attention-backend --tensor-parallel-size --tp-size --quantization
--kv-cache-dtype --mem-fraction-static --max-total-tokens --max-running-requests --max-queued-requests --chunked-prefill-size
--max-prefill-tokens --enable-mixed-chunk --schedule-policy --page-size --disable-radix-cache --chat-template --reasoning-parser
--tool-call-parser --enable-metrics --log-level --log-requests --decode-log-interval --watchdog-timeout --random-seed
--skip-server-warmup --stream-interval --nnodes --node-rank --dist-init-addr --speculative-algorithm --speculative-num-steps --speculative-eagle-topk --speculative-num-draft-tokens --speculative-always
--disaggregation-mode --disaggregation-transfer-backend --disaggregation-bootstrap-port --cpuinfer --kt-cpuinfer --cpu-weight-path
--kt-weight-path --subpool-count --kt-threadpool-count --num-gpu-experts --kt-num-gpu-experts --expert-memory --enable-defer
--kt-max-deferred-experts-per-token --max-deferred-experts-per-token --enable-two-batch-overlap --disable-two-chunk-overlap --npu-threads --expert-quantization""".split()


def table():
    """The rows of docs/flags.md, by the first name of each flag."""
    with open(f"{SOURCE}/docs/flags.md") as f:
        rows = [[c.strip() for c in line.strip("|\n ").split(" | ")] for line in f if line.startswith("| `--")]
    return {r[0].split("`")[1]: dict(zip(("values", "default", "help"), r[1:])) for r in rows}


TABLE = table()


def launch(*flags, program=PROGRAM):
    return subprocess.run([program, "launch_server", *flags], capture_output=True, text=True, timeout=120)


class Flags(unittest.TestCase):
    def check(self, *flags, program=PROGRAM):
        """What the flags amount to."""
        p = launch("--check", *flags, program=program)
        self.assertEqual(p.returncode, 0, p.stderr)
        return json.loads(p.stdout)

    def refused(self, *flags, model=("--model-path", "m")):
        """The one sentence on stderr; exit status 2."""
        p = launch(*model, *flags)
        self.assertEqual((p.returncode, p.stdout), (2, ""), p.stderr)
        self.assertTrue(p.stderr.startswith("tandem launch_server: "), p.stderr)
        self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        return p.stderr

    def config(self, text):
        f = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        f.write(text)
        f.flush()
        self.addCleanup(f.close)
        return f.name

    def test_ak_command(self):
        p = launch("--check", *AK)
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("the attention backend 'ascend' is not there on device 'host'; using the device's own", p.stderr)
        flags = json.loads(p.stdout)
        self.assertEqual((flags["port"], flags["kt_cpuinfer"], flags["kt_threadpool_count"], flags["enable_defer"]), (8001, 2, 1, True))
        self.assertEqual((flags["max_total_tokens"], flags["mem_fraction_static"], flags["quantization"]), (190000, 0.92, "w8a8_int8"))

    def test_other_spellings(self):
        flags = self.check("--model", "m", "--kt-cpuinfer", "3", "--kt-weight-path", "w", "--kt-threadpool-count", "2",
                           "--kt-num-gpu-experts", "0", "--tp-size", "1", "--kt-max-deferred-experts-per-token", "2", "--device=cpu")
        self.assertEqual((flags["kt_cpuinfer"], flags["kt_weight_path"], flags["kt_threadpool_count"], flags["device"]), (3, "w", 2, "host"))
        self.assertEqual(flags["kt_max_deferred_experts_per_token"], 2)

    def test_every_flag_is_known(self):
        text = launch("--help-all").stdout
        for flag in KNOWN:
            with self.subTest(flag):
                self.assertRegex(text, rf"{flag}\b")
        self.assertRegex(text, r"--quantization FORMAT\n(?: {8}.*\n)+? {8}Values: auto, none, w8a8_int8\n")

    def test_not_supported_yet(self):
        for flags in [["--device", "musa"], ["--nnodes", "2"],
                      ["--node-rank", "1"], ["--dist-init-addr", "h:1"], ["--speculative-algorithm", "EAGLE"], ["--speculative-num-steps", "3"],
                      ["--speculative-eagle-topk", "4"], ["--speculative-num-draft-tokens", "4"],
                      ["--disaggregation-mode", "prefill"], ["--disaggregation-transfer-backend", "mooncake"],
                      ["--disaggregation-bootstrap-port", "8998"],
                      ["--page-size", "64"], ["--kv-cache-dtype", "fp8_e4m3"], ["--schedule-policy", "lpm"], ["--quantization", "fp8"],
                      ["--reasoning-parser", "step3"], ["--tool-call-parser", "step3"], ["--expert-quantization", "fp4"]]:
            with self.subTest(flags):
                line = self.refused(*flags)
                self.assertIn("is not supported yet", line)

    def test_the_supported_values_of_those(self):
        self.check("--model", "m", "--page-size", "128", "--nnodes", "1", "--node-rank", "0", "--disaggregation-mode", "null",
                   "--schedule-policy", "fcfs", "--kv-cache-dtype", "bfloat16", "--enable-metrics", "--chunked-prefill-size", "-1")

    def test_the_nearest_flag(self):
        for flags, words in [(["--prot", "1"], "is --port meant?"), (["--max-runing-requests=3"], "is --max-running-requests meant?"),
                             (["--tensor_parallel_size", "1"], "is --tensor-parallel-size meant?")]:
            with self.subTest(flags):
                self.assertIn(words, self.refused(*flags))
        self.assertNotIn("meant", self.refused("--quite-another-thing"))
        self.assertEqual(self.check("--model", "m", "--max-runn", "3")["max_running_requests"], 3, "the beginning of one name alone is enough")
        self.assertIn("no flag '--max-", self.refused("--max-", "3"))

    def test_mistakes(self):
        for flags, words in [(["--prot", "1"], "no flag '--prot'"), (["--port"], "--port needs a value"), (["--port", "x"], "whole number"),
                             (["--port", "70000"], "between 0 and 65535"), (["--port", "-1"], "between"), (["--port", "1.5"], "whole number"),
                             (["--mem-fraction-static", "0"], "between"), (["--mem-fraction-static", "1.1"], "between"),
                             (["--mem-fraction-static", "nan"], "number"), (["--log-level", "loud"], "one of"), (["stray"], "not a flag"),
                             (["--enable-defer=yes"], "takes no value"), (["--load-format", "gguf"], "one of"), (["--host", ""], "needs a value"),
                             (["--max-total-tokens", "99999999999999999999"], "whole number"), (["-x"], "no flag")]:
            with self.subTest(flags):
                self.assertIn(words, self.refused(*flags))
        self.assertIn("--model-path is missing", self.refused(model=()))

    def test_config(self):
        path = self.config("# comment\nmodel_path: m\nport: 1234\nenable-defer: true\ndisable-radix-cache: yes\n"
                           "served-model-name: 'a b'\nlog-requests: false\nquantization: none\n")
        flags = self.check("--config", path)
        self.assertEqual((flags["port"], flags["enable_defer"], flags["served_model_name"], flags["log_requests"]), (1234, True, "a b", False))
        flags = self.check("--port", "99", "--config", path, "--quantization", "w8a8_int8")
        self.assertEqual((flags["port"], flags["quantization"]), (99, "w8a8_int8"), "the command line wins")

    def test_config_spellings(self):
        flags = self.check("--config", self.config("---\nmodel: m\nkt_max_deferred_experts_per_token: 2\ntp-size: 1\n"
                                                   "host: \"::1\"\nmem_fraction_static: 0.5 # a comment\ncontext-length: !!int 7\n...\n"))
        self.assertEqual((flags["kt_max_deferred_experts_per_token"], flags["host"], flags["mem_fraction_static"], flags["context_length"]),
                         (2, "::1", 0.5, 7))
        for nothing in ["", "# nothing\n", "---\n", "{}\n"]:
            with self.subTest(nothing):
                self.assertEqual(self.check("--model", "m", "--config", self.config(nothing)), self.check("--model", "m"))

    def test_config_mistakes(self):
        for text, words in [("port: x\n", ": --port needs a whole number"), ("\nprot: 1\n", "line 2: there is no flag 'prot'"),
                            ("port: 1\nhost: h\nprot: 1\n", "line 2: there is no flag 'prot'"), ('"a\\nb": 1\n', "no flag 'a b'"),
                            ("port: [1]\n", "line 1: 'port' must have a plain value"), ("port: {a: 1}\n", "line 1: 'port' must have a plain value"),
                            ("host: h\nport:\n  - 1\n", "line 3: 'port' must have a plain value"),
                            ("- port\n", "'flag: value'"), ("port\n", "'flag: value'"),
                            ("port: 1\nport: 2\n", "line 1: 'port' is there twice"), ("log-requests: true\nlog_requests: true\n", "is there twice"),
                            ("cpuinfer: 1\nkt-cpuinfer: 1\n", "is there twice"), ("port: 1\n---\nport: 2\n", "second document"),
                            ("served-model-name: b: c\n", "not valid YAML"), ("\tport: 1\n", "not valid YAML"), ("enable-defer: 5\n", "true or false"),
                            ("port: 1\nhost: 'h\n", "line 2: not valid YAML"),
                            ("config: x\n", "command line"), ("port:\n", "whole number"), ("? [a]\n: b\n", "lines of 'flag: value'"),
                            ("device: musa\n", "not supported yet"), ("nnodes: 2\n", "not supported yet"), ("\0", "not valid YAML"),
                            ("port: &a 1\nnpu-threads: *a\n", "plain value"), (f"{'x' * 300}: 1\n", "there is no flag 'xxx"),
                            ("[" * 60000, "'flag: value'"), ("# a comment\n" * 6000, "at most 65536 are accepted")]:
            with self.subTest(text[:60]):
                path = self.config(text)
                line = self.refused("--config", path)
                self.assertIn(words, line)
                self.assertIn(path, line)
        self.assertIn("--config: /no/such/file: No such file", self.refused("--config", "/no/such/file"))
        self.assertIn("--config: / is not a regular file", self.refused("--config", "/"))

    def test_a_pipe_is_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            self.assertIn(f"--config: {pipe} is not a regular file", self.refused("--config", pipe))
            self.assertIn(f"--kv-store-config: {pipe} is not a regular file", self.refused("--kv-store", "mooncake", "--kv-store-config", pipe))

    def test_example_configs(self):
        plain = self.check("--model-path", "m")
        files = sorted(glob.glob(f"{SOURCE}/configs/launch/*.yaml"))
        self.assertEqual([os.path.basename(f) for f in files], ["ak-2card.yaml", "cpu-only.yaml", "demo.yaml", "edge-box.yaml"])
        for path in files:
            with self.subTest(path):
                flags = self.check("--config", path, "--model-path", "m", "--api-key", "k")
                with open(path) as f:
                    lines = f.readlines()
                for line in lines:
                    if line.strip() and not line.startswith("#"):
                        self.assertIn("# ", line, "each key has its comment")
                        self.assertIn(f"--{line.split(':')[0]}", TABLE)
                self.assertNotEqual(flags, plain)

    def test_the_key_stays_secret(self):
        flags = self.check("--model", "m", "--api-key", "hush")
        self.assertNotIn("hush", json.dumps(flags))
        self.assertFalse([k for k in flags if "key" in k and k != "allow_no_key"])

    def test_what_is_set(self):
        """Every flag of the table is there, defaults too, by SGLang's names."""
        flags = self.check("--model", MODEL, program=TANDEM)
        for name in ("model_path", "tp_size", "kt_cpuinfer", "page_size", "nnodes", "disaggregation_mode", "trust_remote_code", "watchdog_timeout", "tool_call_parser"):
            self.assertIn(name, flags)
        self.assertEqual((flags["tp_size"], flags["nnodes"], flags["trust_remote_code"], flags["speculative_algorithm"]), (1, 1, False, None))
        missing = {"api_key", "config", "check", "help_markdown", "enable_mixed_chunk", "enable_two_batch_overlap"}
        known = {k.removeprefix("kt_") for k in flags} | missing
        for name in TABLE:
            self.assertIn({"--tensor-parallel-size": "tp_size", "--cpu-weight-path": "weight_path", "--subpool-count": "threadpool_count",
                           "--kt-method": "method"}.get(name, name[2:].replace("-", "_")), known)

    def test_the_defaults_are_those_of_the_table(self):
        flags, compared = self.check("--model", MODEL, program=TANDEM), 0  # the fake engine has other options
        for name, row in TABLE.items():
            key = name[2:].replace("-", "_")
            value = flags.get(key, flags.get(f"kt_{key}"))
            if re.fullmatch(r"[0-9.]+", row["default"]) and isinstance(value, (int, float)):
                self.assertEqual(value, float(row["default"]), name)
            elif f"`{row['default']}`" in row["values"].split(", "):
                self.assertEqual(value, row["default"], name)
            else:
                continue
            compared += 1
        self.assertGreater(compared, 30)

    def test_documentation(self):
        text = launch("--help-markdown").stdout
        with open(f"{SOURCE}/docs/flags.md") as f:
            self.assertEqual(f.read(), text, "docs/flags.md is old: tandem launch_server --help-markdown > docs/flags.md")


class EveryCommand(unittest.TestCase):
    """Parsing, help and refusals come from one table a command."""

    def run_command(self, *args):
        return tandem(*args, stdin=subprocess.DEVNULL)

    def test_tables(self):
        commands = re.findall(r"^  (\S+) ", self.run_command("--help").stdout, re.MULTILINE)
        self.assertEqual(len(commands), 13)
        flags = 0
        for command in commands:
            shown = self.run_command(command, "--help-all")
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertTrue(shown.stdout.startswith(f"usage: tandem {command} "), shown.stdout[:80])
            seen = set()
            for line in re.findall(r"^  (-.*)$", shown.stdout, re.MULTILINE):
                *names, last = line.split(", ")
                last, _, value = last.partition(" ")
                for name in [*names, last]:
                    self.assertNotIn(name, seen, f"{command} has it twice")
                    seen.add(name)
                    if name in ("--help", "-h"):
                        continue
                    flags += 1
                    p = self.run_command(command, name if value else f"{name}=1")
                    with self.subTest(command=command, flag=name):
                        self.assertEqual((p.returncode, p.stdout, p.stderr.count("\n")), (2, "", 1), p.stderr)
                        self.assertRegex(p.stderr, f"^tandem {command}: --?.* (needs a|takes no) value\n$")
            p = self.run_command(command, "--quite-another-thing")
            self.assertEqual((p.returncode, p.stdout), (2, ""))
            self.assertEqual(p.stderr, f"tandem {command}: there is no flag '--quite-another-thing'; 'tandem {command} --help' lists them\n")
        self.assertGreater(flags, 150)

    def test_help_is_80_columns_wide(self):
        for command in ["", *re.findall(r"^  (\S+) ", self.run_command("--help").stdout, re.MULTILINE)]:
            for flag in ("--help", "--help-all") if command else ("--help",):
                text = self.run_command(*filter(None, [command]), flag).stdout
                long = [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()]
                self.assertEqual([line for line in long if not line.startswith("  -") and not line.startswith("usage: ")], [], f"{command} {flag}")

    def test_ten_flags_first(self):
        short, whole = (launch(flag, program=TANDEM).stdout for flag in ("--help", "--help-all"))
        shown = re.findall(r"^  (--[a-z-]+)", short, re.MULTILINE)
        self.assertEqual(sorted(shown), sorted(["--config", "--host", "--port", "--api-key", "--model-path", "--device", "--context-length", "--cpuinfer",
                                                "--max-total-tokens", "--max-running-requests", "--help", "--help-all"]))
        self.assertGreater(len(re.findall(r"^  --", whole, re.MULTILINE)), 60)
        self.assertLess(len(short.splitlines()), 50)

    def test_help_and_version_as_commands(self):
        for command in ("launch_server", "plan"):
            self.assertEqual(self.run_command("help", command).stdout, self.run_command(command, "--help").stdout)
        self.assertEqual(self.run_command("version").stdout, self.run_command("--version").stdout)
        self.assertEqual(self.run_command("help").stdout, self.run_command("--help").stdout)
        p = self.run_command("help", "no-such")
        self.assertEqual((p.returncode, p.stdout), (2, ""))

    def test_commands_are_suggested(self):
        for given, meant in (("launch-server", "launch_server"), ("serve", "launch_server"), ("quantise", "quantize"), ("toop", "topo"), ("plans", "plan")):
            p = self.run_command(given)
            self.assertEqual((p.returncode, p.stdout, p.stderr), (2, "", f"tandem: there is no command '{given}'; is {meant} meant? 'tandem --help' lists them\n"))
        self.assertEqual(self.run_command("xyzzy").stderr, "tandem: there is no command 'xyzzy'; 'tandem --help' lists them\n")

    def test_names_of_other_engines(self):
        """Those of the page's table, in place of ours."""
        with open(f"{SOURCE}/docs/commands.md") as f:
            rows = re.findall(r"^\| `(--[a-z-]+)` \|([^|]*)\|([^|]*)\|$", f.read(), re.MULTILINE)
        ours = {"--model-path": MODEL, "--context-length": "512", "--max-running-requests": "3", "--chunked-prefill-size": "256", "--mem-fraction-static": "0.5",
                "--tensor-parallel-size": "1", "--cpuinfer": "2", "--served-model-name": "x", "--json-model-override-args": "{}", "--disable-radix-cache": None,
                "--random-seed": "5", "--chat-template": "/dev/null"}
        self.assertEqual(set(ours), {name for name, *_ in rows})
        def set_by(name, value):
            words = ["--model-path", MODEL] if name not in ("--model-path", "--model", "-m") else []
            p = launch("--check", *words, name, *([value] if value is not None else []))
            self.assertEqual(p.returncode, 0, p.stderr)
            return json.loads(p.stdout)
        for name, *others in rows:
            for other in re.findall(r"`(--?[a-z-]+)`", " ".join(others)):
                with self.subTest(other):
                    self.assertEqual(set_by(other, ours[name]), set_by(name, ours[name]))

    def test_colours_are_for_terminals(self):
        def on_terminal(**more):
            master, slave = os.openpty()
            p = subprocess.Popen([TANDEM, "topo", "--help"], stdout=slave, env={**os.environ, "TERM": "xterm", **more})
            os.close(slave)
            text = b""
            with contextlib.suppress(OSError):  # the end of a terminal is an error
                while part := os.read(master, 65536):
                    text += part
            os.close(master)
            self.assertEqual(p.wait(120), 0)
            return text.decode()
        self.assertIn("\033[1m--json\033[0m", on_terminal())
        self.assertNotIn("\033", on_terminal(NO_COLOR="1"))
        self.assertNotIn("\033", on_terminal(TERM="dumb"))
        self.assertNotIn("\033", self.run_command("topo", "--help").stdout)
