// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"
#include "tests/support/reference.h"

namespace draftsmith::ops {
namespace {

using testing::max_difference;
using testing::random_normal;
using torch::Tensor;

constexpr double kExact = 1e-12;  // float64
const DeltaShape kShape{2, 4, 16, 20};

DeltaInputs make_inputs(int64_t B, int64_t T, uint64_t seed) {
  return {
      random_normal({B, T, kShape.width()}, seed),
      // From hardly any decay to states that are gone after a token.
      -(random_normal({B, T, 4}, seed + 1) * 2).exp(), random_normal({B, T, 4}, seed + 2).sigmoid(),
      kShape};
}

Tensor make_state(int64_t B, uint64_t seed) { return random_normal({B, 4, 16, 20}, seed); }

DeltaInputs take(const DeltaInputs& inputs, int64_t row, const std::vector<int64_t>& tokens) {
  const auto index = torch::tensor(tokens, torch::kLong);
  const auto select = [&](const Tensor& x) { return x[row].index_select(0, index).unsqueeze(0); };
  return {select(inputs.mixed), select(inputs.decay), select(inputs.beta), inputs.shape};
}

DeltaInputs as_type(const DeltaInputs& inputs, torch::ScalarType dtype) {
  return {
      inputs.mixed.to(dtype), inputs.decay.to(torch::kFloat), inputs.beta.to(torch::kFloat),
      inputs.shape};
}

/// The recurrence as it is written, for the tokens of row 0; `state` [Hv, Ek, Ev] follows.
Tensor run_by_definition(const DeltaInputs& inputs, Tensor state) {
  const int64_t T = inputs.mixed.size(1);
  auto out = torch::zeros({1, T, 4, 20}, torch::kDouble);
  const auto normed = [](const Tensor& x) { return x / (x.square().sum() + 1e-6).sqrt(); };
  for (int64_t t = 0; t < T; ++t) {
    const auto token = inputs.mixed[0][t];
    for (int64_t h = 0; h < 4; ++h) {
      const auto q = normed(token.narrow(0, h / 2 * 16, 16)) / 4;
      const auto k = normed(token.narrow(0, 32 + h / 2 * 16, 16));
      const auto v = token.narrow(0, 64 + h * 20, 20);
      auto S = state[h] * inputs.decay[0][t][h].exp();
      const auto change = inputs.beta[0][t][h] * (v - S.t().mv(k));
      S = S + torch::outer(k, change);
      state[h].copy_(S);
      out[0][t][h].copy_(S.t().mv(q));
    }
  }
  return out;
}

const std::vector<int64_t> kLengths = {1, 3, 63, 64, 65, 150};

TEST(DeltaRule, InChunksEqualsTheRecurrence) {
  for (const int64_t T : kLengths) {
    const auto inputs = make_inputs(1, T, 7);
    auto wanted_state = torch::zeros({4, 16, 20}, torch::kDouble);
    const auto wanted = run_by_definition(inputs, wanted_state);
    auto state = torch::zeros({1, 4, 16, 20}, torch::kDouble);
    EXPECT_LE(max_difference(delta_rule_chunked(inputs, {{0, 0, T}}, state), wanted), kExact) << T;
    EXPECT_LE(max_difference(state[0], wanted_state), kExact) << T;
    EXPECT_LE(max_difference(delta_rule_chunked(inputs, {{0, 0, T}}), wanted), kExact) << T;
  }
}

TEST(DeltaRule, TokenByTokenEqualsTheRecurrence) {
  const auto inputs = make_inputs(1, 65, 8);
  auto wanted_state = make_state(1, 1);
  auto state = wanted_state.clone();
  const auto wanted = run_by_definition(inputs, wanted_state[0]);
  EXPECT_LE(max_difference(delta_rule_recurrent(inputs, {65}, state), wanted), kExact);
  EXPECT_LE(max_difference(state, wanted_state), kExact);
}

TEST(DeltaRule, GoesOnFromAStateInEveryForm) {
  const auto inputs = make_inputs(1, 150, 9);
  auto wanted_state = make_state(1, 2);
  auto chunked_state = wanted_state.clone();
  auto mixed_state = wanted_state.clone();
  const auto wanted = run_by_definition(inputs, wanted_state[0]);
  EXPECT_LE(
      max_difference(delta_rule_chunked(inputs, {{0, 0, 150}}, chunked_state), wanted), kExact);
  EXPECT_LE(max_difference(chunked_state, wanted_state), kExact);
  const auto part = [&](int64_t begin, int64_t count) {
    std::vector<int64_t> tokens(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      tokens[static_cast<size_t>(i)] = begin + i;
    return take(inputs, 0, tokens);
  };
  const auto joined = torch::cat(
      {delta_rule_chunked(part(0, 70), {{0, 0, 70}}, mixed_state),
       delta_rule_recurrent(part(70, 10), {10}, mixed_state),
       delta_rule_chunked(part(80, 70), {{0, 0, 70}}, mixed_state)},
      1);
  EXPECT_LE(max_difference(joined, wanted), kExact);
  EXPECT_LE(max_difference(mixed_state, wanted_state), kExact);
}

TEST(DeltaRule, StartsEverySpanAnewAndLeavesPaddingZero) {
  const auto inputs = make_inputs(2, 100, 10);
  const std::vector<Span> spans = {{0, 0, 5}, {0, 5, 75}, {1, 0, 64}};
  const auto out = delta_rule_chunked(inputs, spans);
  for (const Span& span : spans) {
    std::vector<int64_t> tokens;
    for (int64_t t = span.begin; t < span.end; ++t)
      tokens.push_back(t);
    const auto alone = run_by_definition(
        take(inputs, span.row, tokens), torch::zeros({4, 16, 20}, torch::kDouble));
    EXPECT_LE(
        max_difference(
            out[span.row].narrow(0, span.begin, span.end - span.begin), alone[0]),
        kExact);
  }
  EXPECT_EQ(out[0].narrow(0, 75, 25).abs().max().item<double>(), 0);
  EXPECT_EQ(out[1].narrow(0, 64, 36).abs().max().item<double>(), 0);
}

TEST(DeltaRule, LeavesTheStateAloneAtPadding) {
  // F08: rows of 3 and of 9 tokens in a batch of 9.
  const auto inputs = make_inputs(2, 9, 11);
  for (const bool is_chunked : {false, true}) {
    auto state = make_state(2, 3);
    auto wanted_state = state.clone();
    const auto out = is_chunked
                         ? delta_rule_chunked(inputs, {{0, 0, 3}, {1, 0, 9}}, state)
                         : delta_rule_recurrent(inputs, {3, 9}, state);
    run_by_definition(take(inputs, 0, {0, 1, 2}), wanted_state[0]);
    run_by_definition(take(inputs, 1, {0, 1, 2, 3, 4, 5, 6, 7, 8}), wanted_state[1]);
    EXPECT_LE(max_difference(state, wanted_state), kExact);
    EXPECT_EQ(out[0].narrow(0, 3, 6).abs().max().item<double>(), 0);
  }
}

/// A tree of n nodes whose parents follow from the seed: bushy, deep and everything between.
std::vector<int64_t> make_parents(int64_t n, uint64_t seed) {
  std::vector<int64_t> parents = {-1};
  for (int64_t i = 1; i < n; ++i) {
    const uint64_t key = hash_key({seed, static_cast<uint64_t>(i)});
    const int64_t reach = seed % 3 == 0 ? i : std::min<int64_t>(i, 1 + static_cast<int64_t>(seed));
    parents.push_back(i - 1 - static_cast<int64_t>(key % static_cast<uint64_t>(reach)));
  }
  return parents;
}

std::vector<int64_t> path_to(const std::vector<int64_t>& parents, int64_t node) {
  std::vector<int64_t> path;
  for (; node >= 0; node = parents[static_cast<size_t>(node)])
    path.insert(path.begin(), node);
  return path;
}

TEST(DeltaRule, OfATreeEqualsTheRecurrenceOfEveryPath) {
  for (uint64_t seed = 0; seed < 9; ++seed) {
    const int64_t n = 1 + static_cast<int64_t>(seed) * 16;  // to 129: beyond a chunk
    const auto parents = make_parents(n, seed);
    const auto other = make_parents(1 + n / 2, seed + 1);
    const auto inputs = make_inputs(2, n, 20 + seed);
    const auto state = make_state(2, seed);
    const auto before = state.clone();
    const auto tree = make_tree_layout({parents, other});
    const auto walked = delta_rule_tree(inputs, tree, state);
    const auto solved = delta_rule_tree_by_ancestors(inputs, tree, state);
    EXPECT_TRUE(state.equal(before));
    for (int64_t row = 0; row < 2; ++row) {
      const auto& own = row == 0 ? parents : other;
      std::vector<Tensor> states;  // after the path to each node
      for (int64_t node = 0; node < std::ssize(own); ++node) {
        const int64_t parent = own[static_cast<size_t>(node)];
        states.push_back(
            (parent < 0 ? state[row] : states[static_cast<size_t>(parent)]).clone());
        const auto wanted = run_by_definition(take(inputs, row, {node}), states.back())[0][0];
        EXPECT_LE(max_difference(walked[row][node], wanted), kExact) << seed << " " << node;
        EXPECT_LE(max_difference(solved[row][node], wanted), kExact) << seed << " " << node;
      }
    }
  }
}

TEST(DeltaRule, GivesATreesNodeTheBitsOfItsPath) {
  const auto parents = make_parents(33, 4);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto inputs = as_type(make_inputs(1, 33, 30), dtype);
    const auto state = make_state(1, 5).to(torch::kFloat);
    const auto walked = delta_rule_tree(inputs, make_tree_layout({parents}), state);
    for (int64_t node = 0; node < 33; ++node) {
      auto own_state = state.clone();
      Tensor last;
      for (const int64_t step : path_to(parents, node))
        last = delta_rule_recurrent(take(inputs, 0, {step}), {1}, own_state);
      EXPECT_TRUE(last[0][0].equal(walked[0][node])) << node;
    }
  }
}

TEST(DeltaRule, KeepsFloat32StatesForBfloat16Inputs) {
  const auto wide = make_inputs(1, 150, 12);
  const auto narrow = as_type(wide, torch::kBFloat16);
  const DeltaInputs rounded{narrow.mixed.to(torch::kDouble), wide.decay, wide.beta, kShape};
  const auto wanted = run_by_definition(rounded, torch::zeros({4, 16, 20}, torch::kDouble));
  auto state = torch::zeros({1, 4, 16, 20}, torch::kFloat);
  // Only the output is rounded to bfloat16; everything before has float32's error.
  EXPECT_LE(
      testing::relative_difference(delta_rule_recurrent(narrow, {150}, state), wanted),
      std::exp2(-9));
  EXPECT_LE(
      testing::relative_difference(delta_rule_chunked(narrow, {{0, 0, 150}}), wanted),
      std::exp2(-9));
}

TEST(DeltaRule, InChunksOfLibtorchsOperationsEqualsTheRecurrence) {
  for (const int64_t T : {1, 64, 150}) {
    const auto inputs = make_inputs(1, T, 13);
    auto wanted_state = make_state(1, 6);
    auto state = wanted_state.clone();
    const auto wanted = run_by_definition(inputs, wanted_state[0]);
    EXPECT_LE(max_difference(delta_rule_chunked_plain(inputs, {{0, 0, T}}, state), wanted), kExact);
    EXPECT_LE(max_difference(state, wanted_state), kExact);
  }
}

TEST(DeltaRule, InChunksKeepsWhatExtremeDecaysLeave) {
  // Tokens that forget all, in one step or several, between tokens that forget next to nothing.
  const int64_t T = 131;
  auto inputs = make_inputs(1, T, 14);
  for (int64_t t = 0; t < T; ++t)
    inputs.decay[0][t].fill_(t % 17 == 5 ? -1e4 : t % 11 == 3 ? -60 : t % 7 == 0 ? 0 : -1e-3);
  auto wanted_state = make_state(1, 7);
  auto state = wanted_state.clone();
  const auto wanted = run_by_definition(inputs, wanted_state[0]);
  EXPECT_LE(max_difference(delta_rule_chunked(inputs, {{0, 0, T}}, state), wanted), 1e-11);
  EXPECT_LE(max_difference(state, wanted_state), 1e-11);
  // Sums of decays reach -4e4 here: in one float32 they would be wrong by 2e-3.
  auto narrow_state = make_state(1, 7).to(torch::kFloat);
  const auto narrow = as_type(inputs, torch::kFloat);
  EXPECT_LE(
      testing::relative_difference(delta_rule_chunked(narrow, {{0, 0, T}}, narrow_state), wanted),
      64 * std::exp2(-24));
  EXPECT_LE(testing::relative_difference(narrow_state, wanted_state), 64 * std::exp2(-24));
}

TEST(DeltaRule, InChunksIsTheSameBesideOthersAndAlone) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    const auto inputs = as_type(make_inputs(2, 200, 15), dtype);
    const std::vector<Span> spans = {{0, 3, 90}, {0, 90, 200}, {1, 0, 77}};
    const auto out = delta_rule_chunked(inputs, spans);
    for (const Span& span : spans) {
      std::vector<int64_t> tokens;
      for (int64_t t = span.begin; t < span.end; ++t)
        tokens.push_back(t);
      const int64_t count = span.end - span.begin;
      const auto alone = delta_rule_chunked(take(inputs, span.row, tokens), {{0, 0, count}});
      EXPECT_TRUE(alone[0].equal(out[span.row].narrow(0, span.begin, count)));
    }
  }
}

