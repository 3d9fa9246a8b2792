"""Takes the place of tests/utils.py in vLLM's source: a RemoteOpenAIServer is this server, and its `vllm` is made of empty names."""
import openai
import anthropic
from launch import free_port, launch

ROCM_EXTRA_ARGS = []
VLLM_PATH = ""
# vLLM's flags that are passed on as they are.
TAKEN = ("--api-key", "--seed")


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model, vllm_serve_args=(), **others):
        flags, names, context = [], [model], 2048
        for i, word in enumerate(vllm_serve_args):
            if word == "--served-model-name":
                names = [vllm_serve_args[i + 1]]
            elif word == "--max-model-len":
                context = int(vllm_serve_args[i + 1])
            elif word in TAKEN:
                flags += [word, vllm_serve_args[i + 1]]
        self.host, self.port = "127.0.0.1", free_port()
        self.proc = launch(self.port, names, context, *flags)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.proc.terminate()
        self.proc.wait()

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return "/".join([self.url_root, *parts])

    def get_client(self, **more):
        return openai.OpenAI(**{"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 600, **more})

    def get_async_client(self, **more):
        return openai.AsyncOpenAI(**{"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 600, **more})

    def get_client_anthropic(self, **more):
        return anthropic.Anthropic(**{"base_url": self.url_for(), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 600, **more})

    def get_async_client_anthropic(self, **more):
        return anthropic.AsyncAnthropic(**{"base_url": self.url_for(), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 600, **more})
