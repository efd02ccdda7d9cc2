// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr const char* kBest = "best";

fs::path list_folder(const fs::path& run_folder) { return run_folder / "checkpoints"; }

/// What a process that was killed while it saved has left. The saves of a signal happen at any step,
/// so the next save of that step, which would replace it, may never come.
void remove_unfinished(const fs::path& run_folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(list_folder(run_folder), error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(fmt::format(".{}", kPrefix), 0) == 0 && name.ends_with(".partial"))
      found.push_back(entry.path());
  }
  for (const fs::path& folder : found)
    fs::remove_all(folder, error);
}

/// Steps of all folders that look like checkpoints of a run, ascending.
std::vector<int64_t> list_steps(const fs::path& run_folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(list_folder(run_folder), error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kPrefix, 0) != 0) continue;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [stop, parse_error] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (parse_error == std::errc() && stop == end && step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

int64_t folder_bytes(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error))
    if (entry.is_regular_file(error)) bytes += static_cast<int64_t>(entry.file_size(error));
  return bytes;
}

}  // namespace

fs::path checkpoint_path(const fs::path& run_folder, int64_t step) {
  return list_folder(run_folder) / fmt::format("{}{}", kPrefix, step);
}

std::optional<fs::path> find_newest_checkpoint(const fs::path& run_folder, int64_t last_step) {
  auto steps = list_steps(run_folder);
  std::reverse(steps.begin(), steps.end());
  for (const int64_t step : steps) {
    if (step > last_step) continue;
    const fs::path folder = checkpoint_path(run_folder, step);
    const auto damage = find_damage(folder);
    if (!damage) return folder;
    log_warning(fmt::format(
        "{} is no complete checkpoint and is passed over: {}", folder.string(), *damage));
  }
  return std::nullopt;
}

void remove_old_checkpoints(const fs::path& run_folder, int64_t step, int64_t keep_last) {
  remove_unfinished(run_folder);
  auto steps = list_steps(run_folder);
  steps.erase(std::upper_bound(steps.begin(), steps.end(), step), steps.end());
  std::error_code error;
  const fs::path best = fs::read_symlink(list_folder(run_folder) / kBest, error);
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < steps.size(); ++i) {
    const fs::path folder = checkpoint_path(run_folder, steps[i]);
    if (folder.filename() == best) continue;
    fs::remove(folder / "manifest.json", error);  // first, so that a part is never believed
    fs::remove_all(folder, error);
  }
}

void point_best_to(const fs::path& run_folder, int64_t step) {
  const fs::path link = list_folder(run_folder) / kBest;
  const fs::path aside = list_folder(run_folder) / ".best.partial";
  std::error_code error;
  fs::remove(aside, error);
  fs::create_symlink(checkpoint_path(run_folder, step).filename(), aside, error);
  if (!error) fs::rename(aside, link, error);
  if (error) fail_write(link, error.message());
  flush_to_disk(list_folder(run_folder));
}

int64_t needed_bytes(const model::Drafter& drafter, const AdamW& optimizer, int64_t keep_last) {
  int64_t weights = 0;
  for (const auto& [name, tensor] : drafter.parameters())
    weights += static_cast<int64_t>(tensor.nbytes());
  int64_t state = 0;
  for (const auto& [name, tensor] : optimizer.state())
    state += static_cast<int64_t>(tensor.nbytes());
  const int64_t exported = 2 * drafter.num_parameters();  // bfloat16
  return (keep_last + 2) * (weights + state) + exported;
}

void check_room(const fs::path& run_folder, int64_t needed) {
  std::error_code error;
  const fs::space_info space = fs::space(run_folder, error);
  if (error) return;  // a file system that does not tell
  const int64_t room =
      static_cast<int64_t>(space.available) + folder_bytes(list_folder(run_folder));
  if (room >= needed) return;
  constexpr double kMiB = 1 << 20;
  throw DeviceError(
      {.what = "disk",
       .expected = fmt::format(
           "{:.0f} MiB for the checkpoints that this run keeps",
           static_cast<double>(needed) / kMiB),
       .got = fmt::format("{:.0f} MiB", static_cast<double>(room) / kMiB),
       .where = run_folder.string(),
       .hint = "a smaller train.keep_last, or another train.out"});
}

}  // namespace draftsmith::train