TEST(DeltaRule, InChunksOfUsualWidthsEqualsTheDefinition) {
  const DeltaShape shape{2, 4, 64, 32};
  for (const int64_t T : kLengths) {
    const DeltaInputs wide{
        random_normal({2, T, shape.width()}, 40).to(torch::kBFloat16).to(torch::kDouble),
        -(random_normal({2, T, 4}, 41) * 2).exp(), random_normal({2, T, 4}, 42).sigmoid(), shape};
    const auto narrow = as_type(wide, torch::kBFloat16);
    const std::vector<Span> spans = {{0, 0, T}, {1, 0, (T + 1) / 2}};
    auto wanted_state = random_normal({2, 4, 64, 32}, 43);
    auto state = wanted_state.to(torch::kFloat);
    const auto wanted = delta_rule_chunked_plain(wide, spans, wanted_state);
    const auto out = delta_rule_chunked(narrow, spans, state);
    // The output is rounded to bfloat16. The state is not: products with it keep 16 bits.
    EXPECT_LE(testing::relative_difference(out, wanted), std::exp2(-9)) << T;
    EXPECT_LE(testing::relative_difference(state, wanted_state), std::exp2(-14)) << T;
    EXPECT_EQ(out[1].narrow(0, (T + 1) / 2, T / 2).abs().sum().item<double>(), 0) << T;
    EXPECT_LE(
        testing::relative_difference(
            delta_rule_chunked(narrow, spans), delta_rule_chunked_plain(wide, spans)),
        std::exp2(-9))
        << T;
  }
}

