// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

namespace draftsmith {

/// Keeps the lines shown from now on, for the log copy to begin with: a run's folder is made only
/// after much was checked and said.
void keep_lines_for_copy();

/// Appends every line shown on stdout or stderr from now on to `path`, as long as it takes lines.
void copy_log_to(const std::filesystem::path& path);

/// Stops copying; the file is flushed and closed.
void stop_log_copy();

/// A result: one line on stdout.
void print_line(std::string_view line);

/// What is going on: one line on stderr. Safe from any thread.
void log_line(std::string_view line);

/// A line on stderr that starts with "warning: ".
void log_warning(std::string_view line);

/// Rewrites the last line of a terminal's stderr; what is logged next takes its place.
void show_bar(std::string_view text);
void clear_bar();

/// A line for the log copy only: what a terminal shows by rewriting its last line.
void log_to_copy_only(std::string_view line);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void print_result(fmt::format_string<Args...> format, Args&&... args) {
  print_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace draftsmith
