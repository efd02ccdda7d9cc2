// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <torch/csrc/autograd/autograd.h>

#include "draftsmith/base/error.h"

#include "tests/support/golden.h"

namespace draftsmith::ops {
namespace {

torch::Tensor make(at::IntArrayRef sizes, int64_t step, torch::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : sizes)
    count *= size;
  return (torch::arange(count, torch::kDouble) * static_cast<double>(step))
      .sin()
      .view(sizes)
      .to(dtype);
}

TEST(Linear, EqualsTheFloat64ProductForFewAndManyRows) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 65, 66}) {
    for (const int64_t in : {5, 64, 579}) {
      const auto x = make({rows, in}, 3, torch::kDouble);
      const auto weight = make({13, in}, 7, torch::kDouble);
      const auto exact = torch::mm(x, weight.t());
      EXPECT_LE(
          testing::max_difference(ops::linear(x, weight, torch::Tensor()), exact),
          1e-15 * static_cast<double>(in));
      const auto narrow =
          ops::linear(x.to(torch::kFloat), weight.to(torch::kFloat), torch::Tensor());
      // Every factor and every addition is off by half a step of float32 at most.
      const double bound = static_cast<double>(in + 2) * std::exp2(-24) * static_cast<double>(in);
      EXPECT_LE(testing::max_difference(narrow, exact), bound);
    }
  }
}

TEST(Linear, GivesARowTheSameBitsWhateverStandsBesideIt) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto x = make({most_few_rows(dtype), 579}, 3, dtype);
    const auto weight = make({137, 579}, 7, dtype);
    const auto all = ops::linear(x, weight, torch::Tensor());
    for (int64_t r = 0; r < x.size(0); ++r)
      EXPECT_TRUE(
          ops::linear(x.narrow(0, r, 1), weight, torch::Tensor()).equal(all.narrow(0, r, 1)))
          << r;
    for (const int64_t rows : {2, 3, 4, 5, 7, 11})
      EXPECT_TRUE(
          ops::linear(x.narrow(0, 2, rows), weight, torch::Tensor()).equal(all.narrow(0, 2, rows)))
          << rows;
  }
}

TEST(Linear, GivesAnyNumberOfRowsTheSameBitsWhereThatIsAskedFor) {
  const auto x = make({300, 579}, 3, torch::kFloat);
  const auto weight = make({137, 579}, 7, torch::kFloat);
  const auto alone = [&](int64_t r) {
    return ops::linear(x.narrow(0, r, 1), weight, torch::Tensor());
  };
  const auto library = ops::linear(x, weight, torch::Tensor());
  {
    const SameBitsForAnyRows same_bits;
    { const SameBitsForAnyRows inner; }
    const auto all = ops::linear(x, weight, torch::Tensor());
    for (int64_t r = 0; r < x.size(0); ++r)
      EXPECT_TRUE(alone(r).equal(all.narrow(0, r, 1))) << r;
  }
  EXPECT_TRUE(ops::linear(x, weight, torch::Tensor()).equal(library));
}

TEST(Linear, GivesSingleTokensOfMoreSequencesTheBitsOfOneAlone) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const int64_t most = most_single_tokens(dtype);
    EXPECT_GE(most, most_few_rows(dtype));
    const auto x = make({most, 1, 579}, 3, dtype);
    const auto weight = make({137, 579}, 7, dtype);
    const auto all = ops::linear(x, weight, torch::Tensor());
    for (int64_t b = 0; b < most; ++b)
      EXPECT_TRUE(
          ops::linear(x.narrow(0, b, 1), weight, torch::Tensor()).equal(all.narrow(0, b, 1)))
          << b;
  }
  // As many tokens of one sequence are the library's.
  const auto x = make({1, most_few_rows(torch::kFloat) + 1, 579}, 3, torch::kFloat);
  const auto weight = make({137, 579}, 7, torch::kFloat);
  EXPECT_TRUE(ops::linear(x, weight, torch::Tensor()).equal(at::linear(x, weight)));
}

TEST(Linear, RoundsBfloat16OnceAfterTheSum) {
  const auto x = make({2, 300}, 3, torch::kBFloat16);
  const auto weight = make({9, 300}, 7, torch::kBFloat16);
  const auto exact = torch::mm(x.to(torch::kDouble), weight.to(torch::kDouble).t());
  const auto error = (ops::linear(x, weight, torch::Tensor()).to(torch::kDouble) - exact).abs();
  const double sums = 302 * std::exp2(-24) * 300;  // of the float32 additions
  EXPECT_TRUE(((error <= exact.abs() * std::exp2(-8) + sums).all().item<bool>()));
}

TEST(Linear, KeepsLeadingDimensionsAndTakesABias) {
  const auto x = make({2, 3, 8}, 3, torch::kFloat);
  const auto weight = make({5, 8}, 7, torch::kFloat);
  const auto bias = make({5}, 11, torch::kFloat);
  EXPECT_EQ(ops::linear(x, weight, torch::Tensor()).sizes(), at::IntArrayRef({2, 3, 5}));
  EXPECT_TRUE(ops::linear(x, weight, bias).equal(at::linear(x, weight, bias)));
}

TEST(Linear, HasGradientsForFewRows) {
  const auto x = make({2, 8}, 3, torch::kDouble).set_requires_grad(true);
  const auto weight = make({5, 8}, 7, torch::kDouble);
  EXPECT_TRUE(ops::linear(x, weight, torch::Tensor()).requires_grad());
}

TEST(Linear, HasTheGradientsOfItsSumsInBfloat16) {
  const auto x = make({2, 30, 24}, 3, torch::kBFloat16).set_requires_grad(true);
  const auto weight = make({11, 24}, 7, torch::kBFloat16).set_requires_grad(true);
  const auto bias = make({11}, 5, torch::kBFloat16).set_requires_grad(true);
  const auto upstream = make({2, 30, 11}, 13, torch::kBFloat16);
  const auto exact = [&](bool has_bias) {
    std::vector<torch::Tensor> inputs = {x, weight};
    if (has_bias) inputs.push_back(bias);
    std::vector<torch::Tensor> wide;
    for (const auto& input : inputs)
      wide.push_back(input.detach().to(torch::kDouble).set_requires_grad(true));
    const auto out = at::linear(wide[0], wide[1], has_bias ? wide[2] : torch::Tensor());
    const auto expected = torch::autograd::grad({out}, wide, {upstream.to(torch::kDouble)});
    const auto narrow = ops::linear(x, weight, has_bias ? bias : torch::Tensor());
    EXPECT_LE(testing::max_difference(narrow, out.detach()), std::exp2(-8) * 24);
    const auto found = torch::autograd::grad({narrow}, inputs, {upstream});
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(found[i].sizes(), inputs[i].sizes());
      // Of at most 60 terms of at most 1, rounded once.
      EXPECT_LE(testing::max_difference(found[i], expected[i]), std::exp2(-8) * 60) << i;
    }
  };
  exact(true);
  exact(false);
}

TEST(Linear, RefusesAWeightOfAnotherWidth) {
  EXPECT_THROW(ops::linear(torch::ones({2, 8}), torch::ones({5, 7}), torch::Tensor()), ShapeError);
}

}  // namespace
}  // namespace draftsmith::ops
