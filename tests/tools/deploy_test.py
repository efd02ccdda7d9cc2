# SPDX-License-Identifier: Apache-2.0
"""tools/deploy against an ssh server of its own on this machine, with a small script as program."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import ssh_host

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300  # seconds after which a test has failed; none waits that long

# Stands for the program: what it does is the value of --fake.
FAKE = r"""#!/bin/sh
[ "$1" = --version ] && { echo "draftsmith 0.1.0, a fake"; exit 0; }
fake=steps out= resumed=no
for argument in "$@"; do
  case $argument in
    --train.out=*) out=${argument#*=} ;;
    --fake=*) fake=${argument#*=} ;;
    --resume) resumed=yes ;;
  esac
done
step() { echo "training $1/9  loss 2.5  1.0 steps/s  ETA $((9 - $1)) s" >&2; echo "{\"step\": $1}" >>"$out/metrics.jsonl"; }
begin() {
  mkdir -p "$out/checkpoints"
  for argument in "$@"; do printf '<%s>\n' "$argument"; done >"$out/arguments"
  env >"$out/environment"
  echo "$resumed" >>"$out/starts"
  : >"$out/settings.toml"
}
trap 'echo "stopped after step 2 of 9; --resume goes on"; exit 0' TERM
case $fake in
  error) echo "data.path: expected a folder, got none (/data). Try another." >&2; exit 3 ;;
  no-memory) begin "$@"; step 1; echo "memory: none left" >&2; exit 5 ;;
  killed) begin "$@"; step 1; kill -KILL $$ ;;
  crash-once) begin "$@"; step 1; [ $resumed = yes ] || exit 70; step 2 ;;
  run) begin "$@"; step 1; step 2; while :; do sleep 0.05; done ;;
  by-rank) begin "$@"; case $RANK in
    0) step 1; while :; do sleep 0.05; done ;;
    1) while :; do sleep 0.05; done ;;
    2) echo "rank 2 met a wall" >&2; exit 4 ;; esac ;;
  stubborn) trap '[ -e "$out/asked" ] && exit 130; : >"$out/asked"' TERM; begin "$@"; step 1; while :; do sleep 0.05; done ;;
  *) begin "$@"; for i in 1 2 3; do step $i; done ;;
