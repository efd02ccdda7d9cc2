// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/settings.h"

#include <fmt/format.h>

#include "draftsmith/base/error.h"

namespace draftsmith::train {

void LossSettings::check() const {
  if (!is_dpace() || (kl_weight == 0 && cap_weight == 0)) return;
  throw ConfigError(
      {.what = "loss.weighting=" + weighting,
       .expected = "kl_weight and cap_weight of 0: its weights are defined for cross-entropy alone",
       .got = fmt::format("{} and {}", kl_weight, cap_weight),
       .where = "loss",
       .hint = "--loss.kl_weight=0 --loss.cap_weight=0"});
}

void TrainSettings::check(int64_t tree_budget) const {
  if (eval_method != "tree" || tree_budget > 0) return;
  throw ConfigError(
      {.what = "eval.tree_budget",
       .expected = "at least 1 node for train.eval_method=tree",
       .got = fmt::format("{}", tree_budget),
       .hint = "--eval.tree_budget=32, or --train.eval_method=chain"});
}

void add_fields(FieldList& fields, LossSettings& settings) {
  fields.begin_section("loss");
  fields.add_choice(
      "weighting", settings.weighting,
      {"decay", "dpace", "dpace-cumulative-confidence-only", "dpace-continuation-value-only"},
      "how slots weigh: by decay_gamma, or by the drafter's own confidence (D-PACE)");
  fields.add(
      "dpace_alpha", settings.dpace_alpha,
      "D-PACE's smoothing: 0 = confidence as it is, 1 = all weigh alike", kShare);
  fields.add(
      "decay_gamma", settings.decay_gamma,
      "the token at slot k weighs exp(-(k-1)/decay_gamma); 0 = all weigh the same", kAtLeastZero);
  fields.add("kl_weight", settings.kl_weight, "weight of KL(target || drafter)", kAtLeastZero);
  fields.add(
      "cap_weight", settings.cap_weight, "weight of the entropy of rows predicted correctly",
      kAtLeastZero);
  fields.add_choice(
      "method", settings.method, {"fused", "recompute", "full"},
      "how logits are computed: in chunks with the gradient at once, in chunks and again in "
      "backward, or all at once");
  fields.add(
      "chunk_rows", settings.chunk_rows,
      "rows whose logits exist together; 0 = as planned, or 256 MiB of them in probe",
      kAtLeastZero);
}

void add_fields(FieldList& fields, TrainSettings& settings) {
  fields.begin_section("train");
  fields.add("out", settings.out, "run folder; holds settings, log, metrics and checkpoints");
  fields.add("name", settings.name, "name of the run; empty = made from the settings");
  fields.add("epochs", settings.epochs, "passes over the dataset", {1e-6});
  fields.add(
      "max_steps", settings.max_steps, "optimizer steps, whatever epochs says; 0 = from epochs",
      kAtLeastZero);
  fields.add(
      "accumulation", settings.accumulation,
      "batches of each rank per optimizer step, which takes ranks x accumulation of them",
      kAtLeastOne);
  fields.add("lr", settings.lr, "peak learning rate", kAtLeastZero);
  fields.add("warmup", settings.warmup, "share of all steps that warms up", kShare);
  fields.add_choice(
      "schedule", settings.schedule, {"cosine", "constant", "wsd"},
      "course of the learning rate after warm-up; wsd = constant, then to 0 in the last fifth");
  fields.add("betas", settings.betas, "decay of AdamW's two moments", kShare);
  fields.add("weight_decay", settings.weight_decay, "AdamW's decoupled weight decay", kAtLeastZero);
  fields.add(
      "clip_norm", settings.clip_norm, "largest gradient norm; 0 = no clipping", kAtLeastZero);
  fields.add(
      "split_masters", settings.split_masters,
      "keep float32 masters as the bfloat16 weight and 16 more bits: 2 bytes a parameter instead "
      "of 4, and the same numbers");
  fields.add("save_every", settings.save_every, "steps between checkpoints", kAtLeastOne);
  fields.add(
      "keep_last", settings.keep_last,
      "newest checkpoints that are kept, beside the one that checkpoints/best points to",
      kAtLeastOne);
  fields.add(
      "eval_every", settings.eval_every,
      "steps between evaluations on the sequences of data.held_out; each new best one is saved",
      kAtLeastOne);
  fields.add_choice(
      "eval_method", settings.eval_method, {"chain", "tree"},
      "whose acceptance makes a step the best: the best guess per slot, or trees of "
      "eval.tree_budget nodes");
  fields.add("log_every", settings.log_every, "steps between lines of metrics.jsonl", kAtLeastOne);
  fields.add("seed", settings.seed, "seed of the drafter's random weights", kAtLeastZero);
  fields.add(
      "profile_steps", settings.profile_steps,
      "steps from the start of which RUN/trace.json says what took how long, for "
      "https://ui.perfetto.dev; 0 = none",
      kAtLeastZero);
  fields.add(
      "shard_optimizer", settings.shard_optimizer,
      "each rank keeps masters and moments of its share of the parameters only (ZeRO-1); the same "
      "weights for less memory");
  fields.add("allow_change", settings.allow_change, "settings that may differ on --resume");
}

}  // namespace draftsmith::train
