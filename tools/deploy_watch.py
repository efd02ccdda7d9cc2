# SPDX-License-Identifier: Apache-2.0
"""What became of a run that tools/deploy started: its state in words, and its log as it grows."""
import json
import re
import signal
import sys
import time

from deploy_host import Dropped, last_line

KEEPER_MARK = "[keep_running]"
POLL_SECONDS = (0.1, 2.0)  # between looks: at first, and once nothing has happened for long
RETRY_SECONDS = 1.0
LOST_SECONDS = 900  # without a connection before waiting ends
NEVER_STARTED = 3
VANISHED = 5
INTERRUPTED_TWICE = 130


class Look:
    """One look at a host: `values` and `text` of the function `look`."""

    def __init__(self, values, text):
        self.values, self.text = values, text
        self.state = values["state"]

    @property
    def size(self):
        return int(self.values.get("size", 0))

    @property
    def progress(self):
        """(step, steps in all, ETA or None) as this attempt last said, or None."""
        found = re.match(r"training ([1-9]\d*)/(\d+)(?:.* ETA (.+)$)?",
                         self.values.get("progress", ""))
        return (int(found[1]), int(found[2]), found[3]) if found else None

    @property
    def step(self):
        """The newest step known: metrics.jsonl may be ahead of the log. 0 before the first."""
        steps = [self.progress[0] if self.progress else 0]
        try:
            steps.append(int(json.loads(self.values.get("metrics", ""))["step"]))
        except (ValueError, LookupError, TypeError):
            pass  # none yet, or a line that is being written
        return max(steps)

    @property
    def exit_code(self):
        """The run's, once it has ended; None before."""
        if self.state == "ended":
            return int(self.values["exit_code"] or VANISHED)
        return {"vanished": VANISHED, "none": NEVER_STARTED}.get(self.state)

    def error(self):
        """The last thing that the program itself said."""
        lines = [line for line in self.text.splitlines() if not line.startswith(KEEPER_MARK)]
        return last_line("\n".join(lines)) or "no word"

    def describe(self):
        """The state in one line."""
        attempt = int(self.values.get("attempt") or 1)
        again = f", attempt {attempt}" if attempt > 1 else ""
        if self.state == "none":
            return "never started"
        if self.state == "vanished":
            room = "" if int(self.values["free_kib"]) > 1024 else "; the disk is full"
            return (f"failed: it ended without a word, as after a loss of power{room}. "
                    "Try --resume.")
        if self.state == "ended":
            code = self.exit_code
            if "stopping" in self.values and code in (0, INTERRUPTED_TWICE):
                return f"stopped: {self.error()}"
            if code == 0:
                return f"done: {self.error()}"
            if code > 128:
                name = signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else ""
                hint = "; often no memory was left" if code == 128 + signal.SIGKILL else ""
                return f"failed: ended by signal {code - 128} {name}{hint}; last: {self.error()}"
            return f"failed with exit status {code}: {self.error()}"
        if "pid" not in self.values:
            return f"running{again}: waiting to start again after: {self.error()}"
        how = ("stopping" if "stopping" in self.values else "running") + again
        if not self.progress:
            return f"{how}: no step yet"
        _, total, eta = self.progress
        return f"{how}: step {self.step} of {total}" + (f", ETA {eta}" if eta else "")


def look_at(host, offset=-1, lines=20):
    return Look(*host.call("look", offset=offset, lines=lines))


class Follower:
    """Shows a host's log from where the last look ended."""

    def __init__(self, host, prefix, offset=0):
        self.host, self.prefix, self.offset = host, prefix, offset
        self.rest = ""  # a line that has not ended
        self.lost_since = None
        self.newest = None

    def look(self):
        """The newest look, or None while the connection is lost."""
        try:
            look = look_at(self.host, self.offset)
        except Dropped as error:
            now = time.monotonic()
            if self.lost_since is None:
                self.lost_since = now
                print(f"{error}\n{self.prefix}the run does not need the connection; trying again",
                      file=sys.stderr)
            if now - self.lost_since > LOST_SECONDS:
                raise
            time.sleep(RETRY_SECONDS)
            return None
        self.lost_since = None
        has_more = look.size - self.offset >= 65536
        self.offset = look.size
        # The function's answer ends with an empty line of its own.
        lines = (self.rest + look.text.removesuffix("\n")).split("\n")
        self.rest = lines.pop()
        for line in lines:
            print(f"{self.prefix}{line}", flush=True)
        if look.exit_code is not None and not has_more:
            if self.rest:
                print(f"{self.prefix}{self.rest}", flush=True)
            self.rest = ""
            self.newest = look_at(self.host)  # its text is the log's end
            return self.newest
        self.newest = None if look.exit_code is not None else look
        return self.newest

    @property
    def has_ended(self):
        return self.newest is not None and self.newest.exit_code is not None

    @property
    def has_failed(self):
        return self.has_ended and self.newest.exit_code != 0


def follow(followers, is_enough):
    """Shows the logs until `is_enough(followers)`."""
    pause, most = POLL_SECONDS
    while True:
        for follower in followers:
            if not follower.has_ended:
                follower.look()
        if is_enough(followers):
            return
        time.sleep(pause)
        pause = min(most, 1.3 * pause)


def all_have_ended(followers):
    return all(follower.has_ended for follower in followers)


def first_step_or_error(followers):
    """Not every rank reports steps: one of them does, as long as none has failed."""
    if any(follower.has_failed for follower in followers) or all_have_ended(followers):
        return True
    return any(f.newest is not None and f.newest.state == "running" and f.newest.progress
               and "pid" in f.newest.values for f in followers)
