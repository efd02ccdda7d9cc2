// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "draftsmith/data/batch_source.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/train/optimizer.h"

namespace draftsmith::train {

/// What a run must remember beside tensors. There is no random state: anchors, order and initial
/// weights follow from seeds.
struct TrainProgress {
  int64_t step = 0;                             // optimizer steps done
  data::DataCursor cursor;                      // after the last batch that was trained on
  int64_t tokens = 0;                           // context tokens trained on
  double seconds = 0;                           // spent training
  std::map<std::string, std::string> settings;  // resolved, key -> text
};

/// `checkpoints/step-N/` of a run folder: a drafter folder (config.json, model.safetensors) plus
/// the optimizer's tensors and state.json. Written aside and renamed: complete or absent.
/// Older checkpoints beyond `keep_last` are removed afterwards.
void write_checkpoint(
    const std::filesystem::path& run_folder,
    const model::Drafter& drafter,
    const AdamW& optimizer,
    const TrainProgress& progress,
    int64_t keep_last);

/// The folder of the newest checkpoint of a run, if it has any.
std::optional<std::filesystem::path> find_newest_checkpoint(
    const std::filesystem::path& run_folder);

/// Errors: DataError for a damaged state.json.
TrainProgress read_progress(const std::filesystem::path& checkpoint);

/// Loads the optimizer's tensors, and through its masters the weights.
void load_optimizer(
    const std::filesystem::path& checkpoint,
    const TrainProgress& progress,
    AdamW& optimizer);

}  // namespace draftsmith::train
