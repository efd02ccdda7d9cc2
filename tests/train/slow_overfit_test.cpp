// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "draftsmith/eval/token_picker.h"

#include "tests/train/tiny_run.h"

namespace draftsmith::train {
namespace {

using testing::TempFolder;

constexpr int64_t kLength = 64;

/// Mean tokens of the full rounds of drafting from position 32 on, when the target's output is
/// forced to be `forced`: the drafts that match before the first miss, and the target's token.
double measure_tau(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<int64_t>& context,
    const std::vector<int64_t>& forced) {
  const at::NoGradGuard no_grad;
  const int64_t K = drafter.config().block_size;
  const auto ids = torch::tensor(context, torch::kLong).unsqueeze(0);
  const auto features = target.forward(ids, drafter.config().target_layer_ids).features;
  double tokens = 0;
  double rounds = 0;
  int64_t anchor = 32;
  while (anchor + K - 1 < kLength) {
    auto cache = drafter.make_cache(1, kLength);
    drafter.append_context(cache, features.narrow(1, 0, anchor));
    std::vector<int64_t> block(static_cast<size_t>(K), drafter.config().mask_token_id);
    block[0] = context[static_cast<size_t>(anchor)];
    const auto states =
        drafter.draft(target.embed(torch::tensor(block, torch::kLong).unsqueeze(0)), cache);
    const auto picks = eval::pick_greedy(target.logits(states[0]));
    int64_t accepted = 0;
    while (accepted < K - 1 && picks[static_cast<size_t>(accepted + 1)] ==
                                   forced[static_cast<size_t>(anchor + accepted + 1)])
      ++accepted;
    tokens += static_cast<double>(accepted + 1);
    ++rounds;
    anchor += accepted + 1;
  }
  return tokens / rounds;
}

TEST(SlowOverfit, DraftsTheSampleItWasTrainedOn) {
  // F02: a label or position that is one slot out of step leaves about 1.
  const TempFolder folder;
  const auto target = testing::load_target("targets/qwen3-tiny");
  const auto sample = testing::make_sequence(kLength, 0, 1);
  data::DataSettings data_settings;
  TrainSettings settings;
  settings.out = (folder / "run").string();
  settings.max_steps = 500;
  settings.lr = 3e-3;
  Trainer trainer(
      target, testing::make_tiny_drafter(target),
      data::BatchSource(
          data::TokenDataset::open(testing::write_dataset_folder(folder, "dataset", {sample}), ""),
          data_settings, target.config().vocab_size),
      testing::make_loss(7, 0, 0), settings, {});
  const double before = measure_tau(target, trainer.drafter(), sample.ids, sample.ids);
  trainer.run();
  EXPECT_LT(before, 1.5);
  EXPECT_GE(measure_tau(target, trainer.drafter(), sample.ids, sample.ids), 3.9);
  // The same drafts against a sample that is shifted by one, to show that the measure can fail.
  auto shifted = sample.ids;
  shifted.erase(shifted.begin());
  shifted.push_back(0);
  EXPECT_LT(measure_tau(target, trainer.drafter(), sample.ids, shifted), 1.5);
}

}  // namespace
}  // namespace draftsmith::train
