"""The packages as users meet them, in a root of their own (debootstrap's smallest Debian 12). They are installed, started as the unit does, upgraded
under a running service, removed and purged. Also the tarball where nothing is installed, the RPM's content and scripts, and the unit's hardening. A
second build gives the same bytes.

Skipped, with a sentence, where this process may not chroot and mount. The two roots are kept in build/package-roots.
"""
import glob
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from package_tools import run
from program import MODEL, SOURCE
from server_process import PATIENCE, free_port, wait_until

PACKAGE = f"{SOURCE}/scripts/package.sh"
ROOTS = f"{SOURCE}/build/package-roots"
MIRROR = "http://deb.debian.org/debian"
ARCHITECTURE = run("dpkg", "--print-architecture").stdout.strip()


def package(kind, **environment):
    return run(PACKAGE, kind, timeout=1100, env={**os.environ, "TD_PACKAGE_WERROR": "ON", **environment}).stdout.split()


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def why_not_here():
    if os.geteuid() != 0:
        return "only root may chroot and mount"
    if not shutil.which("debootstrap"):
        return "there is no debootstrap (scripts/deps.sh test installs it)"
    if subprocess.run(["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True).returncode != 0:
        return "this machine lets nobody mount"
    return None


WHY_NOT = why_not_here()

PAGES = 1 + len(re.findall(r"^  (\S+) ", subprocess.run([os.environ["TD_TANDEM"], "--help"], capture_output=True, text=True).stdout, re.M))
FULL = os.environ.get("TD_TEST_FULL")
PRODUCT = "scripts/test.sh --full makes packages of every kind"


def setUpModule():
    os.makedirs(ROOTS, exist_ok=True)
    if WHY_NOT:
        print(f"parts are skipped: {WHY_NOT}", file=sys.stderr)


class Root:
    """A Debian of its own in a folder, with /proc, /sys and /dev in a mount name space that goes when it is closed, or when this process ends."""

    def __init__(self, archive):
        self.path = tempfile.mkdtemp(prefix="root-", dir=ROOTS)
        run("tar", "-C", self.path, "-xf", archive)
        os.chmod(self.path, 0o755)
        mounts = " && ".join(f"mount --rbind /{name} {self.path}/{name}" for name in ("proc", "sys", "dev"))
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mounts} && echo ready && exec cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.holder.stdout.readline() == b"ready\n"

    def command(self, *command):
        return ["nsenter", "--mount", "--target", str(self.holder.pid), "chroot", self.path, *command]

    def run(self, *command, **more):
        return run(*self.command(*command), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}, **more)

    def put(self, path, folder="tmp"):
        shutil.copy(path, f"{self.path}/{folder}")
        return f"/{folder}/{os.path.basename(path)}"

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()
        shutil.rmtree(self.path)


def base_archive():
    """debootstrap's smallest Debian."""
    path = f"{ROOTS}/base-{ARCHITECTURE}.tar"
    if not os.path.exists(path):
        with tempfile.TemporaryDirectory(dir=ROOTS) as folder:
            run("debootstrap", "--variant=minbase", "bookworm", folder, MIRROR)
            shutil.rmtree(f"{folder}/var/cache/apt/archives")
            run("tar", "-C", folder, "-cf", path + ".part", ".")
        os.rename(path + ".part", path)
    return path


