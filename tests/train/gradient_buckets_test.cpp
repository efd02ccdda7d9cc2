// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/gradient_buckets.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "draftsmith/train/optimizer.h"

#include "tests/support/golden.h"
#include "tests/support/rank_threads.h"
#include "tests/support/reference.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::train {
namespace {

using pipeline::Ranks;
using testing::random_normal;
using testing::run_ranks;
using torch::Tensor;

TEST(BucketPlan, FillsBucketsFromTheLastParameterOnAndAlignsAll) {
  const auto plan = plan_buckets({100, 5, 64, 17}, 3, 80);
  // 17 takes 32 elements and 64 follows; then 5 takes 16 and 100 takes 112.
  ASSERT_EQ(plan.sizes.size(), 2U);
  EXPECT_EQ(plan.places[3].bucket, 0U);
  EXPECT_EQ(plan.places[3].begin, 0);
  EXPECT_EQ(plan.places[2].bucket, 0U);
  EXPECT_EQ(plan.places[2].begin, 32);
  EXPECT_EQ(plan.places[1].bucket, 1U);
  EXPECT_EQ(plan.places[0].begin, 16);
  EXPECT_EQ(plan.sizes[0], 96);   // 96 = 2 x 48
  EXPECT_EQ(plan.sizes[1], 144);  // 128, rounded up to 3 parts of 48
}

TEST(BucketPlan, GivesEveryElementToOneRank) {
  const std::vector<int64_t> counts = {100, 5, 640, 17, 1};
  for (const int64_t ranks : {2, 3, 8}) {
    const auto plan = plan_buckets(counts, ranks, 200);
    std::vector<std::vector<int>> owners;
    for (const int64_t count : counts)
      owners.emplace_back(static_cast<size_t>(count), 0);
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (const Slice& slice : plan.slices_of(rank)) {
        EXPECT_EQ(slice.begin % BucketPlan::kAlignment, 0);
        for (int64_t i = 0; i < slice.count; ++i)
          ++owners[slice.parameter][static_cast<size_t>(slice.begin + i)];
      }
    for (const auto& of_parameter : owners)
      for (const int count : of_parameter)
        EXPECT_EQ(count, 1);
  }
}

TEST(GradientBuckets, LeaveOnceTheyAreFullWhileOtherGradientsAreStillToCome) {
  for (const bool scatters : {false, true})
    run_ranks(2, [&](Ranks& ranks) {
      const std::vector<Tensor> parameters(4, torch::zeros({64}));
      GradientBuckets buckets(parameters, ranks, scatters, /*bucket_elements=*/128);
      const auto gradient = torch::full({64}, static_cast<float>(1 + ranks.rank()));
      for (size_t i = 4; i-- > 0;)
        buckets.add(i, gradient);
      EXPECT_EQ(buckets.num_sent(), 0U) << "more is to be added to all of them";
      buckets.begin_last_micro_step();
      const std::vector<size_t> wanted = {2, 1, 1, 0};  // after the gradient of each parameter
      for (size_t i = 4; i-- > 0;) {
        buckets.add(i, gradient);
        EXPECT_EQ(buckets.num_sent(), wanted[i]) << i;
      }
      buckets.reduce();
      EXPECT_EQ(buckets.num_sent(), 0U);
      const auto own = buckets.buckets()[1].chunk(2)[ranks.rank()];
      EXPECT_TRUE(own.equal(torch::full({64}, 6.0F)));
    });
}

/// Parameters of odd sizes, the same on every rank.
AdamW::Parameters make_parameters(torch::ScalarType dtype) {
  AdamW::Parameters parameters;
  uint64_t seed = 0;
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{33, 7}, {5}, {40, 41}, {1}, {17}, {900}}) {
    parameters.emplace_back(
        "p" + std::to_string(seed), random_normal(shape, seed).to(dtype).contiguous());
    ++seed;
  }
  return parameters;
}

std::vector<Tensor> make_gradients(
    const AdamW::Parameters& parameters, int64_t rank, int64_t micro_step) {
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto seed = 1000 + 100 * static_cast<uint64_t>(micro_step) +
                      10 * static_cast<uint64_t>(rank) + i;
    gradients.push_back(random_normal(parameters[i].second.sizes().vec(), seed)
                            .to(parameters[i].second.scalar_type()));
  }
  return gradients;
}

TEST(GradientBuckets, SumMicroStepsAndRanksInFloat32) {
  run_ranks(3, [](Ranks& ranks) {
    const auto parameters = make_parameters(torch::kBFloat16);
    std::vector<Tensor> weights;
    for (const auto& [name, weight] : parameters)
      weights.push_back(weight);
    // Buckets of 300 elements: several of them.
    GradientBuckets buckets(weights, ranks, false, 300);
    EXPECT_GT(buckets.plan().sizes.size(), 2U);
    for (int64_t round = 0; round < 2; ++round) {
      std::vector<Tensor> exact;
      for (const auto& weight : weights)
        exact.push_back(torch::zeros(weight.sizes(), torch::kDouble));
      double square_sum = 0;
      for (int64_t step = 0; step < 2; ++step) {
        for (int64_t rank = 0; rank < 3; ++rank) {
          const auto gradients = make_gradients(parameters, rank, 2 * round + step);
          for (size_t i = 0; i < gradients.size(); ++i)
            exact[i] += gradients[i].to(torch::kDouble);
        }
        if (step == 1) buckets.begin_last_micro_step();
        const auto own = make_gradients(parameters, ranks.rank(), 2 * round + step);
        // Parameter 2 has no gradient on rank 1 in the last micro-step.
        for (size_t i = own.size(); i-- > 0;) {
          const bool is_missing = i == 2 && ranks.rank() == 1 && step == 1;
          if (!is_missing) buckets.add(i, own[i]);
        }
      }
      exact[2] -= make_gradients(parameters, 1, 2 * round + 1)[2].to(torch::kDouble);
      buckets.reduce();
      for (size_t i = 0; i < exact.size(); ++i) {
        square_sum += exact[i].square().sum().item<double>();
        // Six terms of at most 8: five additions.
        EXPECT_LE(testing::max_difference(buckets.sums()[i], exact[i]), 5 * 32 * std::exp2(-24));
      }
      EXPECT_NEAR(buckets.norm() / std::sqrt(square_sum), 1, 1e-6);
      buckets.clear();
      EXPECT_EQ(buckets.norm(), 0);
    }
  });
}

