"""A headless Chromium that opens the console, for its test and for the script that makes its pictures."""
import os
import tempfile
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

WAIT_S = 120


def start_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("TD_CHROMIUM", "/usr/bin/chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-proxy-server", "--disable-background-networking", "--disable-component-update",
                 "--hide-scrollbars", "--window-size=1280,900", "--force-device-scale-factor=1", "--lang=en-US"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # Chromium leaves some of its files behind
    service = Service(os.environ.get("TD_CHROMEDRIVER", "/usr/bin/chromedriver"), env={**os.environ, "TMPDIR": folder.name})
    driver = webdriver.Chrome(service=service, options=options)
    driver.folder = folder  # goes with it
    driver.set_script_timeout(120)
    return driver


class Page:
    """What a person sees and does."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, port, view=""):
        self.driver.get("about:blank")  # else only the view changes
        self.driver.get(f"http://127.0.0.1:{port}/{view}")
        self.wait(lambda: self.text("#state") not in ("", "Connecting"), "the page has looked for the server")

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """As it is in the document, whether it can be seen or not; of the last one."""
        return self.run("const n = [...document.querySelectorAll(arguments[0])].at(-1); return n ? n.textContent : null", selector)

    def visible(self, selector):
        return any(node.is_displayed() for node in self.all(selector))

    def wait(self, condition, what, timeout=WAIT_S):
        end = time.monotonic() + timeout
        while not (value := condition()):
            if time.monotonic() > end:
                raise AssertionError(f"after {timeout} s not: {what}; the page says: {self.run('return document.body.innerText')[:2000]}")
            time.sleep(0.05)
        return value

    def keys(self, *keys):
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, held, key):
        webdriver.ActionChains(self.driver).key_down(held).send_keys(key).key_up(held).perform()

    def click(self, selector):
        self.all(selector)[-1].click()

    def fill(self, selector, text):
        """All of a text at once, as pasting does."""
        self.run("const n = document.querySelector(arguments[0]); n.focus(); n.value = arguments[1]; n.dispatchEvent(new Event('input', {bubbles: true}))", selector, text)

    def send(self, text):
        """A message; does not wait for its answer."""
        n = len(self.all(".assistant"))
        self.fill("#message", text)
        self.keys(Keys.ENTER)
        self.wait(lambda: len(self.all(".assistant")) > n, "an answer begins")

    def answered(self, timeout=WAIT_S):
        self.wait(lambda: self.all(".assistant") and not self.all("[aria-busy]"), "the answer has ended", timeout)

    def ask(self, text, timeout=WAIT_S):
        """A message and its whole answer, as the page shows it."""
        self.send(text)
        self.answered(timeout)
        return self.text(".assistant .markdown")

    def cdp(self, command, **values):
        self.driver.execute_cdp_cmd(command, values)

    def size(self, width, height):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme):
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
