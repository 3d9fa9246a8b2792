"""The console: its files and headers, and the page in a headless Chromium, over a server whose answers repeat the question."""
import http.client
import http.server
import json
import os
import re
import socket
import threading
import time
import unittest

from selenium.webdriver.common.keys import Keys

from console_browser import Page, start_browser
from server_process import Gate, Server, free_port, wait_until

SOURCE = os.environ["TD_SOURCE_DIR"]
FOLDER = os.path.join(SOURCE, "server", "console")
FILES = sorted(name for name in os.listdir(FOLDER) if name.endswith((".html", ".css", ".js", ".svg")))
PAGE_BYTES_MAX = 150_000
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
POLICY = {"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self'", "connect-src": "'self'", "base-uri": "'none'", "form-action": "'none'",
          "frame-ancestors": "'none'", "require-trusted-types-for": "'script'", "trusted-types": "'none'"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


class Files(unittest.TestCase):
    def setUp(self):
        self.server = self.start()

    def start(self, *flags):
        server = Server(*flags)
        self.addCleanup(server.__exit__, None, None, None)
        return server

    def test_page_for_browsers_only(self):
        status, page, headers = self.server.request("GET", "/", headers=HTML)
        self.assertEqual((status, headers["Content-Type"], headers["Vary"]), (200, "text/html; charset=utf-8", "Accept"))
        self.assertIn("<title>Tandem</title>", page)
        for accept in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
            status, answer, _ = self.server.request("GET", "/", headers=accept)
            self.assertEqual((status, answer["error"]["code"]), (404, "not_found"), accept)
        self.assertEqual(self.server.request("POST", "/", {}, headers=HTML)[0], 405)
        for path in ("/console", "/console/", "/console/none.js", "/console/../index.html", "/console/index.html/", "/console/%2e%2e/x"):
            self.assertEqual(self.server.request("GET", path, headers=HTML)[0], 404, path)

    def test_headers_of_every_file(self):
        for path in ["/", *(f"/console/{name}" for name in FILES)]:
            status, _, headers = self.server.request("GET", path, headers=HTML)
            self.assertEqual(status, 200, path)
            self.assertEqual(dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")), POLICY)
            self.assertEqual([headers[name] for name in ("X-Content-Type-Options", "Referrer-Policy", "X-Frame-Options", "Cross-Origin-Resource-Policy", "Cross-Origin-Opener-Policy")],
                             ["nosniff", "no-referrer", "DENY", "same-origin", "same-origin"])
            self.assertEqual(headers.get_all("Cache-Control"), ["no-cache"])
            status, body, again = self.server.request("GET", path, headers={**HTML, "If-None-Match": headers["ETag"]})
            self.assertEqual((status, body, again["ETag"]), (304, "", headers["ETag"]))
            self.assertEqual(self.server.request("GET", path, headers={**HTML, "If-None-Match": '"other"'})[0], 200)
        self.assertEqual(self.server.request("GET", "/health")[2].get_all("Cache-Control"), ["no-store"], "what other routes answer is kept nowhere")

    def test_files_are_those_of_the_source(self):
        total = 0
        for name in FILES:
            with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
                text = f.read()
            total += len(text.encode())
            self.assertEqual(self.server.request("GET", f"/console/{name}")[1], text, name)
            elsewhere = [a for a in re.findall(r"""(?:src|href|url\(|from|import\()\s*=?\s*["']?(https?:|//)""", text)]
            self.assertEqual(elsewhere, [], f"{name} loads something from elsewhere")
            self.assertNotRegex(text, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", name)
        self.assertLess(total, PAGE_BYTES_MAX)

    def test_languages_have_the_same_words(self):
        with open(os.path.join(FOLDER, "words.js"), encoding="utf-8") as f:
            english, chinese = f.read().split("\n  zh: {")
        keys = lambda text: re.findall(r"^    (\w+): (.*),$", text, re.M)
        self.assertEqual([k for k, _ in keys(english)], [k for k, _ in keys(chinese)])
        self.assertGreater(len(keys(english)), 100)
        for (key, en), (_, zh) in zip(keys(english), keys(chinese)):
            self.assertEqual(sorted(re.findall(r"\{(\w+)\}", en)), sorted(re.findall(r"\{(\w+)\}", zh)), key)

    def test_all_words_are_there_and_used(self):
        texts = {}
        for name in FILES:
            with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
                texts[name] = f.read()
        words = set(re.findall(r"^    (\w+): ", texts.pop("words.js"), re.M))
        source = "\n".join(texts.values())
        wanted = set(re.findall(r"""(?:\bt\(|say\([^,()]+(?:\([^()]*\))?, |announce\(|button\(|complain\(|data-t(?:-\w+)?=)"(\w+)\"""", source))
        self.assertGreater(len(wanted), 40)
        self.assertEqual(wanted - words, set(), "no such words")
        named = set(re.findall(r'"(\w+)"', source))
        made = ("state_", "theme_", "plot_", "column_", "row_", "fact_")  # with a name behind it
        self.assertEqual({word for word in words - named if not word.startswith(made)}, set(), "nobody says them")

    def test_needs_no_key_itself(self):
        server = self.start("--api-key", "secret")
        self.assertEqual(server.request("GET", "/", headers=HTML)[0], 200)
        self.assertEqual(server.request("GET", "/console/api.js")[0], 200)
        for path in ("/", "/metrics", "/v1/requests", "/v1/models", "/server_info"):
            self.assertEqual(server.request("GET", path)[0], 401, path)

    def test_off_switch(self):
        server = self.start("--disable-console")
        for path in ("/", "/console/console.js"):
            self.assertEqual(server.request("GET", path, headers=HTML)[0], 404, path)
        self.assertTrue(server.request("GET", "/server_info")[1]["disable_console"])


class Browser(unittest.TestCase):
    flags = ("--context-length", "100000")

    @classmethod
    def setUpClass(cls):
        cls.page = Page(start_browser())
        cls.addClassCleanup(cls.page.driver.quit)

    def setUp(self):
        self.expected = []  # patterns of what the browser's log may have
        self.page.cdp("Emulation.clearDeviceMetricsOverride")
        self.page.colours("light")
        self.page.driver.get_log("browser")

    def tearDown(self):
        # The server ends next: a page that still asked it for /health would write into the log of the case after this one.
        self.addCleanup(self.page.driver.get_log, "browser")
        self.addCleanup(self.page.driver.get, "about:blank")
        log = [entry["message"] for entry in self.page.driver.get_log("browser") if entry["level"] != "INFO"]
        self.assertEqual([m for m in log if not any(re.search(p, m) for p in self.expected)], [], "the browser's log")

    def start(self, *flags, **more):
        server = Server(*self.flags, *flags, **more)
        self.addCleanup(server.__exit__, None, None, None)
        return server

    def shut_gate(self):
        """For the environment of a server that waits until self.gate is opened."""
        self.gate = Gate()
        return self.gate.env

    def open(self, *flags, view="", **more):
        self.server = self.start(*flags, **more)
        self.page.open(self.server.port, view)
        self.page.wait(lambda: self.page.text("#state") == "Ready", "ready")
        return self.page


class Chat(Browser):
    def test_streams_and_ends(self):
        page = self.open(env=self.shut_gate())
        self.assertEqual((page.text("#model-name"), page.text("#empty-title")), ("fake", "Ask fake something."))
        words = "!halt " + "one two three four five " * 5
        page.send(words)
        page.wait(lambda: page.text(".assistant .markdown") == "!halt", "the answer is shown while it comes")
        self.assertTrue(page.all("[aria-busy]"))
        self.gate.open()
        page.answered()
        self.assertEqual(page.text(".assistant .markdown"), words.strip())
        self.assertRegex(page.text(".assistant .meta"), r"127 generated · first token after .*, then .* a token \([\d.]+ tokens/s\)")
        self.assertFalse(page.visible("#empty"))
        page.send("and again")
        page.answered()
        self.assertEqual([len(page.all(s)) for s in (".user", ".assistant")], [2, 2])
        self.assertEqual(page.text("#announcement"), "The answer is complete: 10 tokens.")

    def test_turns_and_options_reach_the_server(self):
        page = self.open()
        page.run("""window.sent = []; const own = window.fetch;
                    window.fetch = (url, options) => { if (options.body) sent.push({ url, body: JSON.parse(options.body) }); return own(url, options); }""")
        page.click("#options summary")
        for name, value in (("system", "Be short."), ("temperature", "0.5"), ("top_p", "0.9"), ("top_k", "40"), ("min_p", "0.05"), ("seed", "7"), ("max_tokens", "5")):
            page.fill(f"#option-{name}", value)
        page.run("document.getElementById('option-thinking').value = 'off'")
        page.ask("first question")
        notes = page.run("return [...document.querySelectorAll('.assistant .note')].map(n => n.textContent)")
        self.assertEqual(notes, ["The answer ends here because it has reached its most tokens.", "Thinking cannot be switched on or off: the chat template has no switch for it."])
        page.ask("second")
        url, body = page.run("return [sent[1].url, sent[1].body]")
        self.assertEqual(url, "v1/chat/completions")
        first = body["messages"].pop(2)
        self.assertEqual((first["role"], len(first["content"])), ("assistant", 5))
        self.assertEqual(body, {"model": "fake", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7,
                                "max_tokens": 5, "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
                                "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "first question"}, {"role": "user", "content": "second"}]})

    def test_wrong_options_are_named(self):
        page = self.open()
        page.click("#options summary")
        for name, value, sentence in (("temperature", "3", "Temperature must be a number from 0 to 2."), ("top_k", "1.5", "Top-k must be a number"),
                                      ("tools", "[{", "The tools must be a JSON list: ")):
            page.fill(f"#option-{name}", value)
            page.fill("#message", "hello")
            page.keys(Keys.ENTER)
            page.wait(lambda: page.visible("#problem"), "the problem is told")
            self.assertTrue(page.text("#problem").startswith(sentence), page.text("#problem"))
            self.assertEqual((page.one("#message").get_attribute("value"), page.all(".turn")), ("hello", []), "nothing is sent, and nothing lost")
            page.fill(f"#option-{name}", "")
        page.fill("#option-tools", '{"no": "list"}')
        page.fill("#option-temperature", "")
        self.expected = ["400"]
        page.send("hello")  # the server's own sentence
        page.answered()
        self.assertIn("tools", page.text(".assistant .error"))

    def test_stop(self):
        page = self.open(env=self.shut_gate())
        for stop in (lambda: page.keys(Keys.ESCAPE), lambda: page.click("#send")):
            page.send("!halt and so on")
            page.wait(lambda: page.text(".assistant .markdown") == "!halt", "it has begun")
            self.assertEqual(page.text("#send"), "Stop")
            aborted = self.server.metric("sglang:num_aborted_requests_total")
            stop()
            page.answered()
            self.assertEqual((page.text(".assistant .note"), page.text("#send")), ("Stopped here.", "Send"))
            self.server.wait_metric("sglang:num_aborted_requests_total", aborted + 1)
            self.assertEqual(page.text(".assistant .markdown"), "!halt")
            self.server.wait_metric("sglang:num_running_reqs", 0)

    def test_regenerate_and_edit(self):
        page = self.open()
        page.click("#options summary")
        page.fill("#option-temperature", "1")
        first = page.ask("some letters that change their case")
        page.ask("second question")
        page.run("document.querySelectorAll('.assistant')[0].querySelector('.actions button:last-child').click()")
        page.wait(lambda: len(page.all(".turn")) == 2, "what came after is forgotten")
        page.answered()
        again = page.text(".assistant .markdown")
        self.assertEqual(again.lower(), first.lower())
        self.assertNotEqual(again, first, "another seed")
        page.click(".user .actions button:last-child")
        self.assertEqual(page.run("return document.activeElement.value"), "some letters that change their case")
        page.fill(".edit textarea", "edited")
        page.keys(Keys.ESCAPE)
        self.assertEqual(page.all(".edit"), [])
        page.click(".user .actions button:last-child")
        page.fill(".edit textarea", "edited")
        page.keys(Keys.ENTER)
        page.wait(lambda: (page.text(".assistant .markdown") or "").lower() == "edited" and not page.all("[aria-busy]"), "the edited question is answered")
        self.assertEqual((page.text(".user .body"), len(page.all(".turn"))), ("edited", 2))
        page.click("#new-chat")
        page.wait(lambda: page.visible("#empty"), "empty again")

    def test_copy(self):
        page = self.open()
        page.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        page.ask("```c\nint x;\n```\ntext")
        page.click("figure.code button")
        page.wait(lambda: page.text("figure.code button") == "Copied", "copied")
        self.assertEqual(page.driver.execute_async_script("const done = arguments[0]; navigator.clipboard.readText().then(done, (e) => done(String(e)))"), "int x;")

    def hand_over(self, event, *files):
        """Drops or pastes files: names, with a picture of a colour for those that end in .png."""
        self.page.driver.execute_async_script("""
            const [kind, names, done] = arguments;
            const transfer = new DataTransfer();
            const fileOf = async (name) => {
              const canvas = new OffscreenCanvas(64, 96);
              canvas.getContext("2d").fillRect(8, 8, 20, 20);
              return new File([name.endsWith(".png") ? await canvas.convertToBlob() : "no picture"], name);
            };
            (async () => {
              for (const name of names) transfer.items.add(await fileOf(name));
              const event = kind === "paste" ? new ClipboardEvent(kind, { clipboardData: transfer, bubbles: true, cancelable: true })
                                             : new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true });
              document.getElementById("message").dispatchEvent(event);
              done();
            })();""", event, list(files))

    def test_pictures(self):
        """Dropped, pasted and chosen; taken away; sent with a text and without; kept when the text is edited."""
        page = self.open(model="/models/fake-images")
        shown = lambda n: page.wait(lambda: len(page.all("#pictures canvas")) == n, f"{n} pictures")
        self.assertFalse(page.visible("#pictures"))
        self.hand_over("drop", "a.png", "b.png")
        shown(2)
        self.hand_over("paste", "c.png")
        shown(3)
        page.one("#picture-files").send_keys(os.path.join(SOURCE, "tests/data/images/one-pixel"))
        shown(4)
        for n in (3, 2):
            page.click("#pictures li:first-child button")
            shown(n)
        self.assertEqual(page.run("return document.activeElement.id"), "message")
        self.assertEqual(page.ask("look"), "[6][4]look")  # 64 x 96 are 6 tokens; one pixel is made 64 x 64
        self.assertEqual((len(page.all(".user canvas")), page.all("#pictures canvas")), (2, []))
        page.click(".user .actions button:last-child")
        page.fill(".edit textarea", "look again")
        page.click(".edit [type=submit]")
        page.wait(lambda: page.text(".user .body").endswith("look again"), "edited")
        page.answered()
        self.assertEqual(page.text(".assistant .markdown"), "[6][4]look again")
        self.hand_over("drop", "a.png")
        shown(1)
        page.click("#send")
        page.wait(lambda: len(page.all(".assistant")) == 2, "a picture without a text")
        page.answered()
        self.assertEqual(page.text(".assistant .markdown"), "[6]")
        self.hand_over("drop", "x.txt")
        page.wait(lambda: page.visible("#problem"), "what it is not")
        self.assertEqual(page.text("#problem"), "That is no picture: PNG, JPEG and WebP are.")

    def test_no_pictures_for_a_model_that_takes_none(self):
        page = self.open()
        self.assertFalse(page.visible("#add-pictures"))
        self.hand_over("paste", "a.png")
        page.ask("hello")
        self.assertEqual(page.all("canvas"), [])

    def test_errors_in_words(self):
        page = self.open()
        page.send("!error after three tokens")
        page.answered()
        self.assertIn("the fake device broke", page.text(".assistant .error"))
        self.assertEqual(page.text(".assistant .actions button:last-child"), "Try again")
        self.expected = ["503"]
        page.send("!busy")
        page.answered()
        self.assertIn("queue is full", page.text(".assistant .error"))

    def test_thinking_is_folded(self):
        page = self.open("--reasoning-parser", "qwen3")
        answer = page.ask("<think>first *this*, then that</think>The answer.")
        self.assertEqual(answer.strip(), "The answer.")
        details = page.one("details.thinking")
        self.assertIsNone(details.get_attribute("open"))
        self.assertEqual((page.text(".thinking summary"), page.text(".thinking .markdown em")), ("Thinking", "this"))
        self.assertFalse(page.one(".thinking .markdown").is_displayed())
        page.click(".thinking summary")
        self.assertTrue(page.one(".thinking .markdown").is_displayed())
        self.assertRegex(page.text(".meta"), r"\d+ of them thinking")

    def test_tool_calls(self):
        page = self.open("--tool-call-parser", "hermes")
        page.click("#options summary")
        page.fill("#option-tools", json.dumps(TOOLS))
        page.send('<tool_call>\n{"name": "weather", "arguments": {"city": "<b>Paris</b>"}}\n</tool_call>')
        page.answered()
        self.assertEqual(page.text(".call figcaption"), "Calls weather")
        self.assertEqual(json.loads(page.text(".call code")), {"city": "<b>Paris</b>"})
        page.fill(".results textarea", '{"sky": "clear"}')
        page.click(".results button")
        page.wait(lambda: page.all(".tool"), "the result is a turn")
        page.answered()
        self.assertEqual((page.text(".tool h2"), json.loads(page.text(".tool pre"))), ("Result of weather", {"sky": "clear"}))
        self.assertEqual(page.text(".assistant .markdown"), '{"sky": "clear"}[tools:1]', "the answer to what the tool gave")


class Text(Browser):
    """What is shown of a text."""

    def test_markdown(self):
        page = self.open()
        page.ask("\n".join([
            "# Title #", "A **bold** and *leaning* _word_, `a < b`, ~~gone~~, snake_case_name, 2 * 3 * 4, \\*kept\\*.", "", "- one", "- two", "  1. deep", "  2. deeper", "", "3) three", "",
            "> quoted", "> - in it", "", "| a | b |", "|---|--:|", "| 1 | `x\\|y` |", "| 2 |", "", "```python", "if a < b:", "    print('<b>')", "```", "", "---",
            "[site](https://example.org/a_(b)?q=1&r=2 \"title\") and https://example.org/x. <https://example.org/y>", "***both***"]))
        body = page.one(".assistant .markdown")
        count = lambda selector: page.run("return arguments[0].querySelectorAll(arguments[1]).length", body, selector)
        text = lambda selector: page.run("return [...arguments[0].querySelectorAll(arguments[1])].map(n => n.textContent)", body, selector)
        self.assertEqual((text("h3"), text("p > strong"), text("p > em"), text("p > code"), text("del")),
                         (["Title"], ["bold"], ["leaning", "word", "both"], ["a < b"], ["gone"]))
        self.assertIn("snake_case_name, 2 * 3 * 4, *kept*.", text("p")[0])
        self.assertEqual((text("ul > li > ol > li"), count("ol[start='3']"), text("blockquote li")), (["deep", "deeper"], 1, ["in it"]))
        self.assertEqual((text("thead th"), text("tbody tr:first-child td"), count("tbody tr"), count("td.right")), (["a", "b"], ["1", "x|y"], 2, 2))
        self.assertEqual((text("figure.code pre"), text("figure.code figcaption span"), count("hr")), (["if a < b:\n    print('<b>')"], ["python"], 1))
        links = page.run("return [...arguments[0].querySelectorAll('a')].map(a => [a.getAttribute('href'), a.rel, a.target])", body)
        self.assertEqual([link[0] for link in links], ["https://example.org/a_(b)?q=1&r=2", "https://example.org/x", "https://example.org/y"])
        self.assertEqual({tuple(link[1:]) for link in links}, {("noopener noreferrer nofollow", "_blank")})

    def test_the_same_in_pieces_as_at_once(self):
        page = self.open()
        text = "# A\n\npara *one\ntwo* `x`\n- a\n  b\n\n  c\n- d\n\n> q\n\n1. x\n2. y\n\n|a|b|\n|-|-|\n|1|2|\n\n```\ncode\n\nmore\n```\nend **b\n"
        same = page.driver.execute_async_script("""
            const [text, done] = arguments;
            import("/console/markdown.js").then(({ MarkdownView }) => {
              const shown = (pieces) => {
                const root = document.createElement("div");
                const view = new MarkdownView(root);
                for (const piece of pieces) { view.append(piece); view.show(); }
                view.end();
                root.querySelector(":scope > .tail").replaceWith(...root.querySelector(":scope > .tail").childNodes);
                return root.innerHTML;
              };
              done([shown([text]), shown([...text]), shown(text.match(/[^]{1,7}/g))]);
            }).catch((e) => done([String(e)]));""", text)
        self.assertEqual(len(same), 3, same)
        self.assertEqual(same[0], same[1])
        self.assertEqual(same[0], same[2])
        self.assertIn("<ol>", same[0])

    def test_hostile_answers_are_text(self):
        page = self.open()
        hostile = "\n\n".join([
            "<script>window.hacked = 1</script>", "<img src=x onerror=\"window.hacked = 2\">", "<svg/onload=window.hacked=3>", "[a](javascript:window.hacked=4)", "[b](JaVaScRiPt:alert(1))",
            "[c](data:text/html;base64,PHNjcmlwdD4=)", "![d](http://127.0.0.1:9/x.png)", "<a href=\"javascript:window.hacked=5\">e</a>", "[f](https://example.org\" onclick=\"window.hacked=6)",
            "<javascript:window.hacked=7>", "[g](\tjavascript:window.hacked=8)", "```<script>\nwindow.hacked = 9\n```", "| <img src=x onerror=window.hacked=10> |\n|---|\n| </td><script>window.hacked=11</script> |",
            "# <iframe src=\"javascript:window.hacked=12\"></iframe>", "`<b>`", "</div></main><form action=/abort_request>", "&lt;script&gt;", "[h](vbscript:x)", "[i](//example.org)", "[j](/abort_request)"])
        answer = page.ask(hostile)
        for piece in ("<script>window.hacked = 1</script>", "onerror=\"window.hacked = 2\"", "[a](javascript:window.hacked=4)", "</div></main>", "&lt;script&gt;"):
            self.assertIn(piece, answer)
        self.assertEqual(page.text(".user .body"), hostile)
        for link in page.all(".turn a"):
            self.assertRegex(link.get_attribute("href"), r"^https?://")
        self.assertEqual(page.all(".turn script, .turn img, .turn iframe, .turn svg, .turn form, .turn [onclick], .turn [onerror]"), [])
        self.assertEqual([a.get_attribute("href") for a in page.all(".turn a")], ["http://127.0.0.1:9/x.png", "https://example.org/"])
        self.assertIsNone(page.run("return window.hacked ?? null"))

    def test_hostile_tools_and_thinking_are_text(self):
        page = self.open("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes")
        page.fill("#option-tools", json.dumps(TOOLS))
        page.send('<think><img src=x onerror="window.hacked=1"></think><tool_call>{"name": "weather", "arguments": {"city": "<script>window.hacked=2</script>"}}</tool_call>')
        page.answered()
        self.assertIn("<img src=x", page.text(".thinking .markdown"))
        self.assertIn("<script>", page.text(".call code"))
        self.assertEqual(page.all(".turn script, .turn img"), [])
        self.assertIsNone(page.run("return window.hacked ?? null"))

    def test_what_would_take_long_does_not(self):
        """Texts for which a careless parser takes quadratic time."""
        page = self.open()
        n = 30000
        texts = ["*a " * n, "**" * n, "`" * n + "x", "[" * n, "[a](" * n, "[a](http://b" * n, "_a_b" * n, "~~a " * n, "<http://" * n, "> " * n, "- " * n, "|" * n + "\n" + "|-" * n, "# " + " " * n + "x", "a\n" * n,
                 "- a\n" * 3000, "1. " * n, "```" * n, "\\" * n, "*" * n + "a" + "*" * n, "http://" + ")" * n + "x"]
        times = page.driver.execute_async_script("""
            const [texts, done] = arguments;
            import("/console/markdown.js").then(({ MarkdownView }) => {
              done(texts.map((text) => {
                const begin = performance.now();
                const view = new MarkdownView(document.createElement("div"));
                view.append(text);
                view.end();
                return performance.now() - begin;
              }));
            }).catch((e) => done(String(e)));""", texts)
        self.assertIsInstance(times, list, times)
        slow = [(text[:12], ms) for text, ms in zip(texts, times) if ms > 8000]
        self.assertEqual(slow, [], "milliseconds; linear ones take some tens or hundreds")

    def test_a_thousand_lines(self):
        page = self.open()
        lines = [f"Line {i} of a *long* answer." if i % 10 else f"\n## Part {i}\n\n- with `code` {i}\n" for i in range(1000)]
        page.run("""window.gaps = []; let last = performance.now();
                    const tick = () => { const now = performance.now(); gaps.push(now - last); last = now; requestAnimationFrame(tick); }; requestAnimationFrame(tick);""")
        page.send("!flood\n" + "\n".join(lines))
        page.fill("#message", "typed meanwhile")
        page.answered(120)
        self.assertEqual(page.one("#message").get_attribute("value"), "typed meanwhile")
        self.assertEqual(page.run("return document.querySelectorAll('.assistant .markdown h4').length"), 100)
        self.assertIn("Line 999 of a long answer.", page.text(".assistant .markdown"))
        self.assertTrue(page.run("const s = document.getElementById('scroller'); return s.scrollHeight - s.scrollTop - s.clientHeight < 60"), "the page has followed")
        longest = page.run("return Math.max(...gaps)")
        print(f"longest time without a frame: {longest:.0f} ms", flush=True)


class Proxy(http.server.BaseHTTPRequestHandler):
    """Serves a server below /tandem, as a reverse proxy may."""

    def forward(self):
        length = int(self.headers.get("Content-Length") or 0)
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=120)
        connection.request(self.command, self.path.removeprefix("/tandem"), self.rfile.read(length), {k: v for k, v in self.headers.items() if k.lower() != "host"})
        response = connection.getresponse()
        data = response.read()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = forward

    def log_message(self, *arguments):
        pass


class Connection(Browser):
    def test_below_a_path(self):
        self.server = self.start()
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        proxy.behind = self.server.port
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        self.addCleanup(proxy.server_close)
        self.addCleanup(proxy.shutdown)
        page = self.page
        page.open(proxy.server_port, "tandem/")
        self.assertEqual(page.ask("through a proxy"), "through a proxy")
        page.click("#show-machine")
        page.wait(lambda: page.all("#request-rows tr"), "the machine")

    def test_key_is_asked_for(self):
        self.server = self.start("--api-key", "right")
        page = self.page
        self.expected = ["401"]
        page.driver.get("about:blank")
        page.driver.get(f"http://127.0.0.1:{self.server.port}/")
        page.wait(lambda: page.visible("#key-dialog"), "the key is asked for")
        self.assertFalse(page.visible("#key-problem"))
        self.assertEqual(page.run("return document.activeElement.id"), "key")
        for wrong, sentence in (("wrong", "The server does not accept this key."), ("with a space", "A key has printable ASCII characters only"), ("schlüssel", "A key has printable")):
            page.fill("#key", wrong)
            page.keys(Keys.ENTER)
            page.wait(lambda: page.visible("#key-dialog") and page.text("#key-problem").startswith(sentence), f"refused: {wrong}")
        page.fill("#key", "right")
        page.keys(Keys.ENTER)
        page.wait(lambda: page.text("#state") == "Ready", "ready")
        self.assertFalse(page.visible("#key-dialog"))
        self.assertEqual(page.ask("with a key"), "with a key")
        kept = page.run("return [Object.values(sessionStorage), Object.values(localStorage), document.cookie, location.href, document.body.innerHTML.includes('right'), "
                        "performance.getEntriesByType('resource').some(e => e.name.includes('right'))]")
        self.assertEqual(kept[0], ["right"])
        self.assertNotIn("right", [*kept[1], kept[2], kept[3]])
        self.assertEqual(kept[4:], [False, False], "neither in the page nor in an address")
        page.driver.get(f"http://127.0.0.1:{self.server.port}/?again")
        page.wait(lambda: page.text("#state") == "Ready", "the tab still has it")
        self.assertFalse(page.visible("#key-dialog"))

    def test_a_server_that_refuses(self):
        """Its sentence is shown; that the server does not answer would be wrong."""
        page = self.open()
        page.run("""const own = window.fetch; window.refuses = true;
                    window.fetch = (url, options) => refuses && url === "metrics" ? Promise.resolve(new Response('{"error": {"message": "Too many connections are open."}}', { status: 503 }))
                                                                                  : own(url, options);""")
        page.click("#show-machine")
        page.wait(lambda: page.visible("#banner"), "told")
        self.assertEqual(page.text("#banner"), "Too many connections are open.")
        page.run("window.refuses = false")
        page.wait(lambda: page.text("#state") == "Ready" and not page.visible("#banner"), "it has room again")

    def test_without_a_key(self):
        self.server = self.start("--api-key", "right")
        page = self.page
        self.expected = ["401"]
        page.driver.get(f"http://127.0.0.1:{self.server.port}/")
        page.wait(lambda: page.visible("#key-dialog"), "the key is asked for")
        page.keys(Keys.ESCAPE)
        page.wait(lambda: page.text("#state") == "API key needed", "it says so")
        time.sleep(2.5)
        self.assertFalse(page.visible("#key-dialog"), "it does not ask again and again")
        page.send("hello")
        page.wait(lambda: page.visible("#key-dialog"), "a message needs it")
        page.click("#key-cancel")
        page.answered()
        self.assertIn("API key", page.text(".assistant .error"))
        page.click("#state")
        page.wait(lambda: page.visible("#key-dialog"), "asked for by hand")
        page.fill("#key", "right")
        page.keys(Keys.ENTER)
        page.wait(lambda: page.text("#state") == "Ready", "ready")
        page.click(".assistant .actions button:last-child")
        page.wait(lambda: page.text(".assistant .markdown") == "hello", "tried again")

    def test_server_restarts(self):
        port = free_port()
        page = self.page
        first = Server(*self.flags, "--port", str(port), env=self.shut_gate())
        with first:
            page.open(port)
            page.ask("before")
            page.send("!halt and so on")
            page.wait(lambda: page.text(".assistant .markdown") == "!halt", "it has begun")
            self.expected = ["ERR_", "503"]
            first.process.kill()
            first.process.wait()
        page.wait(lambda: page.visible("#banner") and page.text("#state") == "Not reachable", "it says that the server is away")
        page.answered()
        self.assertEqual(page.text(".assistant .error"), "The connection ended before the answer was complete.")
        page.send("meanwhile")
        page.answered()
        self.assertEqual(page.text(".assistant .error"), "The server cannot be reached.")
        self.start("--port", str(port), "--served-model-name", "successor", "--api-key", "new")
        self.expected.append("401")
        page.wait(lambda: page.visible("#key-dialog"), "it has found the new one, which wants a key")
        page.fill("#key", "new")
        page.keys(Keys.ENTER)
        page.wait(lambda: page.text("#model-name") == "successor" and not page.visible("#banner"), "it is connected again")
        self.assertEqual(page.text("#announcement"), "Connected again.")
        page.click(".assistant .actions button:last-child")
        page.wait(lambda: page.text(".assistant .markdown") == "meanwhile", "tried again")

    def test_a_server_that_starts(self):
        """Its warm-up ends when the gate is opened."""
        port, gate = free_port(), Gate()
        page = self.page
        self.expected = ["ERR_", "503"]
        page.driver.get("about:blank")
        server = Server(*self.flags, "--port", str(port), model="/models/cold", wait=False, env=gate.env)
        self.addCleanup(server.__exit__, None, None, None)
        wait_until(lambda: socket.create_connection(("127.0.0.1", port)).close() or True)
        page.open(port)
        self.assertEqual(page.text("#state"), "Starting")
        page.send("too early")
        page.answered()
        self.assertEqual(page.text(".assistant .error"), "The server is still starting.")
        gate.open()
        page.wait(lambda: page.text("#state") == "Ready", "ready")
        page.click(".assistant .actions button:last-child")
        page.wait(lambda: page.text(".assistant .markdown") == "too early", "tried again")


class Machine(Browser):
    def test_figures(self):
        page = self.open(view="#machine")
        for _ in range(3):
            self.server.request("POST", "/v1/completions", {"prompt": "short"})
        self.start_slow()
        page.wait(lambda: page.all("#request-rows .generating"), "the running request is there")
        page.wait(lambda: re.match(r"[1-9]", page.text("#plot-tokens .legend div:first-child dd")), "tokens are generated")
        names = page.run("return [...document.querySelectorAll('.plot')].map(n => n.id)")
        self.assertEqual(names, [f"plot-{n}" for n in ("busy", "bound", "bandwidth", "nodes", "resident", "link", "tokens", "queue", "ttft", "tpot", "kv", "hits")])
        legend = lambda plot: page.run("return [...document.querySelectorAll(`#plot-${arguments[0]} .legend div`)].map(n => n.innerText.replaceAll('\\n', ' '))", plot)
        self.assertRegex(legend("busy")[1], r"^Experts [1-9]\d* % busy, \d+ % waiting$")
        self.assertRegex(legend("bound")[1], r"^Experts [\d.]+ %$")
        self.assertEqual([line.split()[:2] for line in legend("nodes")], [["Node", "0"], ["Node", "1"]])
        self.assertEqual(legend("resident"), ["Resident –, 14 of 16 places filled", "Streamed –, 48 of a layer in the last long step; it pays from 700 rows on", "On the CPU –"])
        self.assertEqual(legend("link"), ["Resident 0 MB/s, 0 % of the time", "Streamed 0 MB/s, 0 % of the time"])
        self.assertRegex(legend("queue")[0], r"^Running 1$")
        self.assertRegex(legend("kv")[0], r"^Held by requests [\d,]+ \([\d.]+ %\)$")
        self.assertTrue(page.run("return document.querySelector('#plot-busy path').getAttribute('d')").startswith("M"))
        label = page.run("return document.querySelector('#plot-busy svg').getAttribute('aria-label')")
        self.assertRegex(label, r"^Tiers at work: Device .*, Experts .* waiting\. Two minutes\.$")
        rows = page.run("return [...document.querySelectorAll('#request-rows tr')].map(r => [...r.cells].map(c => c.textContent))")
        self.assertEqual([len(rows), [r[1] for r in rows]], [4, ["generating", "ended", "ended", "ended"]])
        self.assertRegex(rows[1][4], r"^[\d.]+ m?s$")
        self.assertRegex(rows[1][5], r"^[\d.]+ m?s$")
        self.assertEqual(page.text("#fact-device"), "fake")
        self.assertRegex(page.text("#fact-bounds"), "30.0 GB/s.*60.0 GB/s")

    def start_slow(self):
        connection = self.server.connection()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "!slow " + "word " * 400, "max_tokens": 90000, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
        self.addCleanup(connection.close)
        return connection

    def test_nobody_looks_nobody_asks(self):
        page = self.open(view="#machine")
        page.run("window.asked = window.answered = 0; const own = window.fetch; window.fetch = (...a) => { asked++; return own(...a).finally(() => answered++); }")
        asked = lambda: page.run("return asked")
        page.wait(lambda: asked() > 8, "it asks every second")
        page.run("Object.defineProperty(document, 'hidden', { get: () => window.away ?? false, configurable: true }); window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
        before = -1
        while before != asked() or before != page.run("return answered"):  # what was under way ends
            before = asked()
            time.sleep(1)
        time.sleep(3)
        self.assertEqual(asked(), before)
        page.run("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
        page.wait(lambda: asked() > before, "it asks again")

    def test_restart_is_no_interval(self):
        port = free_port()
        page = self.page
        with Server(*self.flags, "--port", str(port)) as first:
            page.open(port, "#machine")
            for _ in range(5):
                first.request("POST", "/v1/completions", {"prompt": "many tokens before", "max_tokens": 200, "ignore_eos": True})
            time.sleep(1.5)
        self.expected = ["ERR_", "503"]
        self.start("--port", str(port))
        page.wait(lambda: page.text("#state") == "Ready" and not page.visible("#banner"), "connected again")
        time.sleep(2.5)
        shown = page.run("return [...document.querySelectorAll('.plot path')].map(n => n.getAttribute('d')).join('')")
        self.assertNotIn("NaN", shown)
        self.assertNotRegex(page.run("return document.getElementById('plots').innerText"), r"-\d")


class Everywhere(Browser):
    """Keyboard, sizes, languages and colours."""

    def test_keyboard_only(self):
        page = self.open()
        active = lambda: page.run("return document.activeElement.id || document.activeElement.className")
        self.assertEqual(active(), "message")
        page.keys("first")
        page.chord(Keys.SHIFT, Keys.ENTER)
        page.keys("second")
        self.assertEqual((page.one("#message").get_attribute("value"), page.all(".turn")), ("first\nsecond", []))
        page.keys(Keys.ENTER)
        page.wait(lambda: page.all(".assistant"), "sent")
        page.answered()
        self.assertEqual(page.one("#message").get_attribute("value"), "")
        page.run("document.activeElement.blur(); window.getSelection().removeAllRanges()")
        page.keys("/")
        self.assertEqual((active(), page.one("#message").get_attribute("value")), ("message", ""))
        page.keys("/")
        self.assertEqual(page.one("#message").get_attribute("value"), "/", "in a field it is a character")
        page.driver.get(f"http://127.0.0.1:{self.server.port}/?tab")
        page.wait(lambda: page.text("#state") == "Ready", "ready")
        page.run("document.activeElement.blur(); document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
        order = []
        for _ in range(9):
            page.keys(Keys.TAB)
            order.append(active())
            style = page.run("const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)]")
            self.assertTrue(style[0] != "none" and style[1] >= 1, f"{order[-1]} shows that it has the focus: {style}")
        self.assertEqual(order[:6], ["skip", "show-chat", "show-machine", "state", "language", "theme"])
        self.assertIn("message", order)
        page.run("document.getElementById('show-machine').focus()")
        page.keys(Keys.ENTER)
        page.wait(lambda: page.visible("#machine"), "the other view")
        page.keys("/")
        page.wait(lambda: page.visible("#chat"), "/ leads back")

    def test_small_screens(self):
        page = self.open()
        page.size(360, 640)
        page.ask("A " + "verylongword" * 30 + "\n\n| " + " | ".join("column" for _ in range(20)) + " |\n" + "|---" * 20 + "|\n\n```\n" + "x" * 300 + "\n```\n\n- " + "y" * 200)
        page.click("#options summary")
        fits = lambda: page.run("return [document.documentElement.scrollWidth, ...[...document.querySelectorAll('header, main:not([hidden]), main:not([hidden]) > *')].map(n => n.getBoundingClientRect().right)]")
        self.assertLessEqual(max(fits()), 360.5, fits())
        self.assertTrue(page.visible("#message") and page.visible("#send"))
        box = page.run("const b = document.getElementById('send').getBoundingClientRect(); return [b.bottom, innerHeight]")
        self.assertLessEqual(*box)
        page.click("#show-machine")
        page.wait(lambda: page.all("#request-rows tr"), "the machine")
        self.assertLessEqual(max(fits()), 360.5, fits())
        page.run("document.getElementById('language').click()")
        self.assertLessEqual(max(fits()), 360.5, fits())
        page.run("localStorage.clear()")

    def test_chinese(self):
        page = self.page
        page.cdp("Emulation.setUserAgentOverride", userAgent="test", acceptLanguage="zh-CN,zh")
        self.addCleanup(page.cdp, "Emulation.setUserAgentOverride", userAgent="test", acceptLanguage="en-US,en")
        self.server = self.start()
        page.driver.get(f"http://127.0.0.1:{self.server.port}/")
        page.wait(lambda: page.text("#state") == "就绪", "Chinese by the browser's language")
        self.assertEqual((page.text("#send"), page.text("#empty-title"), page.run("return document.documentElement.lang")), ("发送", "向 fake 提问。", "zh"))
        self.assertEqual(page.ask("你好，世界"), "你好，世界")
        self.assertEqual(page.text(".assistant h2"), "回答")
        page.click("#language")
        self.assertEqual((page.text("#send"), page.text(".assistant h2"), page.text(".user .actions button")), ("Send", "Answer", "Edit"))
        self.assertRegex(page.text(".meta"), "generated")
        page.driver.get(f"http://127.0.0.1:{self.server.port}/?again")
        page.wait(lambda: page.text("#state") == "Ready", "the choice is kept")

    def test_dark(self):
        page = self.open()
        background = lambda: page.run("return getComputedStyle(document.body).backgroundColor")
        light = background()
        page.colours("dark")
        page.wait(lambda: background() != light, "dark as the system")
        dark = background()
        page.click("#theme")
        self.assertEqual((page.text("#theme"), background()), ("Light", light))
        page.click("#theme")
        page.colours("light")
        self.assertEqual((page.text("#theme"), background()), ("Dark", dark))
        page.driver.get(f"http://127.0.0.1:{self.server.port}/?again")
        page.wait(lambda: page.text("#state") == "Ready", "ready")
        self.assertEqual(background(), dark, "the choice is kept")
        readable = page.run("""
            const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
            const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            return ['auto', 'light', 'dark'].map((theme) => { document.documentElement.dataset.theme = theme; const s = (n) => getComputedStyle(n);
              return [contrast(light(s(document.body).color), light(s(document.body).backgroundColor)), contrast(light(s(document.getElementById('show-machine')).color), light(s(document.querySelector('header')).backgroundColor)),
                      contrast(light(s(document.getElementById('send')).color), light(s(document.getElementById('send')).backgroundColor))]; });""")
        for ratios in readable:
            self.assertGreater(min(ratios), 4.5, ratios)
