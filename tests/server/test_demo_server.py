"""`tandem launch_server` as a user has it, on the demo model, driven by the real openai client."""
import concurrent.futures
import json
import os
import socket
import subprocess
import tempfile
import unittest

import openai
from server_process import MODEL, TANDEM, OpenaiTest, Server, demo_server, free_port, wait_until

ASK = [{"role": "user", "content": "Tell me a story about a dragon."}]


def start(*flags, **more):
    return Server(*flags, program=[TANDEM], model=MODEL, **more)


class Demo(OpenaiTest):
    start = staticmethod(lambda: demo_server("--served-model-name", "tale"))

    def chat(self, **more):
        return self.client.chat.completions.create(model="tale", messages=ASK, **{"max_tokens": 24, **more})

    def complete(self, prompt, **more):
        return self.client.completions.create(model="tale", prompt=prompt, **{"max_tokens": 12, "temperature": 0, **more})

    def test_chat(self):
        whole = self.chat(temperature=0)
        text = whole.choices[0].message.content
        self.assertGreater(len(text.split()), 5)
        self.assertEqual((whole.choices[0].finish_reason, whole.usage.completion_tokens), ("length", 24))
        chunks = list(self.chat(temperature=0, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text)
        self.assertEqual(chunks[-1].usage.total_tokens, whole.usage.total_tokens)
        self.assertGreater(len(chunks), 4)  # role, finish, usage, and more than one with text

    def test_prefix_cache(self):
        text = self.story(words=400)
        cold = self.complete(text, logprobs=1)
        warm = self.complete(text, logprobs=1)
        pages = cold.usage.prompt_tokens // 128
        self.assertGreater(pages, 1)
        self.assertEqual((cold.usage.prompt_tokens_details.cached_tokens, warm.usage.prompt_tokens_details.cached_tokens), (0, 128 * pages))
        self.assertEqual(warm.choices[0].text, cold.choices[0].text)
        self.assertEqual(warm.choices[0].logprobs.token_logprobs, cold.choices[0].logprobs.token_logprobs)
        self.assertGreaterEqual(self.server.metric("tandem:cached_kv_tokens"), 128 * pages)
        self.assertEqual(self.server.request("POST", "/flush_cache")[0], 200)
        self.assertEqual(self.complete(text).usage.prompt_tokens_details.cached_tokens, 0)

    @staticmethod
    def story(words):
        return " ".join(["The king gave", "the youngest son", "a golden key", "and a", "horse that", "could speak."][i % 6] for i in range(words // 3))

    def test_the_template_is_the_prompt(self):
        ids = self.server.request("POST", "/tokenize", {"messages": ASK})[1]["tokens"]
        self.assertEqual((ids[:2], ids[-1]), ([0, 2], 3))  # BOS <|user|> … <|assistant|>
        self.assertEqual(self.complete(ids, max_tokens=24).choices[0].text, self.chat(temperature=0).choices[0].message.content)

    def test_tools_that_the_template_does_not_show(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        r = self.chat(max_tokens=2, tools=[tool])
        self.assertEqual(r.warnings, ["'tools' have no effect: the chat template does not show them to the model."])

    def test_prompt_forms(self):
        ids = self.server.request("POST", "/tokenize", {"prompt": "Once upon a time"})[1]["tokens"]
        text = self.complete("Once upon a time").choices[0].text
        self.assertEqual(self.complete(ids).choices[0].text, text)
        both = self.complete(["Once upon a time", "The king"]).choices
        self.assertEqual((both[0].text, both[1].index), (text, 1))
        self.assertEqual([c.text for c in self.complete([ids, ids]).choices], [text, text])
        self.assertEqual(self.server.request("POST", "/detokenize", {"tokens": ids})[1]["text"], "Once upon a time")

    def test_echo_logprobs(self):
        """A prompt's logprobs are those its tokens have when they are generated."""
        r = self.complete("Once upon a time", logprobs=2, extra_body={"return_token_ids": True})
        made = r.choices[0]
        prompt = self.server.request("POST", "/tokenize", {"prompt": "Once upon a time"})[1]["tokens"]
        echo = self.complete(prompt + made.token_ids, echo=True, logprobs=2, max_tokens=0).choices[0]
        self.assertEqual(echo.text, "Once upon a time" + made.text)
        self.assertEqual((echo.logprobs.token_logprobs[0], echo.finish_reason), (None, "length"))
        n = len(prompt)
        self.assertEqual(echo.logprobs.tokens[n:], made.logprobs.tokens)
        for a, b in zip(echo.logprobs.token_logprobs[n:], made.logprobs.token_logprobs):
            self.assertAlmostEqual(a, b, places=3)
        for tokens, offset in zip(echo.logprobs.tokens[1:], echo.logprobs.text_offset[1:]):
            self.assertEqual(echo.text[offset:offset + len(tokens)], tokens)
        for token, logprob, top in zip(made.logprobs.tokens, made.logprobs.token_logprobs, made.logprobs.top_logprobs):
            self.assertEqual(max(top, key=top.get), token, "greedy takes the best")
            self.assertEqual(top[token], logprob)

    def test_chat_logprobs(self):
        content = self.chat(temperature=0, logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertEqual(len(content), 24)
        for c in content:
            self.assertEqual((len(c.top_logprobs), bytes(c.bytes).decode(errors="replace")), (3, c.token))
            self.assertLessEqual(c.logprob, 0)
            self.assertEqual(c.top_logprobs[0].token, c.token)

    def test_seeds(self):
        one, again, other = (self.chat(temperature=1, seed=s).choices[0].message.content for s in (7, 7, 8))
        self.assertEqual(one, again)
        self.assertNotEqual(one, other)
        three = self.chat(temperature=1, seed=7, n=3).choices
        self.assertEqual([three[0].message.content, three[1].message.content], [one, other])

    def test_stop(self):
        text = self.complete("Once upon a time", max_tokens=40).choices[0].text
        word = text.split()[3]
        r = self.complete("Once upon a time", max_tokens=40, stop=[word]).choices[0]
        self.assertEqual((r.text, r.finish_reason, r.matched_stop), (text[:text.index(word)], "stop", word))

    def test_ignore_eos(self):
        r = self.complete("The end.", max_tokens=200, extra_body={"ignore_eos": True})
        self.assertEqual(r.usage.completion_tokens, 200)

    def test_concurrent(self):
        """A request's tokens do not depend on who else is there."""
        prompts = [f"The {w}" for w in "king queen boy girl dog cat bird fish".split()]
        alone = [self.complete(p).choices[0].text for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda p: self.complete(p).choices[0].text, prompts))
        self.assertEqual(together, alone)

    def test_client_leaves(self):
        body = json.dumps({"prompt": "Once", "max_tokens": 1900, "ignore_eos": True, "stream": True}).encode()
        s = socket.create_connection(("127.0.0.1", self.server.port))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        before = self.server.metric("sglang:num_aborted_requests_total")
        while b"data:" not in s.recv(1000):
            pass
        s.close()
        self.server.wait_metric("sglang:num_aborted_requests_total", before + 1)
        self.assertEqual(self.server.metric("sglang:num_running_reqs"), 0)
        self.assertTrue(self.chat().choices[0].message.content)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="other", messages=ASK)
        with self.assertRaises(openai.BadRequestError) as e:
            self.complete("word " * 4000)
        self.assertEqual(e.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            self.complete("x", temperature=-1)
        with self.assertRaises(openai.BadRequestError):
            self.complete([5000])
        self.assertEqual(self.server.request("POST", "/v1/completions", raw="{")[0], 400)

    def test_info(self):
        info = self.server.request("GET", "/get_server_info")[1]
        self.assertEqual((info["architecture"], info["context_length"]), ("DeepseekV3ForCausalLM", 2048))
        self.assertEqual(info["weight_bytes"], info["device_weight_bytes"] + info["expert_weight_bytes"])
        self.assertGreater(min(info[k] for k in ("device_weight_bytes", "expert_weight_bytes", "kv_bytes", "scratch_bytes")), 0)
        rank = self.server.request("GET", "/v1/loads")[1]["loads"][0]
        self.assertEqual((rank["num_waiting_reqs"], rank["num_total_tokens"]), (0, rank["num_used_tokens"]))
        self.assertEqual(self.server.request("GET", "/get_model_info")[1]["preferred_sampling_params"]["temperature"], 0.7)
        self.assertEqual(self.server.request("GET", "/health_generate")[0], 200)
        self.assertGreater(self.server.metric("sglang:generation_tokens_total"), 0)

    def test_busy_port(self):
        p = subprocess.run([TANDEM, "launch_server", "--model-path", MODEL, "--port", str(self.server.port)], capture_output=True, text=True, timeout=120)
        self.assertEqual(p.returncode, 1)
        self.assertIn(f"port {self.server.port} on 127.0.0.1 is in use", p.stderr)


class Launch(unittest.TestCase):
    def test_closed_streams(self):
        """No file that the program opens becomes standard output or error, where what is printed would go into it."""
        port = free_port()
        server = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", TANDEM, "launch_server", "--model-path", MODEL, "--port", str(port)])
        try:
            wait_until(lambda: socket.create_connection(("127.0.0.1", port)).close() or True, 60)
            self.assertEqual([os.readlink(f"/proc/{server.pid}/fd/{i}") for i in range(3)], ["/dev/null"] * 3)
        finally:
            server.terminate()
            server.wait()

    def test_ak_command(self):
        """The command of the 2-card A+K deployment, device and paths changed (and a free port, and no key)."""
        packed = tempfile.TemporaryDirectory()
        self.addCleanup(packed.cleanup)
        weights = os.path.join(packed.name, "tale-int4")
        subprocess.run([TANDEM, "quantize", "--model-path", MODEL, "--output", weights, "--subpool-count", "1"], check=True, capture_output=True, timeout=120)
        with start("--host", "0.0.0.0", "--allow-no-key", "--port", "0", "--attention-backend", "ascend", "--chunked-prefill-size", "8192", "--tensor-parallel-size", "1",
                   "--device", "host", "--trust-remote-code", "--mem-fraction-static", "0.92", "--disable-radix-cache", "--max-total-tokens",
                   "190000", "--cpu-weight-path", weights, "--cpuinfer", "2", "--subpool-count", "1", "--num-gpu-experts", "0", "--quantization",
                   "w8a8_int8", "--served-model-name", "DeepSeek-R1-W8A8", "--enable-defer") as server:
            server.wait_log("the attention backend 'ascend' is not there on device 'host'")
            status, answer, _ = server.request("POST", "/v1/chat/completions", {"model": "DeepSeek-R1-W8A8", "messages": ASK, "max_tokens": 16})
            self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 16))

    def test_experts_on_the_device(self):
        """All routed experts are on the device: the tokens of the CPU's experts in int8. Packed ones are refused."""
        tokens = []
        for flags in (("--expert-quantization", "int8"), ("--num-gpu-experts", "16")):
            with start("--quantization", "w8a8_int8", *flags) as server:
                status, answer, _ = server.request("POST", "/generate", {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 60}})
                self.assertEqual(status, 200)
                tokens.append(answer["output_ids"])
                info = server.request("GET", "/server_info")[1]
        self.assertEqual(tokens[0], tokens[1])
        with tempfile.TemporaryDirectory() as folder:
            packed = os.path.join(folder, "packed")
            subprocess.run([TANDEM, "quantize", "--model-path", MODEL, "--output", packed, "--subpool-count", "1"], check=True, capture_output=True, timeout=120)
            answers = []
            for how in ("keep", "drop"):
                with start("--model-path", packed, "--device", "apart", "--max-total-tokens", "1024", "--subpool-count", "1", "--decode-log-interval", "5",
                           "--num-gpu-experts", "8", "--expert-memory", how) as server:
                    ask = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 60}}
                    answers.append(server.request("POST", "/generate", ask)[1]["output_ids"])
                    self.assertEqual(server.metric("tandem:expert_dropped_bytes") > 0, how == "drop")
                    if how == "drop":
                        server.wait_log_match(r"the device has room for 40 of 80, those of most use; the CPU has the others(.|\n)* uploads, \d+ read again\n")
            self.assertEqual(answers[0], answers[1])
        self.assertEqual(info["kt_num_gpu_experts"], 16)
        for flags, words in ((("--num-gpu-experts", "17"), "num-gpu-experts 17: a layer has 16 routed experts"),
                             (("--num-gpu-experts", "1"), "num-gpu-experts 1: a token chooses 4 experts of a layer"),
                             (("--num-gpu-experts", "16", "--cpu-weight-path", "/nowhere"), "packed for the CPU"),
                             (("--stream-experts",), "stream-experts needs some of a layer's experts on the device: add num-gpu-experts"),
                             (("--expert-memory", "drop"), "expert-memory drop: no experts are on the device: add num-gpu-experts"),
                             (("--num-gpu-experts", "8", "--expert-memory", "drop"), "expert-memory drop: there are no packed files from which experts could be read again")):
            p = subprocess.run([TANDEM, "launch_server", "--model-path", MODEL, "--port", "0", *flags], capture_output=True, text=True, timeout=120)
            self.assertEqual((p.returncode, p.stdout), (1, ""))
            self.assertIn(words, p.stderr)

    def test_experts_that_move(self):
        """Half of the experts on the device, or what fits there: the same tokens. Hits and uploads are told."""
        tokens = []
        for flags in ((), ("--num-gpu-experts", "8"), ("--num-gpu-experts", "auto"), ("--num-gpu-experts", "8", "--stream-experts")):
            with start("--device", "apart", "--quantization", "w8a8_int8", "--max-total-tokens", "1024", "--decode-log-interval", "5", *flags) as server:
                def ask():
                    status, answer, _ = server.request("POST", "/generate", {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 60}})
                    self.assertEqual(status, 200)
                    return answer["output_ids"]
                tokens.append(ask())
                if not flags:
                    self.assertNotIn("tandem:resident_expert", server.request("GET", "/metrics")[1])
                    continue
                slots, info = server.metric("tandem:resident_expert_slots"), server.request("GET", "/server_info")[1]
                self.assertEqual((slots, info["kt_num_gpu_experts"]), (40, 8) if flags[1] == "8" else (80, "auto"))
                wait_until(lambda: server.metric("tandem:expert_hits_total") > 0 or not ask(), step=0, says="an upload has ended")
                hits, misses = (server.metric(f"tandem:expert_{name}_total") for name in ("hits", "misses"))
                self.assertGreater(misses, 0)
                self.assertEqual((hits + misses) % 4, 0)
                self.assertRegex(server.request("GET", "/metrics")[1], r'tandem:expert_uploads_total\{[^}]*result="failed"\} 0\n')
                self.assertLessEqual(server.metric("tandem:resident_experts"), slots)
                if "--stream-experts" in flags:
                    server.wait_log_match(r"streamed experts: .* they pay from \d+ rows of a step on")
                    self.assertRegex(server.request("GET", "/metrics")[1], r'tandem:streamed_uploads_total\{[^}]*result="failed"\} 0\n')
                server.wait_log_match(r"the device has room for \d+ of 80, those of most use(.|\n)* % of experts on the device, \d+ uploads\n")
        self.assertEqual(tokens[0], tokens[1])
        self.assertEqual(tokens[0], tokens[2])
        self.assertEqual(tokens[0], tokens[3])

    def test_key_and_shutdown(self):
        server = start("--api-key", "k", "--quantization", "none", "--shutdown-grace", "1000")
        key = {"Authorization": "Bearer k"}
        self.assertEqual(server.request("GET", "/v1/models")[0], 401)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            before = server.metric("sglang:num_requests_total", headers=key)
            job = pool.submit(server.request, "POST", "/v1/completions", {"prompt": "Once", "max_tokens": 500, "ignore_eos": True},
                              key, timeout=60)
            server.wait_metric("sglang:num_requests_total", before + 1, headers=key)  # it need not run any more where a core is fast
            self.assertEqual(server.stop(timeout=60), 0)
            status, answer, _ = job.result()
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 500))

    def test_bad_folder(self):
        for path in ("/no/such/model", os.path.dirname(__file__)):
            p = subprocess.run([TANDEM, "launch_server", "--model-path", path, "--port", "0"], capture_output=True, text=True, timeout=120)
            self.assertEqual((p.returncode, p.stdout), (1, ""))
            self.assertIn(path, p.stderr)
