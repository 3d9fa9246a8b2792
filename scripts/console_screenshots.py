#!/usr/bin/env python3
"""Make the pictures of docs/console/: the console over the demo model, in a headless Chromium.

usage: console_screenshots.py [BUILD]      (default build/release)

Needs scripts/deps.sh test, a font with Chinese characters (Debian: fonts-wqy-microhei), and pngquant, which makes the files small.
"""
import base64
import contextlib
import os
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
from console_browser import Page, start_browser  # noqa: E402
from server_process import Server  # noqa: E402

FOLDER = os.path.join(ROOT, "docs", "console")
PNG_BYTES_MAX = 150_000
MACHINE_S = 60  # that the plots show
STORY = "Tell me a story about a fox and a crow."
MARKDOWN = """<think>The reader wants to see what an answer can have.</think>## What an answer can have

1. **Lists**, with *emphasis* and `code`
2. [links](https://example.org/), which open in another tab

| tier | computes | numbers |
|---|---|--:|
| device | attention, router, shared experts | W8A8 |
| experts | routed experts, on the CPU | INT4 |

```c
for (size_t i = 0; i < n; i++) y[i] += w[i] * x[i];
```"""


def picture(page, name):
    data = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    path = os.path.join(FOLDER, name + ".png")
    with open(path, "wb") as f:
        f.write(base64.b64decode(data))
    subprocess.run(["pngquant", "--force", "--skip-if-larger", "--output", path, "64", path], check=False)
    size = os.path.getsize(path)
    print(f"{name}.png: {size} bytes")
    if size > PNG_BYTES_MAX:
        sys.exit(f"{path} is too large")


@contextlib.contextmanager
def busy(server):
    """Requests come and go."""
    ends = threading.Event()

    def ask(i):
        while not ends.wait(0.7 * i):
            body = {"messages": [{"role": "user", "content": f"{STORY} It is story number {i}."}], "max_tokens": 60 + 60 * i}
            server.request("POST", "/v1/chat/completions", body, timeout=120)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    yield
    ends.set()
    for thread in threads:
        thread.join()


def settle(page, scheme, width, height):
    page.colours(scheme)
    page.size(width, height)


def main():
    build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "release"))
    os.makedirs(FOLDER, exist_ok=True)
    page = Page(start_browser())
    with Server(program=[os.path.join(build, "cli", "tandem")], model=os.path.join(ROOT, "models", "tale-v3-14m"), timeout=120) as server:
        settle(page, "light", 1100, 760)
        page.open(server.port)
        page.click("#options summary")
        page.fill("#option-max_tokens", "160")
        page.fill("#option-seed", "3")
        page.click("#options summary")
        page.ask(STORY)
        picture(page, "chat")
        with busy(server):
            page.click("#show-machine")
            settle(page, "dark", 1100, 1240)
            time.sleep(MACHINE_S)
            picture(page, "machine-dark")
    with Server("--reasoning-parser", "qwen3", program=[os.path.join(build, "tests", "server", "fake_tandem")], model="/models/a-model") as server:
        settle(page, "light", 400, 760)
        page.cdp("Emulation.setUserAgentOverride", userAgent="", acceptLanguage="zh-CN,zh")
        page.driver.get(f"http://127.0.0.1:{server.port}/")
        page.wait(lambda: page.text("#state") == "就绪", "ready")
        page.ask(MARKDOWN)
        page.run("document.querySelector('details.thinking').open = true; document.getElementById('scroller').scrollTop = 1e6")
        picture(page, "chat-small-chinese")
    page.driver.quit()


if __name__ == "__main__":
    main()
