// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"

namespace draftsmith::app {
namespace {

using Keys = std::vector<std::string>;

/// What other commands read, and what decides only where and when a run works and writes.
bool is_harmless(const std::string& key) {
  static const std::set<std::string> sections = {"eval", "generate", "extract", "pipeline"};
  static const std::set<std::string> keys = {
      "train.out",       "train.name",       "train.log_every",    "train.save_every",
      "train.keep_last", "train.eval_every", "train.allow_change", "memory.budget",
      "train.shard_optimizer", "train.profile_steps", "train.split_masters",
      "attention.allow_math"};
  return sections.count(key.substr(0, key.find('.'))) != 0 || keys.count(key) != 0;
}

/// Compared by other means: the steps in all, the content of the files.
bool is_compared_elsewhere(const std::string& key) {
  static const std::set<std::string> keys = {
      "train.max_steps", "train.epochs", "data.path", "target.path"};
  return keys.count(key) != 0;
}

void check(
    const std::string& key,
    const std::string& saved,
    const std::string& now,
    const Keys& allow_change) {
  if (saved == now) return;
  if (std::find(allow_change.begin(), allow_change.end(), key) != allow_change.end()) {
    log_warning(fmt::format("{} changes from '{}' to '{}' on resume", key, saved, now));
    return;
  }
  throw ConfigError(
      {.what = key,
       .expected = fmt::format("'{}' as in the run that is resumed", saved),
       .got = fmt::format("'{}'", now),
       .where = "train --resume",
       .hint = fmt::format("--train.allow_change={}", key)});
}

std::string find_setting(const train::RunStamp& stamp, const std::string& key) {
  const auto found = stamp.settings.find(key);
  return found == stamp.settings.end() ? "" : found->second;
}

void check_content(
    const std::string& key,
    const std::string& saved,
    const std::string& now,
    const train::RunStamp& saved_stamp,
    const train::RunStamp& now_stamp,
    const Keys& allow_change) {
  check(key, saved, now, allow_change);
  const std::string before = find_setting(saved_stamp, key);
  const std::string path = find_setting(now_stamp, key);
  if (saved == now && before != path) log_info("{} moved from {} to {}", key, before, path);
}

}  // namespace

void check_resumed(
    const train::RunStamp& saved,
    const train::RunStamp& now,
    const Keys& allow_change) {
  for (const auto& [key, value] : now.settings)
    if (!is_harmless(key) && !is_compared_elsewhere(key))
      check(key, find_setting(saved, key), value, allow_change);
  check_content("data.path", saved.dataset, now.dataset, saved, now, allow_change);
  check_content("target.path", saved.target, now.target, saved, now, allow_change);
  if (saved.commit != now.commit || now.is_changed) {
    log_info(
        "the checkpoint was written by build {}{}, this is {}{}", saved.commit,
        saved.is_changed ? " with changes" : "", now.commit, now.is_changed ? " with changes" : "");
  }
}

void check_resumed_steps(int64_t saved_total, int64_t now_total, const Keys& allow_change) {
  if (now_total > saved_total) {
    log_warning(fmt::format(
        "the run grows from {} to {} steps, and its schedule with it", saved_total, now_total));
    return;
  }
  const bool is_allowed = std::any_of(
      allow_change.begin(), allow_change.end(),
      [](const std::string& key) { return key == "train.max_steps" || key == "train.epochs"; });
  const auto text = [](int64_t steps) { return fmt::format("{} steps", steps); };
  check(
      "train.max_steps", text(saved_total), text(now_total),
      is_allowed ? Keys{"train.max_steps"} : Keys{});
}

}  // namespace draftsmith::app
