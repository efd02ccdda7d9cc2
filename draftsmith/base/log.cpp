// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "draftsmith/base/atomic_file.h"

namespace draftsmith {
namespace {

/// The two streams of the process and the optional copy of both. One per process, as the
/// streams themselves are.
struct Streams {
  spdlog::sink_ptr out = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  spdlog::sink_ptr err = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  spdlog::sink_ptr copy;
  bool has_bar = false;        // the last line of a terminal will be rewritten
  bool has_lost_line = false;  // the copy could not be written
  bool keeps_lines = false;
  std::vector<std::string> kept;  // what the copy will begin with
  std::mutex mutex;

  Streams() {
    out->set_pattern("%v");
    err->set_pattern("%v");
  }
};

Streams& streams() {
  static Streams instance;
  return instance;
}

void write(const spdlog::sink_ptr& sink, std::string_view line) {
  sink->log(spdlog::details::log_msg("", spdlog::level::info, {line.data(), line.size()}));
  sink->flush();
}

void clear_bar_line() {
  if (!streams().has_bar) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  streams().has_bar = false;
}

/// A line that the copy cannot take ends no run: it is metrics and checkpoints that a run may not
/// lose, and a full disk does not take those either.
void write_copy(std::string_view line) {
  if (streams().copy) {
    try {
      write(streams().copy, line);
    } catch (const spdlog::spdlog_ex& error) {
      if (std::exchange(streams().has_lost_line, true)) return;
      clear_bar_line();
      write(streams().err, fmt::format("warning: the log misses lines: {}", error.what()));
    }
  } else if (streams().keeps_lines) {
    streams().kept.emplace_back(line);
  }
}

}  // namespace

void keep_lines_for_copy() {
  std::lock_guard lock(streams().mutex);
  streams().keeps_lines = true;
}

void copy_log_to(const std::filesystem::path& path) {
  std::lock_guard lock(streams().mutex);
  try {
    streams().copy = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
  } catch (const spdlog::spdlog_ex& error) {
    fail_write(path, error.what());
  }
  streams().has_lost_line = false;
  streams().copy->set_pattern("%Y-%m-%d %H:%M:%S %v");
  for (const std::string& line : streams().kept)
    write_copy(line);
  streams().kept.clear();
  streams().keeps_lines = false;
}

void stop_log_copy() {
  std::lock_guard lock(streams().mutex);
  streams().copy.reset();
}

void print_line(std::string_view line) {
  std::lock_guard lock(streams().mutex);
  clear_bar_line();
  write(streams().out, line);
  write_copy(line);
}

void log_line(std::string_view line) {
  std::lock_guard lock(streams().mutex);
  clear_bar_line();
  write(streams().err, line);
  write_copy(line);
}

void log_warning(std::string_view line) { log_line("warning: " + std::string(line)); }

void show_bar(std::string_view text) {
  std::lock_guard lock(streams().mutex);
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
  streams().has_bar = true;
}

void clear_bar() {
  std::lock_guard lock(streams().mutex);
  clear_bar_line();
}

void log_to_copy_only(std::string_view line) {
  std::lock_guard lock(streams().mutex);
  write_copy(line);
}

}  // namespace draftsmith
