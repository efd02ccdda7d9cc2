// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "draftsmith/base/log.h"

namespace draftsmith {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds between rewrites of the line
constexpr double kPlainInterval = 10.0;    // seconds between plain lines
constexpr size_t kWideColumns = 120;       // from here on the bar is long

/// Columns of the terminal at stderr; many if it does not tell.
size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 1000;
}

std::string draw_bar(double share, size_t width) {
  const auto filled = static_cast<size_t>(std::lround(share * static_cast<double>(width)));
  return "[" + std::string(filled, '#') + std::string(width - filled, '.') + "]";
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
  const std::string_view gap = details.empty() ? "" : "  ";
  if (is_bar_due) {
    const double share =
        static_cast<double>(done) / static_cast<double>(std::max<int64_t>(total_, 1));
    const size_t columns = terminal_columns();
    // What matters most comes first: a line that wraps could not be rewritten, so it is cut.
    const std::string bar = fmt::format(
        "{} {} {}/{}  ETA {}{}{}  {} {}/s",
        draw_bar(std::clamp(share, 0.0, 1.0), columns < kWideColumns ? 10 : 24), label_, done,
        total_, eta, gap, details, format_count(rate), unit_);
    show_bar(std::string_view(bar).substr(0, columns - 1));
    last_shown_ = now;
  }
  if (is_line_due) {
    const std::string text = fmt::format(
        "{} {}/{}{}{}  {} {}/s  ETA {}", label_, done, total_, gap, details, format_count(rate),
        unit_, eta);
    is_terminal_ ? log_to_copy_only(text) : log_line(text);
    last_line_ = now;
  }
}

void Progress::finish(std::string_view details) {
  if (is_terminal_) clear_bar();
  const double seconds = watch_.seconds();
  const double rate = static_cast<double>(done_ - first_) / std::max(seconds, 1e-9);
  log_info(
      "{} {}/{} done in {}, {} {}/s{}{}", label_, done_, total_, format_duration(seconds),
      format_count(rate), unit_, details.empty() ? "" : "  ", details);
}

}  // namespace draftsmith
