# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/demo and tools/test: installs what is missing, configures and builds.
# Every step looks first whether it is done, so an interrupted set-up goes on where it stopped.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"
cd "$root"

# Debian 12 (bookworm) pins the versions of these: its packages only get security fixes.
packages=(build-essential cmake ninja-build ccache python3 python3-venv libcli11-dev libspdlog-dev
          libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libhwy-dev libgtest-dev libbenchmark-dev
          libgloo-dev)

run_as_root=()  # or sudo, once a package had to be installed

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

# install_packages PACKAGE...: those of Debian that are not there yet.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Debian packages: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "set-up: expected root or sudo to install ${missing[*]}, got neither. Try as root: apt-get install ${missing[*]}." >&2
      exit 5
    }
    run_as_root=(sudo)
  fi
  "${run_as_root[@]}" apt-get update -qq
  "${run_as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >&2
}

# install_wheels FOLDER REQUIREMENTS SIZE: a virtual environment with exactly these wheels.
install_wheels() {
  local folder=$1 requirements=$2 size=$3
  cmp -s "$requirements" "$folder/.installed" && return
  say "installing Python wheels into ${folder##*/} ($size)"
  if [ ! -x "$folder/bin/pip" ]; then
    install_packages python3 python3-venv
    rm -rf "$folder"
    /usr/bin/python3 -m venv "$folder"
  fi
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$requirements"
  cp "$requirements" "$folder/.installed"
}

# What only the slow tests need: a browser for the report, readers for the files of other tools.
install_check_tools() {
  install_packages chromium
  install_wheels "$root/.venv-checks" tools/requirements-checks.txt "300 MB"
}

# What only the tests of tools/deploy need: an ssh server that they start themselves. The service
# that the package would start is switched off again, unless it was there before.
install_ssh_server() {
  if ! command -v /usr/sbin/sshd >/dev/null; then
    install_packages openssh-server
    [ ! -d /run/systemd/system ] || "${run_as_root[@]}" systemctl disable --now --quiet ssh || true
  fi
  install_packages openssh-client rsync tmux
}

# nvcc and the libraries of CUDA, beside the wheels that every build needs.
install_cuda() {
  install_wheels "$root/.venv-cuda" tools/requirements-cuda.txt "2.5 GB"
  local toolkit
  for toolkit in "$root"/.venv-cuda/lib/python3*/site-packages/nvidia/cu13; do
    ln -sfn lib "$toolkit/lib64"  # where nvcc looks
  done
}

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  if [ ! -f "build/$preset/build.ninja" ]; then
    say "configuring build/$preset"
    cmake --preset "$preset" >"/tmp/draftsmith-configure.$$" 2>&1 || { cat "/tmp/draftsmith-configure.$$" >&2; exit 70; }
    rm -f "/tmp/draftsmith-configure.$$"
  fi
  say "building build/$preset"
  cmake --build --preset "$preset" ${1:+--target "$@"} >&2
}

# The demo's model as a Hugging Face folder; tests compare with published numbers of it.
make_demo_model() {
  "$venv/bin/python" tools/gguf_to_hf.py --out build/demo/model >&2
}

set_up() {
  install_packages "${packages[@]}"
  install_wheels "$venv" tools/requirements.txt "1.6 GB"
  build "$@"
}
