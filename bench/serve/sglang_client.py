"""`python -m sglang.bench_serving` as published, in a venv without torch.

The benchmark's own files (sglang/benchmark/) are a plain HTTP client, but importing the package first imports the whole server, and with it
torch and CUDA libraries of several GB. Here the packages above the client stand without what their __init__ would import.
"""
import os
import runpy
import sys
import types


def package(name, folder=None, **names):
    module = types.ModuleType(name)
    if folder:
        module.__path__ = [folder]
    vars(module).update(names)
    sys.modules[name] = module


root = next(os.path.join(p, "sglang") for p in sys.path if os.path.isdir(os.path.join(p, "sglang", "benchmark")))
package("sglang", root)
package("sglang.srt.utils", os.path.join(root, "srt/utils"))
package("sglang.srt.disaggregation.utils", FAKE_BOOTSTRAP_HOST="2.2.2.2")  # used by --fake-prefill alone
sys.path.pop(0)                                                             # this folder
runpy.run_module("sglang.bench_serving", run_name="__main__", alter_sys=True)
