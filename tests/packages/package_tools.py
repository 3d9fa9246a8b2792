"""What tests of packages and proxies share: running programs, and those that scripts/deps.sh test unpacks in build/package-tools."""
import os
import re
import shutil
import subprocess

from program import SOURCE

TOOLS = os.path.join(SOURCE, "build/package-tools")


def run(*command, check=True, timeout=600, **more):
    p = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    assert not check or p.returncode == 0, f"{' '.join(map(str, command))}: {p.returncode}\n{p.stdout[-4000:]}\n{p.stderr[-4000:]}"
    return p


def unpacked(package, path):
    """A program of an unpacked package; None where it is not there."""
    program = os.path.join(TOOLS, package, path)
    return program if os.access(program, os.X_OK) else None


def found(package, path):
    """The same, or the system's own."""
    return unpacked(package, path) or shutil.which(os.path.basename(path))


def changed(text, *pairs):
    """The text of a committed file with other ports and names; each pattern must be there."""
    for pattern, new in pairs:
        text, n = re.subn(pattern, lambda m: new, text)
        assert n, f"the file has no {pattern}"
    return text


def nginx_main(folder):
    """A configuration in the foreground that keeps all its files in `folder` and includes site.conf there."""
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/errors;\nevents {{}}\nhttp {{ access_log off; {temporary}\ninclude {folder}/site.conf; }}\n"