esac
echo "trained 9 steps: $out/export"
"""


@unittest.skipIf(ssh_host.MISSING, f"these packages are missing: {ssh_host.MISSING}")
class Deploy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="deploy-test-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.host = ssh_host.SshHost(cls.temporary.name)
        cls.addClassCleanup(cls.host.close)

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(dir=self.temporary.name))
        self.home = self.folder / "home"
        self.host.use_home(self.home)
        self.program = self.folder / "draftsmith"
        self.program.write_text(FAKE)
        self.program.chmod(0o755)
        self.config = self.folder / "my settings.toml"
        self.config.write_text('[data]\npath = "/data"\n')
        self.there = self.home / "draftsmith"
        self.addCleanup(self.end_runs)

    def end_runs(self):
        for pid in self.folder.rglob("state/pid"):
            try:
                os.kill(int(pid.read_text()), 9)
            except (OSError, ValueError):
                pass

    def command(self, *arguments, hosts=("one",)):
        return [sys.executable, str(ROOT / "tools/deploy"), *hosts, "--ssh", self.host.ssh,
                *map(str, arguments)]

    def deploy(self, *arguments, hosts=("one",), status=0):
        result = subprocess.run(self.command(*arguments, hosts=hosts), capture_output=True,
                                text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result.stdout + result.stderr

    def start(self, fake, *options, status=0, **more):
        return self.deploy("--config", self.config, "--program", self.program,
                           "--restart-pause", 0, *options, "--", f"--fake={fake}", status=status,
                           **more)

    def wait_for(self, words, *options, status=0):
        """The answer of --status once it says `words`."""
        deadline = time.monotonic() + PATIENCE
        while True:
            result = subprocess.run(self.command("--status", *options), capture_output=True,
                                    text=True, timeout=PATIENCE, check=False)
            if words in result.stdout:
                self.assertEqual(result.returncode, status, result.stdout)
                return result.stdout
            self.assertLess(time.monotonic(), deadline, result.stdout + result.stderr)
            time.sleep(0.1)

    def starts(self):
        return (self.there / "run/starts").read_text().split()

    def test_starts_a_run_shows_its_first_step_and_leaves_it_running(self):
        said = self.start("run")
        self.assertIn("training 1/9", said)
        self.assertIn(f"log {self.there}/log.txt", said)
        said = self.deploy("--status")
        self.assertIn("training 2/9", said)
        self.assertIn("one: running: step 2 of 9, ETA 7 s", said)
        # A second start would write into the run that is under way.
        said = self.start("run", status=2)
        self.assertIn("expected no run under way, got one", said)
        self.assertIn("stopped after step 2", self.deploy("--stop"))
        self.assertIn("one: stopped: stopped after step 2 of 9", self.deploy("--status"))
        self.assertEqual(self.starts(), ["no"])

    def test_shows_the_first_error_and_returns_its_code(self):
        said = self.start("error", "--restart", 3, status=3)
        self.assertIn("one: failed with exit status 3: data.path: expected a folder, got none "
                      "(/data). Try another.", said)
        said = self.deploy("--status", status=3)
        self.assertIn("failed with exit status 3: data.path", said)
        # Starting again would have led to the same.
        self.assertNotIn("attempt 2", said)

    def test_says_that_nothing_was_started_and_makes_nothing(self):
        for action in ("--status", "--stop", "--follow"):
            self.assertIn("one: never started", self.deploy(action, status=3))
        self.assertFalse(self.there.exists())

    def test_never_overwrites_a_run(self):
        self.start("steps", "--follow")
        (self.there / "run/metrics.jsonl").write_text("precious")
        said = self.start("steps", status=2)
        self.assertIn("Try --resume to go on with it, --fresh to move it aside", said)
        said = self.start("steps", "--fresh", "--follow")
        self.assertIn(f"one: the old run is now {self.there}/run-", said)
        self.start("steps", "--fresh", "--follow")
        kept = sorted(self.there.glob("run-*"))
        self.assertEqual(len(kept), 2)
        self.assertEqual((kept[0] / "metrics.jsonl").read_text(), "precious")
        self.assertEqual(len(list(self.there.glob("log.txt-*"))), 2)
        self.assertEqual(self.starts(), ["no"])

    def test_resumes_a_run_with_the_log_going_on(self):
        self.assertIn("--resume: expected a run, got none", self.start("x", "--resume", status=2))
        self.start("steps", "--follow")
        said = self.deploy("--resume", "--program", self.program, "--follow")
        self.assertIn("with --resume", said)
        self.assertEqual(said.count("training 1/9"), 1)  # the old lines are not shown again
        self.assertEqual(self.starts(), ["no", "yes"])
        self.assertEqual((self.there / "log.txt").read_text().count("training 1/9"), 2)
        self.assertNotIn("<--config", (self.there / "run/arguments").read_text())

    def test_starts_again_after_a_crash(self):
        said = self.start("crash-once", "--restart", 2, "--follow")
        self.assertIn("attempt 1 ended with 70", said)
        self.assertIn("one: done: trained 9 steps", said)
        self.assertEqual(self.starts(), ["no", "yes"])

    def test_gives_up_after_as_many_restarts_as_were_allowed(self):
        said = self.start("killed", "--restart", 2, "--follow", status=137)
        self.assertIn("ended by signal 9 SIGKILL; often no memory was left; last: training 1/9",
                      said)
        self.assertEqual(self.starts(), ["no", "yes", "yes"])

    def test_does_not_start_again_what_was_stopped(self):
        self.start("stubborn", "--restart", 3)
        said = self.deploy("--stop", "--wait", 0, status=5)
        self.assertIn("stopping: step 1 of 9", said)
        self.assertIn("Try --stop again, which ends it at once", said)
        self.assertIn("one: stopped:", self.deploy("--stop", status=130))
        self.assertEqual(self.starts(), ["no"])

    def test_tells_an_end_without_a_word(self):
        self.start("run", "--detach", "setsid")
        parent = re.search(r"PPid:\s+(\d+)", Path(
            "/proc", (self.there / "state/pid").read_text().strip(), "status").read_text())[1]
        os.kill(int(parent), 9)
        # Its keeper is gone, the program is not.
        self.assertIn("running: step 2 of 9", self.deploy("--status"))
        os.kill(int((self.there / "state/pid").read_text()), 9)
        self.wait_for("failed: it ended without a word", status=5)

    def test_keeps_names_as_they_are(self):
        name = "it's a \"dir\" with $HOME"
        odd = "--train.name=a b's \"c\" $(touch x) \\n *"
        self.deploy("--config", self.config, "--program", self.program, "--dir", name, "--out",
                    "the run", "--follow", "--", odd, "")
        run = self.home / name / "the run"
        arguments = (run / "arguments").read_text().splitlines()
        self.assertEqual(arguments, [
            "<train>", f"<--config={self.home / name}/settings.toml>", f"<--train.out={run}>",
            f"<{odd}>", "<>"])
        self.assertEqual((self.home / name / "settings.toml").read_text(), self.config.read_text())
        self.assertIn("done", self.deploy("--status", "--dir", name, "--out", "the run"))

    def test_reaches_a_container_through_its_host(self):
        inside = self.folder / "inside"
        inside.mkdir()
        self.host.install("enter-it", f"#!/bin/sh\nHOME='{inside}' INSIDE=1 exec \"$@\"\n")
        said = self.start("steps", "--via", "enter-it", "--follow")
        self.assertIn(f"log {inside}/draftsmith/log.txt", said)
        self.assertIn("INSIDE=1", (inside / "draftsmith/run/environment").read_text())
        self.assertIn("done", self.deploy("--status", "--via", "enter-it"))
        self.assertIn("never started", self.deploy("--status", status=3))
        self.host.install("enter-deaf", "#!/bin/sh\nexec \"$@\" </dev/null\n")
        said = self.deploy("--status", "--via", "enter-deaf", status=2)
        self.assertIn("--via: expected a command that hands its input on", said)

    def test_asks_again_when_the_connection_breaks(self):
        self.host.ask_for("drop-after-start")
        said = self.start("run")
        self.assertTrue(self.host.was_taken("drop-after-start"))
        self.assertIn("asking again", said)
        self.assertEqual(self.starts(), ["no"])
        self.deploy("--stop")
        self.host.ask_for("drop-look")
        said = self.deploy("--config", self.config, "--program", self.program, "--fresh",
                           "--follow", "--", "--fake=steps")
        self.assertTrue(self.host.was_taken("drop-look"))
        self.assertIn("the run does not need the connection; trying again", said)
        self.assertIn("one: done", said)

    def test_starts_nothing_after_half_a_copy_and_goes_on_with_it(self):
        self.program.write_bytes(FAKE.encode() + b"exit\n" + os.urandom(1_000_000))
        self.host.ask_for("cut-copy")
        said = self.start("steps", status=5)
        self.assertIn("copy: expected all files on one, got", said)
        self.assertIn("goes on where it stopped", said)
        self.assertFalse((self.there / "build/bin/draftsmith").exists())
        self.assertIn("never started", self.deploy("--status", status=3))
        self.start("steps", "--follow")
        self.assertEqual((self.there / "build/bin/draftsmith").read_bytes(),
                         self.program.read_bytes())

    def test_names_what_is_wrong_with_a_host(self):
        said = self.deploy("--status", hosts=("closed",), status=5)
        self.assertIn("closed: expected a connection, got 'ssh: connect to host 127.0.0.1 port 1: "
                      "Connection refused'", said)
        said = self.start("steps", "--dir", "/proc/draftsmith", status=5)
        self.assertIn("--dir: expected a folder that can be made, got 'mkdir: ", said)
        self.host.ask_for("noisy-copy")
        said = self.start("steps", status=5)
        self.assertIn("Try a login shell there that prints nothing by itself", said)
        self.host.use_home(self.home)
        self.program.write_text("#!/no/such/interpreter\n")
        said = self.start("steps", status=5)
        self.assertIn("draftsmith: expected it to run on the host, got ", said)
        self.assertIn("exit status 127", said)
        self.host.install("uname", "#!/bin/sh\necho aarch64\n")
        self.assertIn("got aarch64", self.start("steps", status=5))

    def test_says_that_the_disk_is_full(self):
        if not self.host.has_small_disk:
            self.skipTest("no right to mount a small file system")
        self.program.write_bytes(FAKE.encode() + b"exit\n" + os.urandom(1_000_000))
        said = self.start("steps", "--dir", self.host.small_disk / "there too", status=5)
        self.assertIn("No space left on device", said)
        self.assertIn("Try making room there, or another folder", said)

    def test_stages_a_target_once_and_checks_its_sizes(self):
        target, memory = self.folder / "a target", self.folder / "memory"
        (target / "more").mkdir(parents=True)
        (target / "model.safetensors").write_bytes(os.urandom(300_000))
        (target / "more/tokenizer.json").write_text("{}")
        (target / "config.json").symlink_to("more/tokenizer.json")
        stage = ("--stage", target, "--memory-disk", memory, "--follow", "--fresh")
        said = self.start("steps", *stage)
        self.assertIn("one: copying 0.00 GB to", said)
        staged, = (memory / f"draftsmith-{os.getuid()}").iterdir()
        self.assertEqual((staged / "model.safetensors").read_bytes(),
                         (target / "model.safetensors").read_bytes())
        self.assertFalse((staged / "config.json").is_symlink())
        self.assertIn(f"<--target.path={staged}>", (self.there / "run/arguments").read_text())
        before = (staged / "model.safetensors").stat()
        # From the host's own disk it is the same copy.
        said = self.start("steps", "--stage", f":{target}", *stage[2:])
        self.assertIn("in memory already", said)
        self.assertEqual((staged / "model.safetensors").stat().st_ino, before.st_ino)
        os.truncate(staged / "model.safetensors", 1000)
        said = self.start("steps", *stage, status=5)
        self.assertIn("expected 300000 bytes of model.safetensors, got 1000", said)
        # Another target of the same name is another copy, and no room for it is said before.
        (target / "more/tokenizer.json").write_text("{ }")
        self.host.install("df", "#!/bin/sh\necho head\necho none 100 90 10 90% /\n")
        said = self.start("steps", *stage, status=5)
        self.assertIn("KiB of room, got 10", said)
        (self.host.base / "programs/df").unlink()
        said = self.start("steps", "--stage", f":{target}", *stage[2:])
        self.assertEqual(len(list((memory / f"draftsmith-{os.getuid()}").iterdir())), 2)
        said = self.start("steps", "--stage", f":{target}x", "--fresh", status=3)
        self.assertIn("--stage: expected a folder on the host, got none", said)

    def test_makes_one_job_of_several_hosts(self):
        both = {"hosts": ("one", "two")}
        said = self.start("steps", "--dir", "job-{rank}", "--follow", **both)
        for rank in range(2):
            self.assertIn(f"[{rank}] training 1/9", said)
            environment = (self.home / f"job-{rank}/run/environment").read_text().splitlines()
            for line in (f"RANK={rank}", "LOCAL_RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1",
                         "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"):
                self.assertIn(line, environment)
        said = self.deploy("--status", "--dir", "job-{rank}", **both)
        self.assertIn("one: done", said)
        self.assertIn("two: done", said)
        self.assertIn("expected each once", self.start("steps", hosts=("one", "one"), status=2))

    def test_waits_for_one_rank_to_step_and_stops_all_when_one_fails(self):
        # Rank 1 reports no steps, as one that only runs the target.
        said = self.start("by-rank", "--dir", "two-{rank}", hosts=("one", "two"))
        self.assertIn("[0] training 1/9", said)
        self.assertIn("two: running: no step yet", said)
        self.deploy("--stop", "--dir", "two-{rank}", hosts=("one", "two"))
        # Rank 0 of this job waits: it never reports a step, and rank 2 fails.
        self.program.write_text(FAKE.replace("0) step 1; ", "0) "))
        said = self.start("by-rank", "--dir", "three-{rank}", hosts=("one", "two", "one"), status=4)
        self.assertIn("failed with exit status 4: rank 2 met a wall", said)
        self.assertIn("one: stopping, since another rank has failed", said)
        for rank in range(2):
            self.wait_for("stopped", "--dir", f"three-{rank}")

    def test_is_held_by_what_was_asked_for(self):
        self.assertIn("started (tmux)", self.start("run", "--detach", "tmux"))
        name = subprocess.run(["tmux", "list-sessions"], capture_output=True, text=True, check=True,
                              env={**os.environ, "TMUX_TMPDIR": str(self.host.base / "tmux")}).stdout
        self.assertIn("draftsmith-", name)
        # Ending the session asks the run to stop.
        subprocess.run(["tmux", "kill-session", "-t", name.split(":")[0]], check=True,
                       env={**os.environ, "TMUX_TMPDIR": str(self.host.base / "tmux")})
        self.wait_for("one: stopped: stopped after step 2")
        self.assertIn("started (setsid)", self.start("steps", "--detach", "setsid", "--fresh"))
        # A stand-in: this machine need not have systemd.
        self.host.install("systemd-run", "#!/bin/sh\necho \"$@\" >\"$HOME/unit\"\n"
                          "while [ \"$1\" != -- ]; do shift; done\nshift\nsetsid \"$@\" "
                          "</dev/null >/dev/null 2>&1 &\n")
        self.assertIn("started (systemd)", self.start("steps", "--detach", "systemd", "--fresh"))
        self.assertRegex((self.home / "unit").read_text(),
                         r"--unit=draftsmith-\d+ --property=KillMode=mixed .* -- sh .*/keep_running")
        self.host.install("systemd-run", "#!/bin/sh\necho Failed to connect to bus >&2; exit 1\n")
        said = self.start("steps", "--detach", "systemd", "--fresh", status=5)
        self.assertIn("expected systemd to start the run, got 'Failed to connect to bus'", said)

    def test_gathers_libraries_but_not_those_of_the_machine(self):
        out = self.folder / "image"
        ssh = Path(shutil.which("ssh")).resolve()
        subprocess.run([sys.executable, ROOT / "tools/deploy_build.py", ssh, out], check=True)
        self.assertEqual((out / "build/bin/draftsmith").read_bytes(), ssh.read_bytes())
        names = {path.name.split(".")[0] for path in (out / "build/lib").iterdir()}
        self.assertIn("libcrypto", names)
        self.assertFalse(names & {"libc", "libm", "ld-linux-x86-64", "linux-vdso"}, names)
        self.assertFalse(any(path.is_symlink() for path in out.rglob("*")))

    def test_says_what_is_wrong_with_its_arguments(self):
        for arguments, words in (
                ((), "--config: expected a settings file, got none"),
                (("--config", "/no/such"), "--config: expected a file"),
                (("--config", self.program), "--config: expected TOML"),
                (("--config", self.config, "--program", "/no/such"), "--program: expected a built"),
                (("--config", self.config, "--", "--train.out=x"), "to follow from --out"),
                (("--config", self.config, "--restart", -1), "--restart: expected 0 or more"),
                (("--status", "--", "--train.lr=1"), "settings: expected them with a start"),
                (("--config", self.config, "--program", self.program, "--stage", "/no/such"),
                 "--stage: expected a folder with files")):
            result = subprocess.run(self.command(*arguments), capture_output=True, text=True,
                                    timeout=PATIENCE, check=False)
            self.assertIn(result.returncode, (2, 3), result.stderr)
            self.assertIn(words, result.stderr)
            self.assertIn("Try ", result.stderr)


if __name__ == "__main__":
    unittest.main()
