# SPDX-License-Identifier: Apache-2.0
"""Copies a target to a host's memory disk, once, and checks that it arrived whole."""
import hashlib
import sys
from pathlib import Path

from deploy_host import HOST_TROUBLE, list_files, parse_files
from tool_output import BAD_FILE, ToolError

COPY_SECONDS = 6 * 3600  # of a copy from the host's own disk, which says nothing on its way


def check_sizes(host, staged, expected, found):
    """Refuses a copy that is not what was sent."""
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ToolError(
                HOST_TROUBLE, f"{host.name}: --stage: expected {expected.get(name, 'no')} bytes of "
                f"{name}, got {found.get(name, 'none')} ({staged}). Try the same command again.")


def stage(host, options, shows_progress):
    """The path of the copy on the host."""
    is_on_host = options.stage.startswith(":")
    source = options.stage.removeprefix(":")
    if is_on_host:
        expected = parse_files(host.call("list_source", source=source)[1])
        if not expected:
            raise ToolError(BAD_FILE, f"{host.name}: --stage: expected a folder with files, got an "
                            f"empty one ({source}). Try another path.")
    else:
        expected = list_files(source)
    # Names and sizes are part of the name: another target of the same name is another copy.
    text = "\n".join(f"{size} {name}" for name, size in sorted(expected.items()))
    name = Path(source).resolve().name if not is_on_host else Path(source).name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    staged = f"{options.memory_disk.rstrip('/')}/draftsmith-{host.user}/{name}-{digest}"
    size = sum(expected.values())
    needed_kib = sum(-(-bytes_ // 4096) * 4 for bytes_ in expected.values())
    values, files = host.call("check_staged", staged=staged, needed_kib=needed_kib)
    if values["staged"] == "yes":
        check_sizes(host, staged, expected, parse_files(files))
        print(f"{host.name}: the target is in memory already: {staged}", file=sys.stderr)
        return staged
    print(f"{host.name}: copying {size / 1e9:.2f} GB to {staged}", file=sys.stderr)
    if is_on_host:
        host.call("copy_source", COPY_SECONDS, source=source, staged=staged)
    else:
        host.copy(source, f"{staged}.partial", shows_progress)
    check_sizes(host, staged, expected,
                parse_files(host.call("list_partial", staged=staged)[1]))
    host.call("publish_staged", staged=staged)
    return staged
