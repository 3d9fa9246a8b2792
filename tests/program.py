"""The program that is tested, the demo model, and cases with a folder of their own: shared by tests in Python."""
import os
import pathlib
import subprocess
import tempfile
import unittest

TANDEM, SOURCE = os.environ["TD_TANDEM"], os.environ["TD_SOURCE_DIR"]
MODEL = os.path.join(SOURCE, "models/tale-v3-14m")


def tandem(*args, timeout=240, stdout=subprocess.PIPE, **more):
    """How the program ended, and what it said, as text. more: of subprocess.run."""
    return subprocess.run([TANDEM, *args], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=timeout, **more)


class FolderTest(unittest.TestCase):
    """Each case has self.folder, an empty one, until it ends."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        """A file of that text, or of those bytes. @return its path"""
        pathlib.Path(self.path(name)).write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.path(name)
