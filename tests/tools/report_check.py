# SPDX-License-Identifier: Apache-2.0
"""`draftsmith report` in a real browser: curves are drawn, the console stays silent, nothing is
fetched, it fits a phone, and it is dark where the reader wants it dark.

Usage: report_check.py PATH_OF_DRAFTSMITH [FOLDER FOR SCREENSHOTS]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tiny_run import TARGET, run_program, train

PHONE_WIDTH = 390


def browse(page, *options):
    """Opens a page in headless Chromium. Returns (DOM after its scripts, lines of its console)."""
    with tempfile.TemporaryDirectory() as profile:
        result = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", "--enable-logging=stderr", "--log-level=0",
             "--allow-file-access-from-files", "--virtual-time-budget=3000", *options,
             page.as_uri()],
            capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


def take_screenshot(page, file, *options):
    _, console = browse(page, f"--screenshot={file}", "--window-size=1200,1600", *options)
    assert not console, console
    return Image.open(file).convert("RGB")


def check_curves(page, wanted):
    """`wanted` charts have at least so many curves. Returns the DOM."""
    dom, console = browse(page, "--dump-dom")
    assert not console, console
    figures = {re.search(r"<figcaption>(.*?)<span", figure)[1]: figure
               for figure in re.findall(r"<figure>.*?</figure>", dom, re.S)}
    for title, count in wanted.items():
        assert title in figures, (title, list(figures))
        paths = re.findall(r'<path[^>]* d="([^"]*)"', figures[title])
        assert len([d for d in paths if d.count("L") >= 2]) >= count, (title, paths)
        assert not any("NaN" in d or "Infinity" in d for d in paths), (title, paths)
    return dom


def check_drawing(page, num_runs):
    return check_curves(page, dict.fromkeys(
        ("Loss", "Held out acceptance", "Accuracy by slot", "Learning rate", "Throughput", "Memory"),
        num_runs))


def check_phone(page, folder):
    """In a frame as wide as a phone nothing stands out to the right."""
    frame = folder / "phone.html"
    frame.write_text(
        f'<iframe id="f" src="{page.name}" style="width:{PHONE_WIDTH}px;height:4000px;border:0">'
        "</iframe><script>document.getElementById('f').onload = e => document.title = "
        "'width ' + e.target.contentDocument.documentElement.scrollWidth;</script>")
    dom, console = browse(frame, "--dump-dom")
    assert not console, console
    width = int(re.search(r"<title>width (\d+)</title>", dom)[1])
    assert width <= PHONE_WIDTH, width
    _, console = browse(frame, f"--screenshot={folder / 'phone.png'}", "--window-size=600,1600")
    assert not console, console


def check_evaluations(program, folder, shots):
    """What eval --json prints is drawn, alone and beside a run."""
    prompts = folder / "sets.jsonl"
    prompts.write_text("".join(
        f'{{"input_ids": [{i}, {i + 1}], "set": "{("even", "odd")[i % 2]}"}}\n' for i in range(20)))
    files = []
    for name, options in (("sweep", ["--eval.sweep=budget"]),
                          ("pair", [f"--eval.compare={folder / 'slow'}", "--eval.method=tree"])):
        files.append(folder / f"{name}.json")
        files[-1].write_text(run_program(
            program, "eval", f"--target.path={TARGET}", "--target.dtype=float32",
            "--drafter.dtype=float32", f"--drafter.init={folder / 'fast'}", "--eval.ignore_stop=true",
            f"--eval.prompts={prompts}", "--eval.max_new_tokens=12", "--json",
            *options))
    alone = folder / "alone.html"
    run_program(program, "report", *files, "--out", alone)
    dom = check_curves(alone, {"Accepted up to each slot": 3, "Tokens a round": 3,
                               "Tokens a second": 1, "Acceptance length": 1})
    assert "Evaluation report" in dom and dom.count('class="bar"') == 3, dom
    assert "paired" in dom and "tree of 64" in dom and "the fastest was" in dom, dom
    sets = re.search(r'<table id="decoding-sets">.*?</table>', dom, re.S)[0]
    assert sets.count("<tr>") == 1 + 3 * 2 and ">odd<" in sets, sets
    both = folder / "both.html"
    run_program(program, "report", folder / "slow", *files, "--out", both)
    check_curves(both, {"Loss": 1, "Tokens a round": 3})
    take_screenshot(alone, shots / "evaluation.png")
    check_phone(both, folder)


def main(program, screenshots=None):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shots = Path(screenshots) if screenshots else folder
        common = ("--data.held_out=0.2", "--train.eval_every=5", "--train.max_steps=40")
        train(program, folder / "slow", "--train.lr=1e-3", *common)
        train(program, folder / "fast", "--train.lr=1e-2", "--train.schedule=wsd", *common,
              "--train.name=</script><b>fast")

        run_program(program, "report", folder / "slow")
        one = folder / "slow/report.html"
        dom = check_drawing(one, 1)
        assert "train.lr" in dom and "0.001" in dom
        two = folder / "two.html"
        run_program(program, "report", folder / "slow", folder / "fast", "--out", two)
        run_program(program, "report", folder / "slow", folder / "fast", "--out", two)  # again
        dom = check_drawing(two, 2)
        settings = re.search(r'<table id="settings">.*?</table>', dom, re.S)[0]
        assert "train.lr" in settings and "train.schedule" in settings, settings
        assert "data.seed" not in settings, settings
        assert "&lt;/script&gt;&lt;b&gt;fast" in dom
        for text in (one.read_text(), two.read_text()):
            assert not re.search(r"\b(src|href)\s*=|@import|url\(|fetch\(", text)
        light = take_screenshot(two, shots / "light.png")
        dark = take_screenshot(two, shots / "dark.png", "--force-dark-mode")
        assert min(light.getpixel((3, 3))) > 240, light.getpixel((3, 3))
        assert max(dark.getpixel((3, 3))) < 40, dark.getpixel((3, 3))
        check_phone(two, folder)
        if screenshots:
            (folder / "phone.png").replace(shots / "phone.png")

        check_evaluations(program, folder, shots)

        # The checks can fail: a page whose script breaks is seen on the console.
        broken = folder / "broken.html"
        broken.write_text(two.read_text().replace("JSON.parse(", "JSON.pars("))
        assert browse(broken, "--dump-dom")[1]
        foreign = folder / "notes.html"
        foreign.write_text("my notes")
        run_program(program, "report", folder / "slow", "--out", foreign, exit_code=2)
        assert foreign.read_text() == "my notes"
        run_program(program, "report", folder, exit_code=3)
    print("the report is drawn in light and dark and on a phone, and says no errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
