// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "draftsmith/base/log.h"

namespace draftsmith {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds between rewrites of the line
constexpr double kPlainInterval = 10.0;    // seconds between plain lines
constexpr int kBarWidth = 24;              // characters

std::string draw_bar(double share) {
  const int filled = static_cast<int>(std::lround(share * kBarWidth));
  return "[" + std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(kBarWidth - filled), '.') + "]";
}

}  // namespace

std::string format_duration(double seconds) {
  const int64_t whole = std::llround(std::max(0.0, seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string format_count(double value) {
  if (value >= 1e9) return fmt::format("{:.1f}G", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return value >= 100 || value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                    : fmt::format("{:.1f}", value);
}

Progress::Progress(std::string label, int64_t total, std::string unit, int64_t first)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      first_(first),
      done_(first),
      is_terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::update(int64_t done, std::string_view details, bool force_line) {
  done_ = done;
  const double now = watch_.seconds();
  const bool is_line_due = force_line || now - last_line_ >= kPlainInterval;
  const bool is_bar_due = is_terminal_ && now - last_shown_ >= kTerminalInterval;
  if (!is_line_due && !is_bar_due) return;

  const double rate = static_cast<double>(done - first_) / std::max(now, 1e-9);
  const std::string eta =
      rate > 0 ? format_duration(static_cast<double>(total_ - done) / rate) : "?";
  const std::string text = fmt::format(
      "{} {}/{}{}{}  {} {}/s  ETA {}", label_, done, total_, details.empty() ? "" : "  ", details,
      format_count(rate), unit_, eta);
  if (is_bar_due) {
    const double share =
        static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total_, 1));
    fmt::print(stderr, "\r\x1b[K{} {}", draw_bar(std::clamp(share, 0.0, 1.0)), text);
    std::fflush(stderr);
    last_shown_ = now;
  }
  if (is_line_due) {
    is_terminal_ ? log_to_copy_only(text) : log_line(text);
    last_line_ = now;
  }
}

void Progress::finish(std::string_view details) {
  if (is_terminal_) fmt::print(stderr, "\r\x1b[K");
  const double seconds = watch_.seconds();
  const double rate = static_cast<double>(done_ - first_) / std::max(seconds, 1e-9);
  log_info(
      "{} {}/{} done in {}, {} {}/s{}{}", label_, done_, total_, format_duration(seconds),
      format_count(rate), unit_, details.empty() ? "" : "  ", details);
}

}  // namespace draftsmith
