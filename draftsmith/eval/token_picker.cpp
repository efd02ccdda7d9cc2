// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/token_picker.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "draftsmith/base/error.h"
#include "draftsmith/base/random.h"

namespace draftsmith::eval {

std::vector<double> softmax_at(const torch::Tensor& logits, double temperature) {
  const auto row = logits.to(torch::kFloat).contiguous();
  const float* values = row.const_data_ptr<float>();
  std::vector<double> weights(values, values + row.numel());
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) {
    weight = std::exp((weight - max) / temperature);
    sum += weight;
  }
  for (double& weight : weights)
    weight /= sum;
  return weights;
}

int64_t draw_index(const std::vector<double>& weights, double uniform) {
  DS_CHECK(!weights.empty());
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  int64_t last = 0;  // with a weight: where rounding may lead past the end
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = static_cast<int64_t>(i);
    left -= weights[i];
    if (left <= 0) return last;
  }
  return last;
}

std::vector<int64_t> pick_greedy(const torch::Tensor& logits) {
  const auto best = logits.argmax(-1).contiguous();
  return {best.data_ptr<int64_t>(), best.data_ptr<int64_t>() + best.numel()};
}

int64_t TokenPicker::pick(const torch::Tensor& logits, int64_t response, int64_t place) const {
  if (is_greedy()) return logits.argmax(-1).item<int64_t>();
  return draw_index(softmax_at(logits, temperature_), uniform(Draw::kTarget, response, place));
}

double TokenPicker::uniform(Draw kind, int64_t response, int64_t place) const {
  const uint64_t key = hash_key(
      {seed_, static_cast<uint64_t>(kind), static_cast<uint64_t>(response),
       static_cast<uint64_t>(place)});
  return (static_cast<double>(key >> 11) + 0.5) * 0x1p-53;
}

}  // namespace draftsmith::eval
