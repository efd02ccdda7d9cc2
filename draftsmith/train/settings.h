// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/base/fields.h"

namespace draftsmith::train {

struct LossSettings {
  std::string weighting = "decay";
  double dpace_alpha = 0.5;
  double decay_gamma = 10.0;
  double kl_weight = 0.15;
  double cap_weight = 0.1;
  std::string method = "fused";
  int64_t chunk_rows = 0;

  bool is_dpace() const { return weighting != "decay"; }
  /// Decay of the weights that blocks are made with: D-PACE's follow from the result instead.
  double block_decay() const { return is_dpace() ? 0 : decay_gamma; }
  /// Errors: ConfigError if settings contradict each other.
  void check() const;
};

struct TrainSettings {
  std::string out;
  std::string name;
  double epochs = 1;
  int64_t max_steps = 0;
  int64_t accumulation = 1;
  double lr = 6e-4;
  double warmup = 0.04;  // share of all steps
  std::string schedule = "cosine";
  std::vector<double> betas = {0.9, 0.95};
  double weight_decay = 0;
  double clip_norm = 1.0;
  bool split_masters = false;
  int64_t save_every = 500;  // steps
  int64_t keep_last = 2;     // checkpoints
  int64_t eval_every = 500;  // steps
  std::string eval_method = "chain";
  int64_t log_every = 10;  // steps
  int64_t seed = 0;
  int64_t profile_steps = 0;
  bool shard_optimizer = false;
  std::vector<std::string> allow_change;

  /// Errors: ConfigError for evaluations by trees that have no nodes.
  void check(int64_t tree_budget) const;
};

void add_fields(FieldList& fields, LossSettings& settings);
void add_fields(FieldList& fields, TrainSettings& settings);

}  // namespace draftsmith::train
