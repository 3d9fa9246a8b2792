"""Takes the place of utils.py in llama.cpp's tools/server/tests: theirs, but a ServerProcess starts this server with the flags that mean the same."""
import sys
import types

sys.modules["wget"] = types.ModuleType("wget")  # fetches models, of which the demo model takes the place
import their_utils
from launch import free_port, launch
from their_utils import *
from their_utils import ServerPreset, ServerProcess, server_instances


# llama.cpp takes any name for its model; these are the ones that its tests use.
NAMES = ["davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "llama-2", "test", "test-model", "gpt-4.1"]


def start(self, timeout_seconds=None):
    self.server_port = free_port()
    flags = ["--max-running-requests", self.n_slots or 4]
    if self.api_key:
        flags += ["--api-key", self.api_key]
    if self.seed is not None:
        flags += ["--seed", max(self.seed, 0)]
    self.process = launch(self.server_port, [self.model_alias or "tinyllama-2", *NAMES], (self.n_ctx or 512) // (self.n_slots or 1), *flags)
    self.ready = True
    server_instances.add(self)


ServerProcess.start = start
ServerPreset.load_all = staticmethod(lambda: None)