TEST(GradientBuckets, AreReducedByARankThatHasNothingToAdd) {
  run_ranks(2, [](Ranks& ranks) {
    const auto parameters = make_parameters(torch::kFloat);
    AdamW optimizer(parameters, {}, ranks);
    const auto gradients = make_gradients(parameters, 0, 0);
    if (ranks.is_first()) {
      optimizer.begin_last_micro_step();
      optimizer.accumulate(gradients);
    }
    optimizer.reduce_gradients();
    double square_sum = 0;
    for (const auto& gradient : gradients)
      square_sum += gradient.to(torch::kDouble).square().sum().item<double>();
    EXPECT_NEAR(optimizer.gradient_norm(1) / std::sqrt(square_sum), 1, 1e-6);
  });
}

/// Weights and state after three steps by `size` ranks.
formats::NamedTensors train(int64_t size, torch::ScalarType dtype, bool is_sharded) {
  formats::NamedTensors result;
  run_ranks(size, [&](Ranks& ranks) {
    const auto parameters = make_parameters(dtype);
    AdamW optimizer(
        parameters, {.weight_decay = 0.1, .clip_norm = 3, .shards_state = is_sharded}, ranks);
    for (int64_t step = 0; step < 3; ++step) {
      optimizer.begin_last_micro_step();
      optimizer.accumulate(make_gradients(parameters, ranks.rank(), step));
      optimizer.reduce_gradients();
      optimizer.step(1e-2, 0.125, optimizer.gradient_norm(0.125));
    }
    // All ranks hold the same weights.
    for (const auto& [name, weight] : parameters) {
      const auto of_first = weight.clone();
      ranks.broadcast(of_first);
      EXPECT_TRUE(weight.equal(of_first)) << name;
    }
    const auto state = optimizer.state();
    if (!ranks.is_first()) return;
    for (const auto& [name, weight] : parameters)
      result.emplace_back(name, weight);
    for (const auto& [name, tensor] : state)
      result.emplace_back(name, tensor.clone());
  });
  return result;
}

TEST(AdamW, ShardedOverRanksHasTheSameBits) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const int64_t size : {2, 3, 4}) {
      const auto whole = train(size, dtype, false);
      const auto sharded = train(size, dtype, true);
      ASSERT_EQ(whole.size(), sharded.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(whole[i].first, sharded[i].first);
        EXPECT_TRUE(whole[i].second.equal(sharded[i].second)) << size << " " << whole[i].first;
      }
    }
  }
}

TEST(AdamW, OfSeveralRanksMakesTheStepOfOne) {
  const auto parameters = make_parameters(torch::kFloat);
  AdamW alone(parameters, {.weight_decay = 0.1, .clip_norm = 3});
  for (int64_t step = 0; step < 3; ++step) {
    for (int64_t rank = 0; rank < 4; ++rank)
      alone.accumulate(make_gradients(parameters, rank, step));
    alone.step(1e-2, 0.125, alone.gradient_norm(0.125));
  }
  const auto together = train(4, torch::kFloat, true);
  for (size_t i = 0; i < parameters.size(); ++i)
    EXPECT_LE(testing::relative_difference(together[i].second, parameters[i].second), 1e-6);
}

TEST(AdamW, LoadsWhatOtherNumbersOfRanksSaved) {
  const testing::TempFolder folder;
  formats::NamedTensors saved;
  run_ranks(3, [&](Ranks& ranks) {
    const auto parameters = make_parameters(torch::kBFloat16);
    AdamW optimizer(parameters, {.shards_state = true}, ranks);
    optimizer.accumulate(make_gradients(parameters, ranks.rank(), 0));
    optimizer.reduce_gradients();
    optimizer.step(1e-2, 1, optimizer.gradient_norm(1));
    const auto state = optimizer.state();
    if (!ranks.is_first()) return;
    formats::write_safetensors(folder / "state", state);
    for (const auto& [name, tensor] : state)
      saved.emplace_back(name, tensor.clone());
  });
  const auto reader = formats::SafetensorsReader::open_file(folder / "state");
  run_ranks(2, [&](Ranks& ranks) {
    const auto parameters = make_parameters(torch::kBFloat16);
    AdamW optimizer(parameters, {.shards_state = true}, ranks);
    optimizer.load_state(reader, 1);
    const auto state = optimizer.state();
    if (!ranks.is_first()) return;
    ASSERT_EQ(state.size(), saved.size());
    for (size_t i = 0; i < state.size(); ++i)
      EXPECT_TRUE(state[i].second.equal(saved[i].second)) << state[i].first;
    for (const auto& [name, weight] : parameters)
      EXPECT_TRUE(weight.equal(reader.tensor("master." + name).to(torch::kBFloat16))) << name;
  });
}

}  // namespace
}  // namespace draftsmith::train
