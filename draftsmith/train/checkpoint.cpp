// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/formats/safetensors.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "state.json";

/// Steps of all checkpoints of a run, ascending.
std::vector<int64_t> list_steps(const fs::path& run_folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_folder / "checkpoints", error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kPrefix, 0) != 0) continue;
    int64_t step = 0;
    const char* begin = name.data() + std::string_view(kPrefix).size();
    const auto [end, parse_error] = std::from_chars(begin, name.data() + name.size(), step);
    if (parse_error == std::errc() && end == name.data() + name.size()) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

fs::path checkpoint_path(const fs::path& run_folder, int64_t step) {
  return run_folder / "checkpoints" / fmt::format("{}{}", kPrefix, step);
}

}  // namespace

void write_checkpoint(
    const fs::path& run_folder,
    const model::Drafter& drafter,
    const AdamW& optimizer,
    const TrainProgress& progress,
    int64_t keep_last) {
  StagedFolder staged(checkpoint_path(run_folder, progress.step));
  drafter.save(staged.path(), drafter.dtype());
  formats::write_safetensors(staged.path() / kOptimizerFile, optimizer.state());
  const formats::Json state = {{"step", progress.step},          {"epoch", progress.cursor.epoch},
                               {"batch", progress.cursor.batch}, {"tokens", progress.tokens},
                               {"seconds", progress.seconds},    {"settings", progress.settings}};
  write_file_atomically(staged.path() / kStateFile, state.dump(2));
  staged.publish();
  auto steps = list_steps(run_folder);
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < steps.size(); ++i)
    fs::remove_all(checkpoint_path(run_folder, steps[i]));
}

std::optional<fs::path> find_newest_checkpoint(const fs::path& run_folder) {
  const auto steps = list_steps(run_folder);
  if (steps.empty()) return std::nullopt;
  return checkpoint_path(run_folder, steps.back());
}

TrainProgress read_progress(const fs::path& checkpoint) {
  const auto json = formats::JsonObject::from_file(checkpoint / kStateFile);
  TrainProgress progress;
  progress.step = json.integer("step", 0, INT64_MAX);
  progress.cursor = {json.integer("epoch", 0, INT64_MAX), json.integer("batch", 0, INT64_MAX)};
  progress.tokens = json.integer("tokens", 0, INT64_MAX);
  progress.seconds = json.number("seconds");
  const auto settings = json.object("settings");
  for (const auto& [key, value] : settings.value().items())
    progress.settings[key] = settings.text(key);
  return progress;
}

void load_optimizer(const fs::path& checkpoint, const TrainProgress& progress, AdamW& optimizer) {
  const auto reader = formats::SafetensorsReader::open_file(checkpoint / kOptimizerFile);
  optimizer.load_state(reader, progress.step);
}

}  // namespace draftsmith::train
