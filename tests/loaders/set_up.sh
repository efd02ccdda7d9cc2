#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# set_up.sh FOLDER REQUIREMENTS makes a virtual environment with pinned wheels, unless it is there.
set -euo pipefail
folder=$1
requirements=$2
cmp -s "$requirements" "$folder/.installed" && exit 0
rm -rf "$folder"
/usr/bin/python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$requirements"
cp "$requirements" "$folder/.installed"
