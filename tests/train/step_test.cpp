// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"
#include "draftsmith/memory/host_allocator.h"
#include "draftsmith/train/objective.h"
#include "draftsmith/train/optimizer.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"
#include "tests/train/tiny_batches.h"

namespace draftsmith::train {
namespace {

using testing::golden;
using testing::make_batch;
using testing::make_loss;
using testing::make_sequence;
using testing::max_difference;
using testing::narrow_rows;
using testing::relative_difference;

const model::Target& tiny_target() {
  static const auto target = testing::load_target("targets/qwen3-tiny");
  return target;
}

/// The forced batch of a drafter fixture.
pipeline::TrainBatch
fixture_batch(const model::Drafter& drafter, const std::string& folder, double gamma) {
  const auto file = golden(folder + "/expected.safetensors");
  pipeline::TrainBatch batch;
  batch.blocks = data::make_draft_blocks(
      {file.tensor("input_ids"), file.tensor("loss_mask"), {}},
      {file.tensor("anchors"), file.tensor("keep")}, drafter.block_rule(gamma));
  batch.features = file.tensor("target_hidden");
  batch.embedded = tiny_target().embed(batch.blocks.block_ids.flatten(1));
  return batch;
}

TEST(MicroStep, EqualsTheReferenceLossAndGradients) {
  for (const std::string folder : {"drafter/full", "drafter/sliding"}) {
    const auto drafter = model::Drafter::load(testing::fixture(folder), torch::kFloat);
    const auto file = golden(folder + "/expected.safetensors");
    for (const auto& [prefix, gamma] :
         {std::pair("dflash.gamma10.", 10.0), std::pair("dflash.", 0.0)}) {
      for (const std::string method : {"fused", "recompute", "full"}) {
        SCOPED_TRACE(folder + " " + prefix + method);
        auto loss = make_loss(gamma, 0, 0);
        loss.method = method;
        const auto step = run_micro_step(
            drafter, tiny_target().lm_head(), fixture_batch(drafter, folder, gamma), loss);
        const double expected = file.tensor(std::string(prefix) + "loss").item<double>();
        EXPECT_NEAR(step.sums.loss(), expected, 1e-5 * expected);
        EXPECT_EQ(
            step.sums.accuracy(), file.tensor(std::string(prefix) + "accuracy").item<double>());
        int64_t compared = 0;
        for (size_t i = 0; i < step.gradients.size(); ++i) {
          const std::string name = prefix + ("grad." + drafter.parameters()[i].first);
          if (!file.has(name)) continue;
          ++compared;
          const auto gradient = step.gradients[i] / step.sums.weight_sum;
          EXPECT_LE(relative_difference(gradient, file.tensor(name)), 1e-4) << name;
        }
        EXPECT_EQ(compared, gamma > 0 ? static_cast<int64_t>(step.gradients.size()) : 2);
      }
    }
  }
}

TEST(MicroStep, EqualsTheReferenceOfDPace) {
  for (const std::string folder : {"drafter/full", "drafter/sliding"}) {
    const auto drafter = model::Drafter::load(testing::fixture(folder), torch::kFloat);
    const auto file = golden(folder + "/expected.safetensors");
    for (const std::string weighting :
         {"dpace", "dpace-cumulative-confidence-only", "dpace-continuation-value-only"}) {
      for (const std::string method : {"fused", "recompute", "full"}) {
        SCOPED_TRACE(folder + " " + weighting + " " + method);
        auto loss = make_loss(10, 0, 0);
        loss.weighting = weighting;
        loss.method = method;
        loss.chunk_rows = method == "full" ? 0 : 5;
        const auto step = run_micro_step(
            drafter, tiny_target().lm_head(), fixture_batch(drafter, folder, loss.block_decay()),
            loss);
        EXPECT_EQ(step.sums.weight_sum, 2);
        const double expected = file.tensor(weighting + ".loss").item<double>();
        EXPECT_NEAR(step.sums.loss(), expected, 1e-5 * expected);
        EXPECT_EQ(step.sums.accuracy(), file.tensor(weighting + ".accuracy").item<double>());
        int64_t compared = 0;
        for (size_t i = 0; i < step.gradients.size(); ++i) {
          const std::string name = weighting + ".grad." + drafter.parameters()[i].first;
          if (!file.has(name)) continue;
          ++compared;
          EXPECT_LE(relative_difference(step.gradients[i] / 2, file.tensor(name)), 1e-4) << name;
        }
        EXPECT_EQ(compared, 2);
      }
    }
  }
}

TEST(MicroStep, GivesTheSameGradientsHoweverItIsComputed) {
  for (const std::string folder : {"drafter/full", "drafter/sliding"}) {
    const auto drafter = model::Drafter::load(testing::fixture(folder), torch::kFloat);
    const auto batch = fixture_batch(drafter, folder, 10);
    const auto loss = make_loss(10, 0, 0.1);
    const auto run = [&](const model::ForwardPlan& plan) {
      return run_micro_step(drafter, tiny_target().lm_head(), batch, loss, true, plan);
    };
    const auto wanted = run({});
    for (const auto method :
         {ops::AttentionMethod::kBlock, ops::AttentionMethod::kGather,
          ops::AttentionMethod::kDense}) {
      for (const bool recomputes : {false, true}) {
        const auto step = run({method, recomputes});
        EXPECT_NEAR(step.sums.loss_sum, wanted.sums.loss_sum, 1e-5 * wanted.sums.loss_sum);
        ASSERT_EQ(step.gradients.size(), wanted.gradients.size());
        for (size_t i = 0; i < step.gradients.size(); ++i) {
          EXPECT_LE(relative_difference(step.gradients[i], wanted.gradients[i]), 1e-5)
              << drafter.parameters()[i].first;
        }
      }
    }
  }
}

TEST(MicroStep, GivesTheSameBitsWithAndWithoutRecomputation) {
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  // 4, 12, 36 and 240 rows of blocks: products of few rows have another kernel where no gradients
  // are needed.
  for (const int64_t blocks : {1, 3, 9, 60}) {
    const auto all = torch::arange(blocks, torch::kLong).unsqueeze(0);
    const auto batch = make_batch(
        tiny_target(), drafter, {make_sequence(blocks + 5, 0, 1)}, 10,
        {all, torch::ones_like(all, torch::kBool)});
    for (const auto method :
         {ops::AttentionMethod::kBlock, ops::AttentionMethod::kGather,
          ops::AttentionMethod::kDense}) {
      SCOPED_TRACE(fmt::format("{} blocks, method {}", blocks, static_cast<int>(method)));
      const auto run = [&](bool recomputes) {
        return run_micro_step(
            drafter, tiny_target().lm_head(), batch, make_loss(10, 0.15, 0.1), true,
            {method, recomputes});
      };
      const auto kept = run(false), again = run(true);
      EXPECT_EQ(kept.sums.loss_sum, again.sums.loss_sum);
      EXPECT_TRUE(kept.hidden.equal(again.hidden));
      ASSERT_EQ(kept.gradients.size(), again.gradients.size());
      for (size_t i = 0; i < kept.gradients.size(); ++i)
        EXPECT_TRUE(kept.gradients[i].equal(again.gradients[i])) << drafter.parameters()[i].first;
    }
  }
}

/// The weights and moments after some steps with recomputation, each of other sequences.
std::vector<torch::Tensor> train_a_drafter(uint64_t seed) {
  at::set_num_threads(1);  // of this thread: sums depend on it
  const auto drafter = testing::make_tiny_drafter(tiny_target(), "float32", seed);
  AdamW optimizer(drafter.parameters(), {});
  for (uint64_t step = 0; step < 8; ++step) {
    const auto batch = make_batch(
        tiny_target(), drafter,
        {make_sequence(20 + static_cast<int64_t>(step), 0, 100 * seed + step),
         make_sequence(40, 3, 100 * seed + 50 + step)},
        10);
    const auto micro = run_micro_step(
        drafter, tiny_target().lm_head(), batch, make_loss(10, 0.15, 0.1), true,
        {.recomputes_layers = true}, /*tree_budget=*/8);
    optimizer.accumulate(micro.gradients);
    const double scale = 1 / micro.sums.weight_sum;
    optimizer.step(1e-3, scale, optimizer.gradient_norm(scale));
  }
  std::vector<torch::Tensor> result;
  for (const auto& [name, tensor] : drafter.parameters())
    result.push_back(tensor.detach());
  for (const auto& [name, tensor] : optimizer.state())
    result.push_back(tensor);
  return result;
}

TEST(MicroStep, OfTwoDraftersAtOnceGivesTheBitsOfOneAfterTheOther) {
  memory::install_host_allocator();
  tiny_target();  // before bytes are counted
  const int64_t live = memory::host_bytes().live;
  {
    std::vector<std::vector<torch::Tensor>> alone(2), together(2);
    for (uint64_t i : {0, 1})
      std::jthread([&, i] { alone[i] = train_a_drafter(i); }).join();
    {
      std::vector<std::jthread> threads;
      for (uint64_t i : {0, 1})
        threads.emplace_back([&, i] { together[i] = train_a_drafter(i); });
    }
    for (size_t drafter : {0, 1}) {
      ASSERT_EQ(alone[drafter].size(), together[drafter].size());
      for (size_t i = 0; i < alone[drafter].size(); ++i)
        EXPECT_TRUE(alone[drafter][i].equal(together[drafter][i])) << drafter << ", " << i;
    }
    EXPECT_FALSE(alone[0][0].equal(alone[1][0]));
  }
  EXPECT_EQ(memory::host_bytes().live, live);
}

TEST(DPace, WithoutSmoothingIsTheDerivativeOfTheExpectedAcceptance) {
  const auto q = torch::tensor({1.0, 0.9, 0.5, 0.7, 1.0, 0.4, 0.3, 0.8}).view({1, 2, 4});
  auto supervised = torch::ones({1, 2, 4}, torch::kBool);
  supervised.select(2, 0).fill_(false);
  supervised[0][1][2] = false;  // a hole neither breaks the prefix nor counts
  LossSettings loss;
  loss.weighting = "dpace";
  loss.dpace_alpha = 0;
  const auto log_q = q.log().set_requires_grad(true);
  const auto prefix = log_q.exp().masked_fill(supervised.logical_not(), 1).cumprod(-1);
  const auto expected = (prefix * supervised.to(torch::kDouble)).sum();
  const auto wanted = torch::autograd::grad({expected}, {log_q})[0];
  EXPECT_LE(testing::max_difference(dpace_weights(q, supervised, loss), wanted * supervised), 1e-6);
}

TEST(DPace, RefusesOtherTerms) {
  LossSettings loss;
  loss.weighting = "dpace";
  testing::expect_error<ConfigError>([&] { loss.check(); }, {"dpace", "--loss.kl_weight=0"});
  loss.kl_weight = loss.cap_weight = 0;
  EXPECT_NO_THROW(loss.check());
}

TEST(MicroStep, GivesTheSameSumsHoweverABatchIsCut) {
  // F06: 3, 7, 20 and 2 supervised tokens at the end of 64.
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  std::vector<data::TokenSequence> sequences;
  for (const int64_t count : {3, 7, 20, 2})
    sequences.push_back(make_sequence(64, 64 - count, static_cast<uint64_t>(count)));
  auto batch = make_batch(tiny_target(), drafter, sequences, 7);
  const auto lm_head = tiny_target().lm_head();

  // Every second supervised slot gets the draft's own argmax as its label, so that CAP counts.
  const auto hidden = run_micro_step(drafter, lm_head, batch, make_loss(7, 0, 0), false).hidden;
  const auto best = tiny_target().logits(hidden).argmax(-1).view(batch.blocks.labels.sizes());
  const auto supervised = (batch.blocks.weights > 0).flatten().nonzero().squeeze(1);
  const auto chosen = supervised.slice(0, 0, {}, 2);
  batch.blocks.labels.view({-1}).index_copy_(0, chosen, best.flatten().index_select(0, chosen));

  for (const auto& loss :
       {make_loss(7, 0, 0), make_loss(7, 1, 0), make_loss(7, 0, 1), make_loss(7, 0.15, 0.1)}) {
    const auto whole = run_micro_step(drafter, lm_head, batch, loss);
    EXPECT_GT(whole.sums.cap(), 0.1);
    for (const std::vector<int64_t>& cut : {std::vector<int64_t>{3, 1}, {1, 1, 1, 1}}) {
      MicroStep total;
      int64_t first = 0;
      for (const int64_t count : cut) {
        testing::add_micro_step(
            total, run_micro_step(drafter, lm_head, narrow_rows(batch, first, count), loss));
        first += count;
      }
      EXPECT_NEAR(total.sums.loss(), whole.sums.loss(), 1e-5 * whole.sums.loss());
      EXPECT_NEAR(total.sums.weight_sum, whole.sums.weight_sum, 1e-5 * whole.sums.weight_sum);
      EXPECT_EQ(total.sums.correct, whole.sums.correct);
      EXPECT_EQ(total.sums.blocks, whole.sums.blocks);
      EXPECT_EQ(total.sums.tokens, 256);
      for (size_t i = 0; i < whole.gradients.size(); ++i) {
        EXPECT_GT(whole.gradients[i].norm().item<double>(), 0) << drafter.parameters()[i].first;
        EXPECT_LE(relative_difference(total.gradients[i], whole.gradients[i]), 1e-5)
            << drafter.parameters()[i].first;
      }
    }
  }
}

TEST(MicroStep, DividesOneSumByOneWeight) {
  // F06's arithmetic: three targets at loss 1 and one at loss 5 give 2, never 3.
  MetricSums left;
  left.loss_sum = 3;
  left.weight_sum = 3;
  MetricSums right;
  right.loss_sum = 5;
  right.weight_sum = 1;
  left += right;
  EXPECT_EQ(left.loss(), 2);
}

TEST(MicroStep, IsNotChangedByAPaddingBlock) {
  // F07: lengths 12 and 6; the second row has one block and one that is not kept.
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  const std::vector<data::TokenSequence> sequences = {
      make_sequence(12, 0, 1), make_sequence(6, 0, 2)};
  const auto loss = make_loss(10, 0.15, 0.1);
  const auto lm_head = tiny_target().lm_head();
  for (const int64_t first_anchor : {3, 0}) {  // an anchor at 0 has no context at all
    const auto positions =
        torch::tensor({first_anchor, int64_t{5}, int64_t{2}, int64_t{0}}).view({2, 2});
    const auto keep = torch::tensor({1, 1, 1, 0}).view({2, 2}).to(torch::kBool);
    const auto both = run_micro_step(
        drafter, lm_head, make_batch(tiny_target(), drafter, sequences, 10, {positions, keep}),
        loss);
    MicroStep apart;
    for (const int64_t b : {0, 1}) {
      const int64_t kept = b == 0 ? 2 : 1;
      const auto batch = make_batch(
          tiny_target(), drafter, {sequences[static_cast<size_t>(b)]}, 10,
          {positions.narrow(0, b, 1).narrow(1, 0, kept), keep.narrow(0, b, 1).narrow(1, 0, kept)});
      testing::add_micro_step(apart, run_micro_step(drafter, lm_head, batch, loss));
    }
    EXPECT_EQ(both.sums.blocks, 3);
    EXPECT_EQ(both.sums.count, apart.sums.count);
    EXPECT_NEAR(both.sums.loss_sum, apart.sums.loss_sum, 1e-5 * apart.sums.loss_sum);
    for (size_t i = 0; i < both.gradients.size(); ++i) {
      EXPECT_TRUE(both.gradients[i].isfinite().all().item<bool>());
      EXPECT_LE(relative_difference(both.gradients[i], apart.gradients[i]), 1e-5);
    }
  }
}

TEST(MicroStep, StaysFiniteInBfloat16WithAPaddingBlock) {
  const auto drafter = testing::make_tiny_drafter(tiny_target(), "bfloat16");
  const auto batch = make_batch(
      tiny_target(), drafter, {make_sequence(12, 0, 1), make_sequence(6, 0, 2)}, 10,
      {torch::tensor({int64_t{0}, int64_t{5}, int64_t{2}, int64_t{0}}).view({2, 2}),
       torch::tensor({1, 1, 1, 0}).view({2, 2})});
  const auto step = run_micro_step(
      drafter, tiny_target().lm_head().to(torch::kBFloat16), batch, make_loss(10, 0.15, 0.1));
  EXPECT_GT(step.sums.loss(), 0);
  EXPECT_TRUE(std::isfinite(step.sums.loss()));
  for (const auto& gradient : step.gradients)
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
}

TEST(MicroStep, GivesZerosForABatchWithoutLabels) {
  // F09: nothing but sequences without trainable tokens.
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  for (const int64_t first_supervised : {12, 11}) {  // no mask at all; the last token only
    const auto batch =
        make_batch(tiny_target(), drafter, {make_sequence(12, first_supervised, 1)}, 10);
    for (const std::string method : {"fused", "full"}) {
      auto loss = make_loss(10, 0.15, 0.1);
      loss.method = method;
      const auto step = run_micro_step(drafter, tiny_target().lm_head(), batch, loss);
      EXPECT_EQ(step.sums.weight_sum, 0);
      EXPECT_EQ(step.sums.loss_sum, 0);
      EXPECT_EQ(step.sums.loss(), 0);
      EXPECT_EQ(step.sums.accuracy(), 0);
      EXPECT_EQ(step.sums.expected_acceptance(), 0);
      for (const auto& gradient : step.gradients)
        EXPECT_TRUE(!gradient.defined() || gradient.abs().max().item<double>() == 0);
    }
  }
}

TEST(MicroStep, HandsOnTheSameGradientsAsTheyComeFromTheLastLayerOn) {
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  const auto batch = make_batch(tiny_target(), drafter, {make_sequence(12, 0, 1)}, 10);
  const auto loss = make_loss(10, 0.15, 0.1);
  for (const bool recomputes : {false, true}) {
    const model::ForwardPlan plan{.recomputes_layers = recomputes};
    const auto lm_head = tiny_target().lm_head();
    const auto kept = run_micro_step(drafter, lm_head, batch, loss, true, plan);
    std::vector<size_t> order;
    const auto sink = [&](size_t parameter, const torch::Tensor& gradient) {
      order.push_back(parameter);
      EXPECT_TRUE(gradient.equal(kept.gradients[parameter])) << parameter;
    };
    const auto passed = run_micro_step(drafter, lm_head, batch, loss, true, plan, 0, sink);
    EXPECT_TRUE(passed.gradients.empty());
    EXPECT_EQ(passed.sums.loss_sum, kept.sums.loss_sum);
    ASSERT_EQ(order.size(), kept.gradients.size());
    const auto& parameters = drafter.parameters();
    EXPECT_EQ(parameters[order.front()].first, "norm.weight");
    const auto layer_of = [&](size_t place) { return parameters[order[place]].first.substr(0, 8); };
    EXPECT_EQ(layer_of(1), "layers.1");
    EXPECT_EQ(layer_of(order.size() - 3), "layers.0");
    for (const auto& [name, parameter] : parameters)
      EXPECT_FALSE(parameter.grad().defined()) << name;
  }
}

TEST(MicroStep, MakesNoGradientsUnlessAsked) {
  const auto drafter = testing::make_tiny_drafter(tiny_target());
  const auto batch = make_batch(tiny_target(), drafter, {make_sequence(12, 0, 1)}, 10);
  const auto loss = make_loss(10, 0.15, 0.1);
  const auto with = run_micro_step(drafter, tiny_target().lm_head(), batch, loss, true);
  const auto without = run_micro_step(drafter, tiny_target().lm_head(), batch, loss, false);
  EXPECT_TRUE(without.gradients.empty());
  // Few rows without gradients run in another kernel of ops::linear, so the last bits differ.
  EXPECT_NEAR(with.sums.loss_sum / without.sums.loss_sum, 1, 1e-5);
  EXPECT_LE(testing::relative_difference(with.hidden, without.hidden), 1e-5);
}

}  // namespace
}  // namespace draftsmith::train
