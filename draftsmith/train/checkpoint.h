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
#include "draftsmith/train/schedule.h"

namespace draftsmith::train {

/// What a file may say that a run has counted: sums of some such numbers stay far from an overflow.
inline constexpr int64_t kMostCounted = int64_t{1} << 53;

/// The evaluation with the highest acceptance length so far.
struct BestEvaluation {
  int64_t step = -1;  // none yet
  double acceptance = 0;
};

/// How far a run has come. There is no random state: anchors, order and initial weights follow
/// from seeds.
struct TrainProgress {
  int64_t step = 0;         // optimizer steps done
  data::DataCursor cursor;  // after the last batch that was consumed
  int64_t batches = 0;      // consumed since the start of the run
  int64_t tokens = 0;       // context tokens trained on
  double seconds = 0;       // spent training
  BestEvaluation best;
};

/// What a run is made of; stamped into its checkpoints and compared when it is resumed.
struct RunStamp {
  std::map<std::string, std::string> settings;  // resolved, key -> text
  std::string dataset;                          // fingerprint
  std::string target;                           // fingerprint
  std::string commit = "unknown";               // of the build
  bool is_changed = false;                      // whether the build's tree differed from it
  int64_t chunk_rows = 0;                       // of the memory plan; 0 = not known
  bool recomputes_layers = false;               // of the memory plan
  int64_t ranks = 1;                            // that shared its batches last
};

/// All that a checkpoint holds. The tensors may be those that training goes on with.
struct TrainState {
  model::Drafter drafter;
  formats::NamedTensors optimizer;  // masters and moments
  TrainProgress progress;
  Schedule schedule;
  RunStamp stamp;
};

/// Writes `folder`: a drafter folder (config.json, model.safetensors) plus the optimizer's
/// tensors, state.json, and last of all manifest.json with the size and checksum of every other
/// file. Written aside, flushed and renamed: complete or absent.
/// Errors: DeviceError if the disk refuses; then the folder is as it was.
void write_checkpoint(const std::filesystem::path& folder, const TrainState& state);

/// Why a folder is no complete checkpoint, or nothing: every file is there with the size and
/// checksum of the manifest.
std::optional<std::string> find_damage(const std::filesystem::path& folder);

/// What state.json tells. Errors: DataError for a damaged one.
TrainProgress read_progress(const std::filesystem::path& folder);
RunStamp read_stamp(const std::filesystem::path& folder);
Schedule read_schedule(const std::filesystem::path& folder);

/// Loads the optimizer's tensors, and through its masters the weights.
void load_optimizer(const std::filesystem::path& folder, AdamW& optimizer);

}  // namespace draftsmith::train