TEST(DeltaRule, RefusesInputsThatDoNotFit) {
  auto inputs = make_inputs(1, 3, 1);
  EXPECT_THROW(delta_rule_chunked(inputs, {{0, 0, 3}}, make_state(2, 1)), ShapeError);
  inputs.beta = inputs.beta.narrow(2, 0, 3);
  EXPECT_THROW(delta_rule_chunked(inputs, {{0, 0, 3}}), ShapeError);
}

TEST(TreeLayout, RefusesParentsOutOfOrder) {
  EXPECT_THROW(make_tree_layout({{0}}), ShapeError);
  EXPECT_THROW(make_tree_layout({{-1, 1}}), ShapeError);
  EXPECT_THROW(make_tree_layout({{-1, -1}}), ShapeError);
  EXPECT_THROW(make_tree_layout({{}}), ShapeError);
}

TEST(TreeLayout, KnowsDepthsAncestorsAndAnOrderOfTheWalk) {
  // F17's tree: 1:A(root) 2:B(root) 3:C(1) 4:C(2) 5:D(3), beside a root alone.
  const auto tree = make_tree_layout({{-1, 0, 0, 1, 2, 3}, {-1}});
  EXPECT_EQ(tree.depths, (std::vector<int64_t>{0, 1, 1, 2, 2, 3, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(
      std::vector<int64_t>(tree.order.begin(), tree.order.begin() + 6),
      (std::vector<int64_t>{0, 1, 3, 5, 2, 4}));
  const std::vector<uint8_t> of_five(tree.ancestors.begin() + 30, tree.ancestors.begin() + 36);
  EXPECT_EQ(of_five, (std::vector<uint8_t>{1, 1, 0, 1, 0, 1}));
}

}  // namespace
}  // namespace draftsmith::ops
