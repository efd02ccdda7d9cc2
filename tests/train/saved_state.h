// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/train/checkpoint.h"

#include "tests/support/temp_folder.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::testing {

/// A tiny drafter with its optimizer, and a run folder to save them in.
struct SavedState {
  TempFolder folder;
  model::Target target = load_target("targets/qwen3-tiny");
  model::Drafter drafter = make_tiny_drafter(target, "bfloat16");
  train::AdamW optimizer{drafter.parameters(), {}};

  train::TrainState state(int64_t step, int64_t best_step = -1) const {
    train::TrainState state{drafter, optimizer.state(), {}, {}, {}};
    state.progress = {
        .step = step,
        .cursor = {2, 3},
        .batches = 4 * step,
        .tokens = 12345,
        .seconds = 1.5,
        .best = {best_step, 1.25}};
    state.schedule = {"wsd", 0.5, 3, 40};
    state.stamp.settings = {{"train.lr", "0.001"}, {"data.path", "a \"quoted\" path"}};
    state.stamp.dataset = "6 sequences, 01234567";
    state.stamp.target = "9 bytes of weights, 89abcdef";
    state.stamp.commit = "0123abc";
    state.stamp.is_changed = true;
    state.stamp.chunk_rows = 321;
    state.stamp.recomputes_layers = true;
    return state;
  }
  std::filesystem::path path(int64_t step) const {
    return folder / ("checkpoints/step-" + std::to_string(step));
  }
  void write(int64_t step) const { train::write_checkpoint(path(step), state(step)); }

  /// Names below checkpoints/.
  std::vector<std::string> list() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoints"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

/// Changes one bit in the middle of a file.
inline void flip_bit(const std::filesystem::path& file) {
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file_atomically(file, bytes);
}

}  // namespace draftsmith::testing
