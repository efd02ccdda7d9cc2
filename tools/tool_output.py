# SPDX-License-Identifier: Apache-2.0
"""What the Python tools share: errors in one line, and outputs that are never half there."""
import argparse
import os
import sys

BAD_ARGUMENT = 2
BAD_FILE = 3


class ToolError(Exception):
    """A failure told to the user in one line; `status` is the exit status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def already_there(out, output_files):
    """Whether `out` is an earlier result; refuses anything that is not ours to replace."""
    if not out.exists():
        return False
    names = set(os.listdir(out)) if out.is_dir() else {out.name}
    foreign = sorted(names - output_files) if out.is_dir() else [out.name]
    if foreign:
        raise ToolError(
            BAD_ARGUMENT,
            f"--out: expected a new folder or an earlier result, got other files such as "
            f"{foreign[0]} ({out}). Try another folder.",
        )
    return names == output_files


def exit_status(run, options):
    """Runs a tool and returns its exit status; failures become one line on stderr."""
    try:
        run(options)
    except ToolError as error:
        print(error, file=sys.stderr)
        return error.status
    except OSError as error:
        print(
            f"--out: expected a writable folder, got '{error.strerror}' ({error.filename}). "
            "Try another folder.",
            file=sys.stderr,
        )
        return BAD_ARGUMENT
    return 0


def whole_number(least):
    """The type of an argument for argparse."""
    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected a whole number of at least {least}, got '{text}'")
        return int(text)
    return parse