def depends_archive(deb):
    """The same with what the package depends on."""
    depends = re.sub(r" \([^)]*\)", "", run("dpkg-deb", "-f", deb, "Depends").stdout.strip())
    path = f"{ROOTS}/depends-{ARCHITECTURE}-{hashlib.sha256(depends.encode()).hexdigest()[:8]}.tar"
    if not os.path.exists(path):
        root = Root(base_archive())
        try:
            shutil.copy("/etc/resolv.conf", f"{root.path}/etc/resolv.conf")
            root.run("apt-get", "update", "-qq")
            root.run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *[d.split("|")[0].strip() for d in depends.split(",")])
            root.run("apt-get", "clean")
            run("tar", "-C", root.path, "--one-file-system", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*", "-cf", path + ".part", ".")
        finally:
            root.close()
        os.rename(path + ".part", path)
    return path


class Service:
    """The unit's ExecStart in a root, as its user, told where to notify: what systemd does, but for the sandbox."""

    def __init__(self, root):
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(f"{root.path}/run/tandem-notify")
        os.chmod(f"{root.path}/run/tandem-notify", 0o777)
        with open(f"{root.path}/usr/lib/systemd/system/tandem.service") as f:
            unit = dict(re.findall(r"^(ExecStart|User|Type)=(.*)$", f.read(), re.MULTILINE))
        assert unit["Type"] == "notify"
        self.log = open(f"{root.path}/tmp/service.log", "w+")
        self.process = subprocess.Popen(root.command("/usr/bin/setpriv", "--reuid", unit["User"], "--regid", unit["User"], "--init-groups", "--no-new-privs",
                                                     *unit["ExecStart"].split()), stdout=self.log, stderr=self.log,
                                        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": "/run/tandem-notify", "WATCHDOG_USEC": "30000000"})
        self.path = f"{root.path}/run/tandem-notify"

    def wait(self, word, seconds=60):
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            self.notify.settimeout(1)
            try:
                if word in (message := self.notify.recv(4096).decode()):
                    return message
            except TimeoutError:
                if self.process.poll() is not None:
                    break
        self.log.seek(0)
        raise AssertionError(f"no {word}: {self.log.read()}")

    def stop(self):
        self.process.terminate()
        status = self.process.wait(30 * PATIENCE)
        self.notify.close()
        os.unlink(self.path)
        self.log.close()
        return status


def story(port, **more):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60 * PATIENCE)
    connection.request("POST", "/v1/completions", json.dumps({"model": "tale", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, **more}),
                       {"Content-Type": "application/json", "Connection": "close"})
    return connection.getresponse()


def text_of(response):
    assert response.status == 200, response.read()
    return json.load(response)["choices"][0]["text"]


class Debs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.first, cls.dev = [p for p in package("deb", TD_PACKAGE_REVISION="1")]
        cls.second = package("deb", TD_PACKAGE_REVISION="2")[0]

    def test_same_bytes_again(self):
        before = [digest(self.first), digest(self.dev)]
        self.assertEqual([digest(p) for p in package("deb", TD_PACKAGE_REVISION="1")], before)
        with open(f"{SOURCE}/build/package/cli/tandem", "rb") as f:
            self.assertNotIn(SOURCE.encode(), f.read(), "no path of this machine is in the program")

    def test_content(self):
        files = run("dpkg-deb", "-c", self.first).stdout
        for name in ("usr/bin/tandem", "usr/lib/systemd/system/tandem.service", "etc/tandem/tandem.yaml", "usr/share/man/man1/tandem-launch_server.1.gz",
                     "usr/share/bash-completion/completions/tandem", "usr/share/doc/tandem/changelog.Debian.gz"):
            self.assertRegex(files, rf"root/root .* \./{re.escape(name)}\n")
        self.assertRegex(run("dpkg-deb", "-f", self.first, "Depends").stdout, r"libc6 \(>= 2\.\d+\).*libhwloc15.*adduser")
        self.assertRegex(run("dpkg-deb", "-c", self.dev).stdout, r"libtandem\.a\n(.|\n)*libtandem_tools\.a\n(.|\n)*tandem\.pc\n")

    @unittest.skipUnless(shutil.which("lintian"), "there is no lintian (scripts/deps.sh test installs it)")
    def test_lintian(self):
        with tempfile.TemporaryDirectory() as folder:  # it leaves files behind
            for path in (self.first, self.dev):
                p = run("lintian", "--allow-root", "--fail-on", "error,warning", "--suppress-tags-from-file", f"{SOURCE}/packaging/debian/lintian-suppressed", path, check=False,
                        env={**os.environ, "TMPDIR": folder})
                self.assertEqual(p.returncode, 0, p.stdout + p.stderr)

    @unittest.skipIf(WHY_NOT, WHY_NOT)
    def test_life(self):
        """Install, start, upgrade under the running service, restart, remove, purge."""
        root = Root(depends_archive(self.first))
        self.addCleanup(root.close)
        before = set(root.run("find", "/etc", "/usr", "/var/lib/systemd", "/lib/systemd", "-xdev").stdout.split("\n"))
        root.run("dpkg", "-i", root.put(self.first))
        self.assertEqual(root.run("dpkg-query", "-W", "-f", "${Status}", "tandem").stdout, "install ok installed")
        self.assertEqual(root.run("stat", "-c", "%U:%G %a", "/etc/tandem/tandem.yaml").stdout, "root:tandem 640\n")
        self.assertRegex(root.run("getent", "passwd", "tandem").stdout, r"^tandem:x:\d+:\d+:.*:/nonexistent:/usr/sbin/nologin\n$")
        self.assertRegex(root.run("tandem", "--version").stdout, r"^tandem \d+\.\d+\.\d+\ncommit: [0-9a-f]+")
        self.assertFalse(os.path.exists(f"{root.path}/etc/systemd/system/multi-user.target.wants/tandem.service"), "who installs it says which model it serves, and when")
        # As delivered it says what is missing.
        p = run(*root.command("tandem", "launch_server", "--config", "/etc/tandem/tandem.yaml"), check=False)
        self.assertEqual((p.returncode, "--model-path is missing" in p.stderr), (2, True), p.stderr)

        port = free_port()
        shutil.copytree(MODEL, f"{root.path}/srv/models/tale")
        root.run("sed", "-i", f"s|^#model-path:.*|model-path: /srv/models/tale|; s|^port:.*|port: {port}|", "/etc/tandem/tandem.yaml")
        service = Service(root)
        self.addCleanup(lambda: service.process.poll() is None and service.process.kill())
        self.assertIn(f"STATUS=serving tale at http://127.0.0.1:{port}", service.wait("READY=1"))
        told = text_of(story(port))
        self.assertGreater(len(told), 10)
        self.assertEqual(set(re.findall(r"^[UG]id:\t(\d+)", pathlib.Path(f"/proc/{service.process.pid}/status").read_text(), re.MULTILINE)) & {"0"}, set(), "not as root")

        # An upgrade: the stream that runs goes on, the old program answers until it is told to stop, the edited file stays.
        stream = story(port, stream=True, max_tokens=400, ignore_eos=True)
        self.assertTrue(stream.readline().startswith(b"data: "))
        root.run("dpkg", "-i", root.put(self.second))
        self.assertIn(b"[DONE]", stream.read())
        self.assertIsNone(service.process.poll())
        self.assertTrue(os.readlink(f"/proc/{service.process.pid}/exe").endswith(" (deleted)"), "it runs what is not installed any more")
        self.assertEqual(text_of(story(port)), told)
        self.assertIn(f"port: {port}", root.run("cat", "/etc/tandem/tandem.yaml").stdout)
        self.assertEqual(root.run("stat", "-c", "%U:%G %a", "/etc/tandem/tandem.yaml").stdout, "root:tandem 640\n")
        self.assertTrue(root.run("dpkg-query", "-W", "-f", "${Version}", "tandem").stdout.endswith("-2"))
        self.assertEqual(service.stop(), 0)
        service = Service(root)
        service.wait("READY=1")
        self.assertFalse(os.readlink(f"/proc/{service.process.pid}/exe").endswith(" (deleted)"))
        self.assertEqual(text_of(story(port)), told)
        self.assertEqual(service.stop(), 0)

        self.assertEqual(root.run("dpkg", "--verify", "tandem").stdout.split(), ["??5??????", "c", "/etc/tandem/tandem.yaml"], "only the edited file differs")
        root.run("dpkg", "-r", "tandem")
        self.assertFalse(os.path.exists(f"{root.path}/usr/bin/tandem"))
        self.assertTrue(os.path.exists(f"{root.path}/etc/tandem/tandem.yaml"), "what was configured outlives a removal")
        root.run("dpkg", "-P", "tandem")
        after = set(root.run("find", "/etc", "/usr", "/var/lib/systemd", "/lib/systemd", "-xdev").stdout.split("\n"))
        backups = {f"/etc/{name}" for name in ("passwd-", "group-", "shadow-", "gshadow-", "subuid-", "subgid-")}
        self.assertEqual(after - before - backups, set())

    def test_unit(self):
        """systemd's own opinion of the unit, with a program in its place that is there."""
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "-x", self.first, folder)
            unit = f"{folder}/tandem.service"
            with open(f"{folder}/usr/lib/systemd/system/tandem.service") as f, open(unit, "w") as to:
                to.write(f.read().replace("/usr/bin/tandem", f"{folder}/usr/bin/tandem"))
            p = run("systemd-analyze", "verify", "--man=no", unit, check=False)
            self.assertEqual([line for line in p.stderr.split("\n") if "tandem.service" in line], [])
            p = run("systemd-analyze", "security", "--offline=true", "--threshold=25", unit, check=False)
            self.assertEqual(p.returncode, 0, p.stdout)


