# SPDX-License-Identifier: Apache-2.0
"""An ssh server on the loopback interface for tests: its keys, settings and hosts' home folders lie
in one temporary folder, and nothing of the system's ssh is touched."""
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
MISSING = [name for name, path in (
    ("openssh-server", SSHD), ("openssh-client", shutil.which("ssh")),
    ("rsync", shutil.which("rsync")), ("tmux", shutil.which("tmux"))) if not path]

# Stands for the login shell. It knows words and nothing else: no quotes, no variables, no signs. So
# a command that passes it passes any shell. Files beside it are troubles that tests ask for.
LOGIN_SHELL = r"""#!/bin/sh
base=$(dirname "$0")
HOME=$(cat "$base/home") PATH=$base/programs:$PATH TMUX_TMPDIR=$base/tmux
export HOME PATH TMUX_TMPDIR
cd "$HOME"
take() { [ -e "$base/$1" ] && mv "$base/$1" "$base/taken-$1" 2>/dev/null; }
case $SSH_ORIGINAL_COMMAND in
  *[!a-zA-Z0-9\ ./_=,@%+-]*) echo "no plain words: $SSH_ORIGINAL_COMMAND" >&2; exit 99 ;;
esac
echo "$SSH_ORIGINAL_COMMAND" >>"$base/commands"
case $SSH_ORIGINAL_COMMAND in
  *rsync*)
    if take cut-copy; then { dd bs=1 count=20000 2>/dev/null; kill -KILL $PPID; } | $SSH_ORIGINAL_COMMAND; fi
    if [ -e "$base/noisy-copy" ]; then echo "Welcome!"; fi
    exec $SSH_ORIGINAL_COMMAND
    ;;
esac
echo "Welcome to this machine"
script=$base/script.$$
cat >"$script"
if grep -q '; start; ' "$script" && take drop-after-start; then
  $SSH_ORIGINAL_COMMAND <"$script" >/dev/null
  kill -KILL $PPID
fi
if grep -q '; look; ' "$script" && take drop-look; then kill -KILL $PPID; fi
exec $SSH_ORIGINAL_COMMAND <"$script"
"""


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class SshHost:
    def __init__(self, folder):
        self.base = Path(folder)
        for name in ("programs", "tmux"):
            (self.base / name).mkdir()
        self.shell = self.base / "login_shell"
        self.shell.write_text(LOGIN_SHELL)
        self.shell.chmod(0o755)
        self.small_disk = self.base / "small_disk"
        self.small_disk.mkdir()
        self.has_small_disk = False
        self.port = find_free_port()
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.base / name],
                           check=True)
        self._write_settings()
        self._start()

    def _write_settings(self):
        public = (self.base / "host_key.pub").read_text()
        (self.base / "authorized_keys").write_text((self.base / "user_key.pub").read_text())
        (self.base / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")
        (self.base / "sshd_config").write_text("\n".join((
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {self.base}/host_key",
            f"AuthorizedKeysFile {self.base}/authorized_keys", f"PidFile {self.base}/sshd.pid",
            "StrictModes no", "PasswordAuthentication no", "PermitRootLogin prohibit-password",
            "MaxStartups 100", f"ForceCommand {self.shell}", "")))
        (self.base / "ssh_config").write_text("\n".join((
            "Host one", "  ControlMaster auto", f"  ControlPath {self.base}/%C",
            "  ControlPersist 60", "Host one two", f"  Port {self.port}", "Host closed", "  Port 1", "Host *",
            "  HostName 127.0.0.1", f"  User {getpass.getuser()}",
            f"  IdentityFile {self.base}/user_key", "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {self.base}/known_hosts", "  StrictHostKeyChecking yes", "")))

    def _start(self):
        serve = [SSHD, "-D", "-e", "-f", str(self.base / "sshd_config")]
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # the server's own, made at each start of it
            # A full disk is a file system of its own that nobody else sees.
            mount = ["unshare", "-m", "--propagation", "private", "sh", "-c",
                     f"mount -t tmpfs -o size=128k none '{self.small_disk}' && "
                     f": >'{self.small_disk}/there' && cp '{self.small_disk}/there' "
                     f"'{self.base}/has_small_disk'; exec \"$@\"", "sh"]
            serve = mount + serve
        with open(self.base / "sshd.log", "wb") as log:
            self.process = subprocess.Popen(serve, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.base / "sshd.log").read_text()) from None
                time.sleep(0.05)
        self.has_small_disk = (self.base / "has_small_disk").exists()

    @property
    def ssh(self):
        return f"ssh -F {self.base}/ssh_config"

    def use_home(self, home):
        home.mkdir(parents=True, exist_ok=True)
        (self.base / "home").write_text(str(home))
        for name in ("cut-copy", "noisy-copy", "drop-after-start", "drop-look"):
            (self.base / name).unlink(missing_ok=True)
        for program in (self.base / "programs").iterdir():
            program.unlink()

    def ask_for(self, trouble):
        (self.base / trouble).touch()

    def was_taken(self, trouble):
        return (self.base / f"taken-{trouble}").exists()

    def install(self, name, text):
        """A program that comes first in the host's PATH."""
        path = self.base / "programs" / name
        path.write_text(text)
        path.chmod(0o755)

    def close(self):
        subprocess.run([*self.ssh.split(), "-O", "exit", "one"], check=False, capture_output=True)
        subprocess.run(["tmux", "kill-server"], check=False, capture_output=True,
                       env={**os.environ, "TMUX_TMPDIR": str(self.base / "tmux")})
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)
