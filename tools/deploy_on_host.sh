# SPDX-License-Identifier: Apache-2.0
# What tools/deploy does on the host, in any POSIX sh. The tool sends this file through ssh to
# `sh -s`, between lines that set the variables and a line that calls one function. So the login
# shell there, whatever it is, only ever reads plain words.
#
# Answers are lines KEY=VALUE between two marks; text follows a line "text:". A refusal is
# error=MESSAGE with status=EXIT STATUS.
# Variables: dir run id, and for `start` mode detach times pause start_text.

refuse() {  # STATUS MESSAGE
  printf 'status=%s\nerror=%s\n' "$1" "$2"
  echo "@@draftsmith end@@"
  exit 0
}

# Into the folder of the deployment; relative paths begin at the home folder.
enter() {
  cd 2>/dev/null || cd /
  if [ "${1:-}" = make ]; then
    problem=$(mkdir -p -- "$dir" 2>&1) || refuse 5 "--dir: expected a folder that can be made, got '$problem'. Try another --dir."
  fi
  cd -- "$dir" 2>/dev/null || return 1
  dir=$(pwd -P)
  case $run in /*) ;; *) run=$dir/$run ;; esac
}

# A shared lock only: the keeper's own attempt to lock must not fail because of a look.
is_running() { [ -e state/lock ] && ! flock -s -n state/lock true; }

has_run() { [ -e "$run/settings.toml" ] || [ -e "$run/checkpoints" ]; }

free_kib() { df -Pk -- "$1" | tail -n 1 | { read -r _ _ _ free _; echo "$free"; }; }

value() { cat "state/$1" 2>/dev/null; }

refuse_if_unfit() {
  is_running && refuse 2 "$dir: expected no run under way, got one. Try --status, --stop, or another --dir."
  [ "$mode" = plain ] && has_run &&
    refuse 2 "run: expected a folder without a run, got one ($run). Try --resume to go on with it, --fresh to move it aside, or another --dir."
  [ "$mode" = resume ] && ! has_run &&
    refuse 2 "--resume: expected a run, got none ($run). Try without --resume."
  return 0
}

# Is everything there that copying and starting need? Makes the folder and nothing else.
check() {
  for program in rsync flock; do
    command -v $program >/dev/null || refuse 5 "$program: expected it on the host, got none. Try installing the package $([ $program = flock ] && echo util-linux || echo $program) there."
  done
  enter make || refuse 5 "--dir: expected a folder that can be entered, got one that cannot ($dir). Try another --dir."
  mkdir -p state 2>/dev/null && : 2>/dev/null >>state/lock ||
    refuse 5 "--dir: expected a folder that $(id -un) may write, with room, got none ($dir, $(free_kib .) KiB free). Try another --dir."
  refuse_if_unfit
  echo "dir=$dir"
  echo "run=$run"
  echo "machine=$(uname -m)"
  echo "user=$(id -u)"
  echo "free_kib=$(free_kib .)"
}

# Does the copied program run here at all?
try_program() {
  enter || refuse 5 "--dir: expected $dir, got none. Try again."
  said=$(LD_LIBRARY_PATH=$dir/build/lib build/bin/draftsmith --version 2>&1)
  code=$?
  [ $code -eq 0 ] || refuse 5 "draftsmith: expected it to run on the host, got '$(printf '%s' "$said" | tail -n 1)' (exit status $code, $dir/build). Try a build made on the same version of the system."
  echo "version=$(printf '%s' "$said" | tail -n 1)"
}

set_aside() {  # PATH NAME
  aside=$1-$stamp
  while [ -e "$aside" ]; do aside=$aside-again; done
  problem=$(mv -- "$1" "$aside" 2>&1) || refuse 5 "$1: expected to move it aside, got '$problem'. Try another --dir."
  echo "aside_$2=$aside"
}

choose_detach() {
  [ "$detach" = auto ] || { echo "$detach"; return; }
  if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null &&
    { [ "$(id -u)" -eq 0 ] || [ "$(loginctl show-user "$(id -un)" -p Linger --value 2>/dev/null)" = yes ]; }; then
    echo systemd
  elif command -v tmux >/dev/null; then
    echo tmux
  else
    echo setsid
  fi
}

# Starts the run unless this very start has been carried out already: when the connection drops, the
# tool cannot know, and calls again.
start() {
  enter || refuse 5 "--dir: expected $dir, got none. Try again."
  if [ "$(value id)" = "$id" ]; then echo "detached=before"; return; fi
  refuse_if_unfit
  stamp=$(date +%Y%m%d-%H%M%S)
  [ "$mode" = fresh ] && has_run && set_aside "$run" run
  [ "$mode" != resume ] && [ -e log.txt ] && set_aside log.txt log
  printf '%s' "$start_text" >start.sh.partial && mv start.sh.partial start.sh ||
    refuse 5 "start.sh: expected to write it, got $(free_kib .) KiB free ($dir). Try making room there."
  log_size=$(wc -c 2>/dev/null <log.txt) || log_size=0
  rm -f state/exit_code state/pid state/stopping state/attempt
  resume=
  [ "$mode" = resume ] && resume=--resume
  set -- sh "$dir/build/keep_running" "$dir" "$id" "$times" "$pause" "$run" $resume
  name=draftsmith-$(printf '%s' "$dir" | cksum | cut -d ' ' -f 1)
  how=$(choose_detach)
  case $how in
    systemd)
      user=--user
      [ "$(id -u)" -eq 0 ] && user=
      # Stopping the unit asks the keeper, which asks the program once.
      problem=$(systemd-run $user --collect --quiet --unit="$name" --property=KillMode=mixed \
        --property=TimeoutStopSec=600 -- "$@" 2>&1)
      ;;
    tmux) problem=$(tmux new-session -d -s "$name" "$@" 2>&1) ;;
    setsid) problem=$(setsid "$@" </dev/null >/dev/null 2>&1 &) ;;
  esac || refuse 5 "--detach: expected $how to start the run, got '$problem'. Try another --detach."
  tries=0
  while [ "$(value id)" != "$id" ]; do
    tries=$((tries + 1))
    [ $tries -le 100 ] || refuse 5 "--detach: expected the run to begin within 10 s, got nothing from $how (disk: $(free_kib .) KiB free, $dir). Try another --detach."
    sleep 0.1
  done
  echo "detached=$how"
  echo "name=$name"
  echo "log_size=$((log_size))"
}

# State, and the log: from byte `offset` on, or its last `lines`.
look() {
  if ! enter || [ ! -e state/id ]; then echo "state=none"; echo "dir=$dir"; echo "text:"; return; fi
  # The log is read after the state: who ended has written all.
  if is_running; then echo "state=running"
  elif [ -e state/exit_code ]; then echo "state=ended"
  else echo "state=vanished"; fi
  echo "id=$(value id)"
  echo "exit_code=$(value exit_code)"
  echo "attempt=$(value attempt)"
  [ ! -e state/pid ] || echo "pid=$(value pid)"
  [ ! -e state/stopping ] || echo "stopping=yes"
  echo "dir=$dir"
  echo "run=$run"
  echo "free_kib=$(free_kib .)"
  echo "metrics=$(tail -n 1 "$run/metrics.jsonl" 2>/dev/null)"
  # The newest line of progress, unless an attempt began after it.
  echo "progress=$(tail -n 400 log.txt 2>/dev/null |
    sed -n -e '/^\[keep_running\].* attempt .* of /{s/.*//;h;}' -e '/^training [0-9]/h' -e '${g;p;}')"
  size=$(wc -c 2>/dev/null <log.txt) || size=0
  size=$((size))
  if [ "$offset" -lt 0 ]; then
    echo "size=$size"
    echo "text:"
    tail -n "$lines" log.txt 2>/dev/null
  else
    rest=$((size - offset))
    [ $rest -le 65536 ] || rest=65536
    [ $rest -ge 0 ] || rest=0
    echo "size=$((offset + rest))"
    echo "text:"
    [ $rest -eq 0 ] || tail -c "+$((offset + 1))" log.txt | head -c $rest
  fi
}

