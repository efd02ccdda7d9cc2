// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <mutex>
#include <string>

namespace draftsmith {
namespace {

/// The two streams of the process and the optional copy of both. One per process, as the
/// streams themselves are.
struct Streams {
  spdlog::sink_ptr out = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  spdlog::sink_ptr err = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  spdlog::sink_ptr copy;
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
  if (!sink) return;
  sink->log(spdlog::details::log_msg("", spdlog::level::info, {line.data(), line.size()}));
  sink->flush();
}

}  // namespace

void copy_log_to(const std::filesystem::path& path) {
  std::lock_guard lock(streams().mutex);
  streams().copy = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
  streams().copy->set_pattern("%Y-%m-%d %H:%M:%S %v");
}

void stop_log_copy() {
  std::lock_guard lock(streams().mutex);
  streams().copy.reset();
}

void print_line(std::string_view line) {
  std::lock_guard lock(streams().mutex);
  write(streams().out, line);
  write(streams().copy, line);
}

void log_line(std::string_view line) {
  std::lock_guard lock(streams().mutex);
  write(streams().err, line);
  write(streams().copy, line);
}

void log_warning(std::string_view line) { log_line("warning: " + std::string(line)); }

void log_to_copy_only(std::string_view line) {
  std::lock_guard lock(streams().mutex);
  write(streams().copy, line);
}

}  // namespace draftsmith
