"""Two consumers of KV events: one of our own, stricter than SGLang's subscribers, and Dynamo's indexer from its wheel."""
import json
import subprocess
import sys
import time
import urllib.request
from typing import Literal, Optional, Union

import msgspec
import zmq
from server_process import PATIENCE, free_port, wait_until

PAGE = 128
END = (1 << 64) - 1


class Event(msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: Literal["GPU"]


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: Literal["GPU"]


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    rank: int


class Index:
    """What a worker's prefix cache holds, as its events tell it: hash -> the tokens from the beginning to the end of that page."""

    def __init__(self):
        self.pages, self.seen, self.decoder = {}, None, msgspec.msgpack.Decoder(Batch)

    def apply(self, sequence, payload):
        batch = self.decoder.decode(payload)
        assert batch.rank == 0 and abs(batch.ts - time.time()) < 3600
        for e in batch.events:
            if isinstance(e, AllBlocksCleared):
                self.pages.clear()
            elif isinstance(e, BlockRemoved):
                for h in e.block_hashes:
                    del self.pages[h]  # only what was stored is removed
            else:
                assert len(e.block_hashes) == 1 and e.block_size == len(e.token_ids) == PAGE, e
                assert e.block_hashes[0] not in self.pages
                before = () if e.parent_block_hash is None else self.pages[e.parent_block_hash]
                self.pages[e.block_hashes[0]] = before + tuple(e.token_ids)
        self.seen = sequence


class Consumer:
    """Subscribes, asks for what it missed where there is somebody to ask, and keeps an index. `missed` counts gaps, `stored` messages."""

    def __init__(self, endpoint, replay=None, index=None, topic=b"", receive_hwm=1000):
        self.index, self.topic, self.gaps, self.messages = index or Index(), topic, 0, 0
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.set(zmq.RCVHWM, receive_hwm)
        self.sub.set(zmq.SUBSCRIBE, topic)
        self.sub.connect(endpoint)
        self.dealer = None
        if replay:
            self.dealer = self.context.socket(zmq.DEALER)
            self.dealer.connect(replay)

    def replay(self, first):
        """The messages from a number on, as [(number, message)]."""
        self.dealer.send_multipart([b"", first.to_bytes(8, "big")])
        out = []
        while True:
            if not self.dealer.poll(10000 * PATIENCE):
                raise AssertionError("no answer to a request for replay")
            empty, number, payload = self.dealer.recv_multipart()
            number = int.from_bytes(number, "big")
            assert empty == b""
            if number == END:
                assert payload == b""
                return out
            assert not out or number == out[-1][0] + 1, "a hole in the replay"
            out.append((number, payload))

    def take(self, timeout_s=0.0):
        """Apply one message, if one comes. @return whether one came."""
        if not self.sub.poll(timeout_s * 1000):
            return False
        topic, number, payload = self.sub.recv_multipart()
        number = int.from_bytes(number, "big")
        assert topic == self.topic
        self.messages += 1
        seen = self.index.seen
        if self.dealer and (seen is None or number > seen + 1):
            self.gaps += 1
            for missed, old in self.replay(0 if seen is None else seen + 1):
                self.index.apply(missed, old)
        if self.index.seen is None or number > self.index.seen:
            self.index.apply(number, payload)
        return True

    def settle(self, until, timeout_s=20):
        """Take messages until the index is as it should be."""
        end = time.monotonic() + timeout_s * PATIENCE
        while not until(self.index):
            self.take(0.05)
            assert time.monotonic() < end, f"{len(self.index.pages)} pages in the index, gaps {self.gaps}, messages {self.messages}"
        while self.take(0.1):
            pass
        assert until(self.index), "it did not stay so"

    def close(self):
        self.context.destroy(linger=0)


class Dynamo:
    """Dynamo's standalone indexer."""

    def __init__(self):
        self.port = free_port()
        code = f"from dynamo._core import run_kv_indexer as r; r(['--port', '{self.port}', '--block-size', '{PAGE}'])"
        self.log = open("/dev/null", "w")
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=self.log, stderr=self.log)
        end = time.monotonic() + 300
        while True:
            try:
                self.call("/workers")
                break
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "Dynamo's indexer did not start"
                time.sleep(0.1)

    def call(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=json.dumps(body).encode() if body else None, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10 * PATIENCE) as answer:
            return json.loads(answer.read())

    def register(self, instance, endpoint, replay=None):
        body = {"instance_id": instance, "endpoint": endpoint, "model_name": "tale", "block_size": PAGE, "dp_rank": 0}
        self.call("/register", {**body, "replay_endpoint": replay} if replay else body)

    def unregister(self, instance):
        self.call("/unregister", {"instance_id": instance, "model_name": "tale"})

    def hashes(self):
        """The pages in its index, by our hashes."""
        events = self.call("/dump").get("tale:default", {}).get("events", [])
        return {b["block_hash"] for e in events for b in e["event"]["data"]["stored"]["blocks"]}

    def matched(self, tokens):
        """Tokens of a prompt that it takes the worker to have."""
        scores = self.call("/query", {"model_name": "tale", "token_ids": list(tokens), "block_size": PAGE})["scores"]
        return max((v for ranks in scores.values() for v in ranks.values()), default=0)

    def settle(self, until):
        wait_until(lambda: until(self), says="what Dynamo's index has")

    def close(self):
        self.process.terminate()
        self.process.wait(20 * PATIENCE)
        self.log.close()
