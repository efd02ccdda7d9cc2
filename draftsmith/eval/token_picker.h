// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

namespace draftsmith::eval {

/// softmax(logits / temperature) in float64.
std::vector<double> softmax_at(
    const torch::Tensor& logits,  // [V]
    double temperature);

/// The first index whose share of the sum of `weights` reaches `uniform` in (0, 1).
int64_t draw_index(const std::vector<double>& weights, double uniform);

/// The id with the largest logit of each row, the lowest id on ties.
std::vector<int64_t> pick_greedy(const torch::Tensor& logits);  // [R, V]

/// What a draw is for; draws of different kinds are independent.
enum class Draw : uint64_t { kTarget, kDraft, kTest, kResidual };

/// Chooses tokens: the best at temperature 0, else by draws from softmax(logits / temperature).
///
/// The draw for a token depends on the seed, the response and the token's place in it, and on
/// nothing else. Plain decoding and every way of verifying greedy drafts therefore draw alike, and
/// their outputs are equal at any temperature: what is lossless can be compared token for token.
/// In a tree the nodes of one depth share a draw, but only one of them is ever on the path.
class TokenPicker {
 public:
  TokenPicker() = default;  // greedy
  TokenPicker(double temperature, uint64_t seed) : temperature_(temperature), seed_(seed) {}

  bool is_greedy() const { return temperature_ < kGreedyBelow; }
  double temperature() const { return temperature_; }

  /// The token at `place` of the answer of `response`.
  int64_t pick(
      const torch::Tensor& logits,  // [V]
      int64_t response,
      int64_t place) const;

  /// In (0, 1).
  double uniform(Draw kind, int64_t response, int64_t place) const;

 private:
  static constexpr double kGreedyBelow = 1e-5;

  double temperature_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace draftsmith::eval
