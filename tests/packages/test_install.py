"""`cmake --install`: where files lie, what the libraries export, and a C program that is built against them by pkg-config alone."""
import os
import re
import subprocess
import tempfile
import unittest

from package_tools import run
from program import MODEL, SOURCE

BINARY, CC = os.environ["TD_BUILD_DIR"], os.environ["TD_CC"]

TOOLS_PROGRAM = """
#include <stdio.h>
#include <tandem_tools.h>
int main(void) {
    td_error err = {0};
    td_quantize_options q = {.model_path = "/no/such/model", .output_path = "/no/such/folder/out", .quantization = "w8a8_int8", .expert_quantization = "auto"};
    td_status st = td_quantize(&q, &err);
    printf("%d %s\\n", st, err.text);
    return st == TD_OK;
}
"""


def out_of(*command, **more):
    return run(*command, **more).stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = os.path.join(cls.folder.name, "usr")
        # Under DESTDIR, so that /etc of this machine stays as it is whatever the build's prefix is; then the prefix is told to pkg-config.
        run("cmake", "--install", BINARY, env={**os.environ, "DESTDIR": cls.folder.name})
        with open(f"{BINARY}/CMakeCache.txt") as f:
            prefix = re.search(r"^CMAKE_INSTALL_PREFIX:\w+=(.*)$", f.read(), re.MULTILINE)[1]
        cls.prefix = cls.folder.name + prefix
        cls.config = next(os.path.join(at, f) for at, _, files in os.walk(cls.prefix) for f in files if f == "tandem.pc")
        cls.env = {**os.environ, "PKG_CONFIG_PATH": os.path.dirname(cls.config)}

    def pkg_config(self, *args):
        return out_of("pkg-config", f"--define-variable=prefix={self.prefix}", *args, env=self.env).split()

    def test_files(self):
        files = {os.path.relpath(os.path.join(at, f), self.prefix) for at, _, names in os.walk(self.prefix) for f in names}
        for name in ["bin/tandem", "include/tandem.h", "include/tandem_tools.h", "share/man/man1/tandem.1", "share/man/man1/tandem-launch_server.1",
                     "share/bash-completion/completions/tandem", "share/zsh/vendor-completions/_tandem", "share/fish/vendor_completions.d/tandem.fish",
                     "lib/systemd/system/tandem.service", "share/tandem/configs/launch/cpu-only.yaml", "share/tandem/configs/models/deepseek-r1.json",
                     "share/tandem/configs/machines/kunpeng920-2x910b4.yaml"]:
            self.assertIn(name, files)
        for name in ["libtandem.a", "libtandem_tools.a"]:
            self.assertIn(os.path.join(os.path.relpath(os.path.dirname(os.path.dirname(self.config)), self.prefix), name), files)

    def test_the_unit_starts_this_program(self):
        with open(f"{self.prefix}/lib/systemd/system/tandem.service") as f:
            text = f.read()
        start = re.search(r"^ExecStart=(\S+) launch_server --config (\S+)$", text, re.MULTILINE)
        self.assertTrue(os.access(self.folder.name + start[1], os.X_OK))
        self.assertTrue(os.path.exists(self.folder.name + start[2]))

    def test_exported_names(self):
        """The libraries are static: whatever they define is in the name space of who links them."""
        for name in ("libtandem.a", "libtandem_tools.a"):
            path = os.path.join(os.path.dirname(os.path.dirname(self.config)), name)
            symbols = {line.split()[-1] for line in out_of("nm", "-g", "--defined-only", path).split("\n") if len(line.split()) == 3}
            self.assertGreater(len(symbols), 20)
            before_others = ["MHD_queue_response"] if name == "libtandem.a" else []  # libmicrohttpd's: server/connection/library_errors.h
            self.assertEqual([s for s in symbols if not s.lower().startswith("td_")], before_others)

    def test_version(self):
        version = out_of(f"{self.prefix}/bin/tandem", "--version").split("\n")
        with open(f"{SOURCE}/include/tandem.h") as f:
            number = re.search(r'#define TD_VERSION "(\d+\.\d+\.\d+)"', f.read())[1]
        self.assertEqual(version[0], f"tandem {number}")
        self.assertRegex(version[1], r"^commit: \S+$")
        self.assertRegex(version[2], r"^kernels: scalar .*\(best here: \S+\)$")
        self.assertEqual(version[3], "devices: host cpu npu ascend cuda apart")
        self.assertEqual(self.pkg_config("--modversion", "tandem", "tandem_tools"), [number, number])
        with open(f"{SOURCE}/CHANGELOG.md") as f:
            self.assertIn(f"\n## {number}", f.read())
        self.assertIn("(best here: scalar)", out_of(f"{self.prefix}/bin/tandem", "--version", env={**os.environ, "TD_CPU_MASK": "scalar"}))

    def test_example(self):
        program = os.path.join(self.folder.name, "complete")
        run(CC, f"{self.prefix}/share/tandem/examples/complete.c", "-Wall", "-Werror", "-o", program, *self.pkg_config("--cflags", "--libs", "tandem"))
        text = out_of(program, MODEL, "Once upon a time there was a")
        self.assertGreater(len(text.split()), 15, text)
        p = subprocess.run([program, "/no/such/model", "x"], capture_output=True, text=True)
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("/no/such/model", p.stderr)

    def test_tools(self):
        source = os.path.join(self.folder.name, "tools.c")
        with open(source, "w") as f:
            f.write(TOOLS_PROGRAM)
        run(CC, source, "-Wall", "-Werror", "-o", source[:-2], *self.pkg_config("--cflags", "--libs", "tandem_tools"))
        self.assertIn("/no/such/model", out_of(source[:-2]))
