"""Packages of empty names, so that test files can be imported without those packages, which are large. The demo model's tokenizer is a real one."""
import importlib.abc
import importlib.machinery
import os
import sys
import types
import unittest.mock

import tokenizers

EMPTY = tuple(os.environ["TD_SUITES_EMPTY"].split())


class Tokenizer:
    def __init__(self):
        self.of = tokenizers.Tokenizer.from_file(os.environ["TD_SUITES_MODEL"] + "/tokenizer.json")

    def encode(self, text, add_special_tokens=True):
        return self.of.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids, skip_special_tokens=False):
        return self.of.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def __call__(self, text, **more):
        return types.SimpleNamespace(input_ids=self.encode(text))


class Names(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "get_tokenizer":
            return lambda *args, **more: Tokenizer()
        if name.endswith("Error"):
            return type(name, (Exception,), {})
        return unittest.mock.MagicMock(name=f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if any(f"{name}.".startswith(f"{empty}.") for empty in EMPTY) else None

    def create_module(self, spec):
        return Names(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
