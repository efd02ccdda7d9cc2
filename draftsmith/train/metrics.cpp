// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/metrics.h"

#include <numeric>

namespace draftsmith::train {
namespace {

std::vector<int64_t> add(std::vector<int64_t> left, const std::vector<int64_t>& right) {
  if (left.empty()) return right;
  for (size_t i = 0; i < right.size(); ++i)
    left[i] += right[i];
  return left;
}

std::vector<int64_t> sum_slots(const torch::Tensor& flags) {  // [B, N, K] bool
  const auto sums = flags.sum(at::IntArrayRef({0, 1})).contiguous();
  return {sums.data_ptr<int64_t>(), sums.data_ptr<int64_t>() + sums.numel()};
}

}  // namespace

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  data += other.data;
  target += other.target;
  forward += other.forward;
  head += other.head;
  backward += other.backward;
  exchange += other.exchange;
  optimizer += other.optimizer;
  return *this;
}

MetricSums& MetricSums::operator+=(const MetricSums& other) {
  loss_sum += other.loss_sum;
  ce_sum += other.ce_sum;
  kl_sum += other.kl_sum;
  cap_sum += other.cap_sum;
  weight_sum += other.weight_sum;
  blocks += other.blocks;
  all_blocks += other.all_blocks;
  accepted_sum += other.accepted_sum;
  correct = add(std::move(correct), other.correct);
  count = add(std::move(count), other.count);
  tokens += other.tokens;
  expected += other.expected;
  times += other.times;
  return *this;
}

double MetricSums::accuracy() const {
  const auto right = std::accumulate(correct.begin(), correct.end(), int64_t{0});
  const auto all = std::accumulate(count.begin(), count.end(), int64_t{0});
  return ratio(static_cast<double>(right), static_cast<double>(all));
}

std::vector<double> MetricSums::accuracy_by_slot() const {
  std::vector<double> result;
  for (size_t k = 1; k < count.size(); ++k)
    result.push_back(ratio(static_cast<double>(correct[k]), static_cast<double>(count[k])));
  return result;
}

MetricSums
sum_metrics(const ops::LossTerms& terms, const data::DraftBlocks& blocks, int64_t tokens) {
  const at::NoGradGuard no_grad;
  MetricSums sums;
  const auto& weights = terms.weights;
  sums.loss_sum = terms.loss_sum.item<double>();
  sums.ce_sum = (weights * terms.ce).sum().item<double>();
  sums.kl_sum = (weights * terms.kl).sum().item<double>();
  sums.cap_sum = (weights * terms.cap).sum().item<double>();
  sums.weight_sum = terms.weight_sum.item<double>();
  sums.tokens = tokens;

  const auto is_supervised = blocks.weights > 0;  // [B, N, K]
  const auto is_correct = terms.predicted.cpu()
                              .view(blocks.labels.sizes())
                              .eq(blocks.labels)
                              .logical_and(is_supervised);
  sums.correct = sum_slots(is_correct);
  sums.count = sum_slots(is_supervised);
  // Unsupervised slots neither break the prefix nor count.
  const auto prefix =
      is_correct.logical_or(is_supervised.logical_not()).to(torch::kLong).cumprod(-1);
  sums.accepted_sum = prefix.masked_fill(is_supervised.logical_not(), 0).sum().item<int64_t>();
  sums.blocks = is_supervised.any(-1).sum().item<int64_t>();
  sums.all_blocks = blocks.weights.size(0) * blocks.weights.size(1);
  return sums;
}

}  // namespace draftsmith::train
