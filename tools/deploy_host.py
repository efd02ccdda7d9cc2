# SPDX-License-Identifier: Apache-2.0
"""One host of tools/deploy: runs functions of deploy_on_host.sh there, and copies files to it."""
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from tool_output import BAD_ARGUMENT, BAD_FILE, ToolError

HOST_TROUBLE = 5
SCRIPT = Path(__file__).with_name("deploy_on_host.sh")
BEGIN, END, TEXT = "@@draftsmith begin@@", "@@draftsmith end@@", "text:"
SSH_FAILED = 255  # the exit status of ssh itself
MOST_SECONDS = 120  # of a script that only looks or starts


class Dropped(ToolError):
    """The connection failed or broke; what was asked may have been done or not."""


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def parse_answer(text):
    """(values, text) of what a function printed, or None if it did not come to its end."""
    _, found, rest = text.partition(BEGIN + "\n")
    body, complete, _ = rest.rpartition(END)
    if not found or not complete:
        return None
    head, has_text, tail = ("\n" + body).partition(f"\n{TEXT}\n")
    values = dict(line.partition("=")[::2] for line in head.splitlines() if "=" in line)
    return values, tail if has_text else ""


class Connections:
    """How hosts are reached: the ssh command, and a folder for the connections it shares."""

    def __init__(self, options):
        self.ssh = shlex.split(options.ssh)
        self.via = options.via
        if not self.ssh:
            raise ToolError(BAD_ARGUMENT, "--ssh: expected a command, got none. Try --ssh ssh.")
        self.folder = tempfile.TemporaryDirectory(prefix="deploy-")

    def reach(self, host):
        """(ssh command, name of the machine) for a host. One connection serves all calls: that of
        the user's own ssh settings (ControlPath), or one of ours."""
        result = None
        # Only ssh itself is known to take these options; whatever else is given is used as it is.
        if Path(self.ssh[0]).name == "ssh":
            result = subprocess.run([*self.ssh, "-G", host], capture_output=True, text=True,
                                    check=False)
        if result is None or result.returncode != 0:
            return self.ssh, host.rpartition("@")[2]
        settings = dict(line.partition(" ")[::2] for line in result.stdout.splitlines())
        command = [*self.ssh, "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5",
                   "-o", "ServerAliveCountMax=3"]
        if settings.get("controlpath", "none") == "none":
            command += ["-o", "ControlMaster=auto", "-o", f"ControlPath={self.folder.name}/%C",
                        "-o", "ControlPersist=60"]
        if not os.isatty(0):
            command += ["-o", "BatchMode=yes"]  # no question that nobody can answer
        return command, settings.get("hostname", host)

    def close(self):
        for socket in Path(self.folder.name).iterdir():
            subprocess.run([self.ssh[0], "-o", f"ControlPath={socket}", "-O", "exit", "any"],
                           capture_output=True, check=False)
        self.folder.cleanup()


