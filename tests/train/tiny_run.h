// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/train/trainer.h"

#include "tests/support/temp_folder.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::testing {

struct RunOptions {
  std::string out = {};
  std::string dtype = "float32";
  uint64_t drafter_seed = 0;
  int64_t accumulation = 1;
  int64_t save_every = 1000;
  double epochs = 3;
  double lr = 1e-2;
  double held_out = 0;
  int64_t eval_every = 1000;
  std::string eval_method = "chain";
  int64_t tree_budget = 0;
  bool split_masters = false;
  int64_t profile_steps = 0;
  bool shard_optimizer = false;
  int64_t sequences_per_batch = 2;
  int64_t num_anchors = 8;
  int64_t anchors_per_sequence = 0;
  bool static_shapes = false;
};

/// Batches of 2 sequences.
inline data::DataSettings tiny_data_settings() {
  data::DataSettings settings;
  settings.max_sequences_per_batch = 2;
  settings.num_anchors = 8;
  settings.seed = 1;
  return settings;
}

/// A trainer of 10 sequences, 2 in a batch.
inline std::unique_ptr<train::Trainer> make_trainer(
    const model::Target& target,
    const std::filesystem::path& dataset,
    const RunOptions& options,
    const pipeline::Ranks& ranks = {}) {
  auto data_settings = tiny_data_settings();
  data_settings.max_sequences_per_batch = options.sequences_per_batch;
  data_settings.num_anchors = options.num_anchors;
  data_settings.anchors_per_sequence = options.anchors_per_sequence;
  data_settings.static_shapes = options.static_shapes;
  if (!options.out.empty()) std::filesystem::create_directories(options.out);
  train::TrainSettings settings;
  settings.out = options.out;
  settings.epochs = options.epochs;
  settings.accumulation = options.accumulation;
  settings.lr = options.lr;
  settings.save_every = options.save_every;
  settings.keep_last = 100;
  settings.log_every = 1;
  settings.eval_every = options.eval_every;
  settings.eval_method = options.eval_method;
  settings.split_masters = options.split_masters;
  settings.profile_steps = options.profile_steps;
  settings.shard_optimizer = options.shard_optimizer;
  data_settings.held_out = options.held_out;
  data::BatchSource source(
      data::TokenDataset::open(dataset, ""), data_settings, target.config().vocab_size);
  auto held_out = source.held_out();
  auto trainer = std::make_unique<train::Trainer>(
      target, make_tiny_drafter(target, options.dtype, options.drafter_seed), std::move(source),
      make_loss(10, 0.15, 0.1), settings, train::RunStamp{}, ranks);
  trainer->count_trees_of(options.tree_budget);
  if (options.eval_every < 1000) trainer->evaluate_on(std::move(held_out.value()));
  return trainer;
}

inline std::filesystem::path write_ten_sequences(const TempFolder& folder) {
  std::vector<data::TokenSequence> sequences;
  for (uint64_t i = 0; i < 10; ++i)
    sequences.push_back(make_sequence(12 + static_cast<int64_t>(i % 4), 4, i));
  return write_dataset_folder(folder, "dataset", sequences);
}

inline std::vector<formats::Json> read_metrics(const std::filesystem::path& run) {
  std::vector<formats::Json> lines;
  std::istringstream stream(read_file(run / "metrics.jsonl"));
  for (std::string line; std::getline(stream, line);)
    lines.push_back(formats::Json::parse(line));
  return lines;
}

}  // namespace draftsmith::testing
