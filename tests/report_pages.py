#!/usr/bin/env python3
"""Renders pages of Kiln's in a headless Chromium and checks what no test in Rust can see.

    python3 tests/report_pages.py OUT_DIR PAGE.html...

Each page is shown at 380 and 1280 pixels, light and dark, and printed. It must load nothing else, write no error to the
console, be no wider than the window, with every fold open too. Every drawing must have a name, a table with figures and values
under the pointer, no two texts of it may touch, and cards beside each other must be equally high.
Screenshots and the print go into OUT_DIR. KILN_BROWSER names the browser; exit code 3 means that there is none.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]

CHECK = """(() => {
  const all = selector => [...document.querySelectorAll(selector)];
  const isWide = element => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest('.wide, svg');
  const closed = document.documentElement.scrollWidth;
  all('details').forEach(details => details.open = true);
  const open = document.documentElement.scrollWidth;
  const wide = all('body *').filter(isWide).slice(0, 3).map(element => element.outerHTML.slice(0, 200));
  const nameless = all('svg').filter(svg => !svg.getAttribute('aria-label')).length;
  const bare = all('figure').filter(figure => !figure.querySelector('details table tbody td')).length;
  const box = element => element.getBoundingClientRect();
  const mute = all('figure').filter(figure => !figure.querySelector('svg .place title')).length;
  const uneven = all('figure').filter(figure => all('figure').some(
    other => box(other).top === box(figure).top && Math.abs(box(other).height - box(figure).height) > 1)).length;
  const touch = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const touching = all('figure svg').flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')];
    const pairs = texts.flatMap((a, at) => texts.slice(at + 1).map(b => [a, b]));
    return pairs.filter(([a, b]) => touch(box(a), box(b))).map(pair => pair.map(text => text.textContent.trim()).join(' | '));
  }).slice(0, 3);
  const small = all('svg').filter(svg => svg.getBoundingClientRect().height < 50).length;
  all('details').forEach(details => details.open = false);
  return {inner: innerWidth, closed, open, wide, nameless, bare, small, mute, uneven, touching, text: document.body.innerText.length,
          charts: all('figure').length, ground: getComputedStyle(document.body).backgroundColor};
})()"""


class Browser:
    """Chromium over its debugging pipe: messages of JSON, each ended by a zero byte."""

    def __init__(self, program, profile):
        (commands, self.out), (self.into, answers) = os.pipe(), os.pipe()
        options = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
                   "--disable-dev-shm-usage", "--disable-background-networking", f"--user-data-dir={profile}"]
        # The pipe is the descriptors 3 and 4 of the browser.
        start = ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "-", program, *options]
        self.process = subprocess.Popen(start, pass_fds=(commands, answers), stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.rest, self.last, self.session, self.events = b"", 0, None, []

    def receive(self):
        while b"\0" not in self.rest:
            read = os.read(self.into, 1 << 20)
            if not read:
                raise RuntimeError("the browser has gone")
            self.rest += read
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError):
            pass
        self.process.wait(timeout=60)


def errors_of(events, url):
    for event in events:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                yield f"exception: {params['exceptionDetails']['text']}"
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert", "warning"):
                yield f"console: {params['args']}"
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                yield f"log: {params['entry']['text']}"
            case "Network.requestWillBeSent":
                asked = params["request"]["url"]
                if asked != url and not asked.startswith("data:"):
                    yield f"it loads {asked}"


def check(browser, page, out, name):
    errors, url = [], page.resolve().as_uri()
    for width in [380, 1280]:
        for scheme in ["light", "dark"]:
            at = f"{page} at {width} pixels, {scheme}"
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.call("Emulation.setEmulatedMedia", media="screen", features=[feature])
            browser.events.clear()
            browser.call("Page.navigate", url=url)
            browser.wait("Page.loadEventFired")
            found = browser.call("Runtime.evaluate", expression=CHECK, returnByValue=True)["result"]["value"]
            errors += [f"{at}: {error}" for error in errors_of(browser.events, url)]
            if max(found["closed"], found["open"]) > found["inner"] or found["wide"]:
                errors.append(f"{at}: it is wider than the window: {found}")
            if found["nameless"] or found["bare"] or found["small"]:
                errors.append(f"{at}: a drawing has no name, no table or no height: {found}")
            if found["mute"] or found["uneven"] or found["touching"]:
                errors.append(f"{at}: values are not under the pointer, cards are uneven, or texts touch: {found}")
            if found["text"] < 500:
                errors.append(f"{at}: there is next to nothing on it: {found}")
            is_dark = sum(map(int, found["ground"].removeprefix("rgb(").rstrip(")").split(","))) < 200
            if is_dark != (scheme == "dark"):
                errors.append(f"{at}: its ground is {found['ground']}")
            size = browser.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": width, "height": min(size["height"], 12000), "scale": 1}
            shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
            (out / f"{name}-{width}-{scheme}.png").write_bytes(base64.b64decode(shot))
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    printed = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
    (out / f"{name}.pdf").write_bytes(printed)
    if not printed.startswith(b"%PDF"):
        errors.append(f"{page}: it cannot be printed")
    print(f"{page}: {found['charts']} charts, {len(errors)} errors")
    return errors


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, pages = pathlib.Path(sys.argv[1]), [pathlib.Path(page) for page in sys.argv[2:]]
    program = os.environ.get("KILN_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not program:
        sys.exit(3)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            browser.attach()
            errors = [error for page in pages for error in check(browser, page, out, page.resolve().parent.name)]
        finally:
            browser.close()
    sys.exit("\n".join(errors) or 0)


if __name__ == "__main__":
    main()