def allowed_calls(unit):
    """The system calls of a unit's SystemCallFilter, from systemd's own lists."""
    groups, name = {}, None
    for line in run("systemd-analyze", "syscall-filter").stdout.split("\n"):
        if line.startswith("@"):
            groups[name := line.strip()] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            groups[name].append(line.strip())
    todo, calls = re.search(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE)[1].split() + ["@default"], set()
    while todo:
        word = todo.pop()
        if word.startswith("@"):
            todo += groups[word]
        else:
            calls.add(word)
    return calls


@unittest.skipUnless(shutil.which("strace") and shutil.which("systemd-analyze"), "there is no strace or systemd (scripts/deps.sh test installs them)")
class Sandbox(unittest.TestCase):
    def test_system_calls(self):
        """What the server calls from its start to its end, a chat and a stream between, passes the unit's filter; no seccomp is needed to look."""
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            server = subprocess.Popen(["strace", "-f", "-qq", "-c", "-S", "name", "-o", f"{folder}/calls", os.environ["TD_TANDEM"], "launch_server", "--model-path", MODEL,
                                       "--served-model-name", "tale", "--port", str(port), "--cpuinfer", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                self.assertTrue(server.stdout.readline().startswith(b"tandem: serving"))
                text_of(story(port))
                self.assertIn(b"[DONE]", story(port, stream=True).read())
            finally:
                subprocess.run(["pkill", "-TERM", "-P", str(server.pid)])
                server.wait(60 * PATIENCE)
                server.stdout.close()
            with open(f"{folder}/calls") as f:
                called = {line.split()[-1] for line in f if re.match(r"\s*\d+\.\d+\s", line)} - {"total"}
        with open(f"{SOURCE}/packaging/systemd/tandem.service.in") as f:
            allowed = allowed_calls(f.read())
        self.assertGreater(len(called), 30)
        self.assertEqual(sorted(called - allowed), [])


@unittest.skipUnless(FULL, PRODUCT)
class Tarball(unittest.TestCase):
    def test_tarball(self):
        path = package("tarball")[0]
        before = digest(path)
        self.assertEqual([digest(p) for p in package("tarball")], [before], "the same bytes again")
        if WHY_NOT:
            self.skipTest(WHY_NOT)
        root = Root(base_archive())
        self.addCleanup(root.close)
        top = os.path.basename(path).removesuffix(".tar.gz")
        os.makedirs(f"{root.path}/opt/a folder")
        run("tar", "-C", f"{root.path}/opt/a folder", "-xzf", path)
        for at in ("/opt/a folder", "/srv"):
            if at == "/srv":
                shutil.move(f"{root.path}/opt/a folder/{top}", f"{root.path}/srv")
            folder, port = f"{at}/{top}", free_port()
            needed = run(*root.command("sh", "-c", 'ldd "$1"', "sh", f"{folder}/bin/tandem")).stdout
            outside = sorted(re.findall(r"^\t(\S+) => /(?:usr/)?lib", needed, re.MULTILINE))
            self.assertNotIn("not found", needed)
            self.assertTrue(set(outside) <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2"}, outside)
            with open(f"{root.path}/tmp/log", "w") as log:
                server = subprocess.Popen(root.command("sh", "-c", 'cd "$1" && exec setpriv --reuid 65534 --regid 65534 --clear-groups bin/tandem launch_server --config configs/launch/demo.yaml --port "$2"',
                                                       "sh", folder, str(port)), stdout=log, stderr=log)
            try:
                wait_until(lambda: story(port, model="tale-v3-14m").status == 200, seconds=90, says=f"{root.path}/tmp/log")
                self.assertGreater(len(text_of(story(port, model="tale-v3-14m"))), 10)
            finally:
                server.terminate()
                self.assertEqual(server.wait(30 * PATIENCE), 0)
        # OpenBLAS, which no ldd shows: calibration loads it.
        shutil.copy(f"{MODEL}/valid.txt", f"{root.path}/tmp/text")
        root.run(f"/srv/{top}/bin/tandem", "quantize", "--model-path", f"/srv/{top}/models/tale-v3-14m", "--output", "/tmp/out", "--calibration", "/tmp/text",
                 "--calibration-tokens", "256", "--calibration-window", "128")
        with open(f"{root.path}/srv/{top}/lib/LIBRARIES.txt") as f:
            told = f.read()
        for lib in os.listdir(f"{root.path}/srv/{top}/lib"):
            if lib != "LIBRARIES.txt":
                self.assertIn(f"{lib} from Debian's ", told)
                self.assertTrue(os.path.getsize(f"{root.path}/srv/{top}/licenses/{lib}.txt") > 100)
        self.assertRegex(told, r"glibc 2\.\d+ or newer is needed")


@unittest.skipUnless(FULL, PRODUCT)
@unittest.skipUnless(shutil.which("rpmbuild"), "there is no rpmbuild (scripts/deps.sh test installs it)")
class Rpm(unittest.TestCase):
    """Made with Debian's rpmbuild: names, places and scripts are looked at here; no openEuler was at hand."""

    def test_rpm(self):
        program, devel = sorted(package("rpm"), key=lambda p: "devel" in os.path.basename(p))
        files = run("rpm", "-qpl", program).stdout.split()
        for name in ("/usr/bin/tandem", "/usr/lib/systemd/system/tandem.service", "/etc/tandem/tandem.yaml"):
            self.assertIn(name, files)
        self.assertEqual(sum("/man1/tandem" in f for f in files), PAGES)
        self.assertEqual(run("rpm", "-qp", "--configfiles", program).stdout, "/etc/tandem/tandem.yaml\n")
        self.assertIn("/etc/tandem/tandem.yaml root tandem 100640", run("rpm", "-qp", "--qf", r"[%{FILENAMES} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILEMODES:octal}\n]", program).stdout)
        scripts = run("rpm", "-qp", "--scripts", program).stdout
        for word in ("preinstall", "useradd -r", "postinstall", "preuninstall", "disable --now", "postuninstall"):
            self.assertIn(word, scripts)
        self.assertIn("libhwloc.so.15", run("rpm", "-qp", "--requires", program).stdout)
        self.assertTrue([f for f in run("rpm", "-qpl", devel).stdout.split() if f.endswith("/libtandem.a")])
        with tempfile.TemporaryDirectory() as folder:
            def rpm(*args):
                return run("rpm", "--root", folder, "--dbpath", "/rpmdb", *args)
            rpm("--initdb")
            rpm("-i", "--nodeps", "--noscripts", program)
            run(f"{folder}/usr/bin/tandem", "--version")
            rpm("-e", "--nodeps", "--noscripts", "tandem")
            self.assertFalse(os.path.exists(f"{folder}/usr/bin/tandem"))
        again = sorted(package("rpm"), key=lambda p: "devel" in os.path.basename(p))
        self.assertEqual(run("rpm", "-qp", "--qf", "%{SHA256HEADER} %{PAYLOADDIGEST}", again[0]).stdout, run("rpm", "-qp", "--qf", "%{SHA256HEADER} %{PAYLOADDIGEST}", program).stdout)


@unittest.skipUnless(FULL, PRODUCT)
@unittest.skipUnless(ARCHITECTURE == "amd64" and shutil.which("aarch64-linux-gnu-gcc") and glob.glob(f"{SOURCE}/build/aarch64-sysroot/unpacked*"),
                     "the cross compiler and its libraries are not there (scripts/deps.sh aarch64)")
class Arm64(unittest.TestCase):
    def test_deb(self):
        deb = package("deb-arm64")[0]
        self.assertTrue(deb.endswith("_arm64.deb"))
        self.assertRegex(run("dpkg-deb", "-f", deb, "Depends").stdout, r"libc6 \(>= 2\.\d+\).*libhwloc15.*adduser")
        with tempfile.TemporaryDirectory() as folder:
            run("dpkg-deb", "-x", deb, folder)
            self.assertRegex(run(f"{SOURCE}/scripts/run_aarch64.sh", f"{folder}/usr/bin/tandem", "--version").stdout, r"kernels: scalar neon dotprod")
            self.assertEqual(len(os.listdir(f"{folder}/usr/share/man/man1")), PAGES)

    @unittest.skipUnless(shutil.which("buildah"), "there is no buildah (scripts/deps.sh test installs it)")
    def test_image(self):
        """The image for arm64: what it says of itself, and its program, with its libraries alone, serves under qemu; its health check says so."""
        with tempfile.TemporaryDirectory() as folder:
            run("tar", "-C", folder, "-xf", package("image-arm64")[-1])
            with open(f"{folder}/manifest.json") as f:
                manifest = json.load(f)[0]
            with open(f"{folder}/{manifest['Config']}") as f:
                image = json.load(f)
            config = image["config"]
            self.assertEqual((image["architecture"], config["User"], config["Entrypoint"], config["Cmd"]),
                             ("arm64", "tandem", ["tandem", "launch_server", "--host", "0.0.0.0"], ["--model-path", "/model"]))
            self.assertEqual((config["Healthcheck"]["Test"], config["StopSignal"], list(config["ExposedPorts"])), (["CMD", "tandem-healthcheck"], "SIGTERM", ["30000/tcp"]))
            root, port = f"{folder}/root", free_port()
            os.mkdir(root)
            for layer in manifest["Layers"]:
                run("tar", "-C", root, "-xf", f"{folder}/{layer}")
            with open(f"{root}/etc/passwd") as f:
                self.assertIn("tandem:*:999:999:", f.read())
            self.assertTrue(os.path.exists(f"{root}/var/lib/dpkg/status.d/libhwloc15"))
            emulated = ["qemu-aarch64", "-L", root]
            with open(f"{folder}/log", "w+") as log:
                server = subprocess.Popen([*emulated, f"{root}/usr/bin/tandem", *config["Entrypoint"][1:], "--allow-no-key", "--model-path", MODEL, "--served-model-name", "tale", "--port", str(port)],
                                          stdout=log, stderr=log)
                try:
                    health = [*emulated, f"{root}/bin/bash", f"{root}/usr/local/bin/tandem-healthcheck", str(port)]
                    wait_until(lambda: subprocess.run(health, capture_output=True).returncode == 0, seconds=300, step=0.5, says=f"{folder}/log")
                    self.assertGreater(len(text_of(story(port))), 10)
                finally:
                    server.terminate()
                    self.assertEqual(server.wait(60 * PATIENCE), 0)