class Host:
    def __init__(self, name, rank, options, connections):
        self.name, self.rank, self.via = name, rank, connections.via
        self.ssh, self.address = connections.reach(name)
        self.user = ""  # its number there, once `check` has told
        self.variables = {"dir": options.dir.replace("{rank}", str(rank)).removeprefix("~/"),
                          "run": options.out.replace("{rank}", str(rank)).removeprefix("~/")}

    @property
    def dir(self):
        return self.variables["dir"]

    def call(self, function, timeout=MOST_SECONDS, **variables):
        """Runs a function of deploy_on_host.sh; (values, text)."""
        settings = {**self.variables, **variables}
        script = "\n".join([
            *(f"{key}={shlex.quote(str(value))}" for key, value in settings.items()),
            SCRIPT.read_text(),
            # One function, so that the shell has read all before a program could read its input.
            f"all() {{ echo; echo '{BEGIN}'; {function}; echo; echo '{END}'; }}",
            "all </dev/null", ""])
        command = [*self.ssh, self.name, f"{self.via} sh -s".strip()]
        try:
            result = subprocess.run(command, input=script.encode(), capture_output=True,
                                    timeout=timeout, check=False)
        except subprocess.TimeoutExpired as error:
            raise Dropped(HOST_TROUBLE, f"{self.name}: expected an answer, got none in {timeout} s. "
                          f"Try {shlex.join(command)}.") from error
        except OSError as error:
            raise ToolError(BAD_ARGUMENT, f"--ssh: expected a program, got '{error.strerror}' "
                            f"({command[0]}). Try --ssh ssh.") from error
        answer = parse_answer(result.stdout.decode(errors="replace"))
        if answer is None:
            raise self.explain_silence(command, result)
        values, text = answer
        if "error" in values:
            raise ToolError(int(values["status"]), f"{self.name}: {values['error']}")
        return values, text

    def explain_silence(self, command, result):
        said = last_line(result.stderr.decode(errors="replace"))
        if result.returncode == SSH_FAILED or result.returncode < 0:
            return Dropped(HOST_TROUBLE, f"{self.name}: expected a connection, got '{said}'. "
                           f"Try {shlex.join([*command[:-1], 'true'])}.")
        if self.via and not said:
            return ToolError(
                BAD_ARGUMENT, "--via: expected a command that hands its input on, got no answer "
                f"from a shell behind it ({self.via}). Try 'docker exec -i NAME'.")
        return ToolError(
            HOST_TROUBLE, f"{self.name}: expected a shell, got '{said}' (exit status "
            f"{result.returncode}). Try {shlex.join([*command[:-1], 'true'])}.")

    def copy(self, folder, target, shows_progress=False):
        """Copies a folder's content, links followed. What is there and the same is not sent again,
        and a file takes its name only when it is whole."""
        remote = f"{self.via} rsync".strip()
        command = [
            "rsync", "-rLtp", "--chmod=Du=rwx,Dgo=rx,Fu+rw,Fgo+r", "--protect-args",
            "--partial-dir=.partial-copy", "--timeout=60", f"--rsync-path={remote}",
            f"--rsh={shlex.join(self.ssh)}",
            *(["--info=progress2"] if shows_progress else []),
            f"{folder}/", f"{self.name}:{target}/"]
        try:
            result = subprocess.run(command, stdout=None if shows_progress else subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, check=False)
        except FileNotFoundError as error:
            raise ToolError(HOST_TROUBLE, "rsync: expected the program on this machine, got none. "
                            "Try apt-get install rsync.") from error
        if result.returncode != 0:
            raise self.explain_copy(target, result)

    def explain_copy(self, target, result):
        said = [line for line in result.stderr.decode(errors="replace").splitlines() if line.strip()]
        text = "\n".join(said)
        told = next((line for line in said if "rsync" not in line.split(":")[0]), None) or (
            said[0] if said else "nothing")
        for sign, hint in (
                ("No space left", "making room there, or another folder"),
                ("Permission denied", "another folder, or other rights there"),
                ("is your shell clean", "a login shell there that prints nothing by itself"),
                ("", "the same command again: it goes on where it stopped")):
            if sign in text:
                told = next((line for line in said if sign and sign in line), told)
                return ToolError(HOST_TROUBLE, f"copy: expected all files on {self.name}, got "
                                 f"'{told}' ({target}). Try {hint}.")
        raise AssertionError("the last sign is in every text")


def list_files(folder):
    """{name: size} of a folder on this machine, links followed."""
    sizes = {}
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(parent, name)
            if path.is_file():
                sizes[str(path.relative_to(folder))] = path.stat().st_size
    if not sizes:
        raise ToolError(BAD_FILE, f"--stage: expected a folder with files, got none ({folder}). "
                        "Try another path, or :PATH for one on the host.")
    return sizes


def parse_files(text):
    """{name: size} of what `list_files` printed on the host."""
    pairs = (line.split(" ", 1) for line in text.splitlines() if " " in line)
    return {name.removeprefix("./"): int(size) for size, name in pairs}
