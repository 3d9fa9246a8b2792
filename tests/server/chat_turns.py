"""A chat of many turns with ids as text: each turn is the one before, its answer, and new tokens (what a user says, or a tool's result)."""
import json
import random
import time
from typing import NamedTuple


class Turn(NamedTuple):
    new: int  # tokens behind the last answer
    prompt: int
    cached: int  # tokens of the prompt that the prefix cache had
    first_s: float  # from the request to its first token


def generate(server, ids, tokens):
    """The answer's last event, and the seconds to its first."""
    connection = server.connection(600)
    begin = time.monotonic()
    body = {"input_ids": ids, "stream": True, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    first, last, line = None, None, response.readline()
    while line:
        if line.startswith(b"data: {"):
            first, last = first or time.monotonic() - begin, line
        line = response.readline()
    connection.close()
    assert response.status == 200 and last, (response.status, last)
    return json.loads(last.removeprefix(b"data: ")), first


def turns(server, n, new, answer, vocab, seed=1):
    """Yields n turns; `new` tokens come in each, `answer` are generated."""
    draw, ids = random.Random(seed), []
    for _ in range(n):
        ids += [draw.randrange(6, vocab) for _ in range(new)]
        said, first_s = generate(server, ids, answer)
        yield Turn(new, said["meta_info"]["prompt_tokens"], said["meta_info"]["cached_tokens"], first_s)
        ids += said["output_ids"]
