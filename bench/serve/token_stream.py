"""A request over raw token ids that notes when each of its tokens came."""
import json
import random
import threading
import time
import urllib.request


def random_ids(n, seed, vocab):
    draw = random.Random(seed)
    return [draw.randrange(5, vocab) for _ in range(n)]


class Stream(threading.Thread):
    """Started at once; `times` are seconds from the request to each token so far."""

    def __init__(self, server, prompt, n_tokens):
        super().__init__(daemon=True)
        body = {"model": server.model, "prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                "return_token_ids": True}
        self.request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        self.begin, self.times, self.leaving, self.error = time.perf_counter(), [], False, None
        self.start()

    def run(self):
        try:
            with urllib.request.urlopen(self.request) as answer:
                for line in answer:
                    if line.startswith(b"data: {"):  # an event has the tokens that came since the last one was written
                        ids = json.loads(line[6:])["choices"][0].get("token_ids") or []
                        self.times += [time.perf_counter() - self.begin] * len(ids)
                    if self.leaving:
                        return
        except (OSError, KeyError) as e:  # KeyError: an error event
            self.error = f"{type(e).__name__}: {e}"

    def wait_tokens(self, n):
        while len(self.times) < n and self.is_alive():
            time.sleep(0.01)
        if len(self.times) < n:
            raise SystemExit(f"a stream ended after {len(self.times)} tokens: {self.error}")
        return self.times

    def leave(self):
        self.leaving = True
        self.join()


def stream(server, prompt, n_tokens):
    """Seconds from the request to each token, once all are there."""
    return Stream(server, prompt, n_tokens).wait_tokens(n_tokens)