stop() {
  enter || { echo "state=none"; return; }
  is_running || { echo "state=ended"; return; }
  : >state/stopping
  echo "state=running"
  pid=$(value pid)
  [ -z "$pid" ] || kill -TERM "$pid" 2>/dev/null
}

# Files of a folder with their sizes: SIZE NAME, links followed.
list_files() {  # FOLDER
  (cd -- "$1" && find -L . -type f -exec stat -L -c '%s %n' {} +)
}

# What is staged already, and how much room is left. Variables: memory_disk, staged, needed_kib.
check_staged() {
  memory_disk=${staged%/*}
  problem=$(mkdir -p -- "$memory_disk" 2>&1) && [ -w "$memory_disk" ] ||
    refuse 5 "--memory-disk: expected a folder that $(id -un) may write, got '$problem' ($memory_disk). Try another --memory-disk."
  if [ -d "$staged" ]; then
    echo "staged=yes"
    echo "text:"
    list_files "$staged"
    return
  fi
  mkdir -p -- "$staged.partial"
  there=$(du -sLk -- "$staged.partial" | cut -f 1)
  free=$(free_kib "$memory_disk")
  [ $((needed_kib - there)) -le "$free" ] ||
    refuse 5 "--stage: expected $((needed_kib - there)) KiB of room, got $free ($memory_disk). Try another --memory-disk."
  echo "staged=no"
}

# Files of a folder that is on the host already. Variable: source.
list_source() {
  cd 2>/dev/null || cd /
  [ -d "$source" ] || refuse 3 "--stage: expected a folder on the host, got none ($source). Try another path."
  echo "text:"
  list_files "$source"
}

copy_source() {
  cd 2>/dev/null || cd /
  problem=$(rsync -rLt --partial --inplace -- "$source/" "$staged.partial/" 2>&1) ||
    refuse 5 "--stage: expected to copy $source, got '$(printf '%s' "$problem" | head -n 1)' ($staged.partial). Try again."
}

list_partial() {
  echo "text:"
  list_files "$staged.partial"
}

publish_staged() { mv -- "$staged.partial" "$staged" || refuse 5 "--stage: expected to name $staged, got an error. Try again."; }
