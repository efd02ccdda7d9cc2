// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/gradient_buckets.h"

#include <algorithm>
#include <cmath>

#include "draftsmith/base/error.h"

namespace draftsmith::train {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

BucketPlan plan_buckets(
    const std::vector<int64_t>& counts, int64_t ranks, int64_t bucket_elements) {
  BucketPlan plan;
  plan.ranks = ranks;
  plan.places.resize(counts.size());
  int64_t size = 0;
  for (size_t i = counts.size(); i-- > 0;) {
    plan.places[i] = {plan.sizes.size(), size, counts[i]};
    size += round_up(counts[i], BucketPlan::kAlignment);
    if (size < bucket_elements && i > 0) continue;
    plan.sizes.push_back(round_up(size, BucketPlan::kAlignment * ranks));
    size = 0;
  }
  return plan;
}

std::vector<Slice> BucketPlan::slices_of(int64_t rank) const {
  std::vector<Slice> slices;
  for (size_t i = places.size(); i-- > 0;) {
    const Place& place = places[i];
    const int64_t part = sizes[place.bucket] / ranks;
    const int64_t begin = std::max(place.begin, rank * part);
    const int64_t end = std::min(place.begin + place.count, (rank + 1) * part);
    if (begin < end) slices.push_back({i, begin - place.begin, end - begin});
  }
  return slices;
}

GradientBuckets::GradientBuckets(
    const std::vector<torch::Tensor>& parameters,
    pipeline::Ranks ranks,
    bool scatters,
    int64_t bucket_elements)
    : ranks_(std::move(ranks)), scatters_(scatters) {
  const auto options_of = [](const torch::Tensor& parameter) {
    return parameter.options().dtype(torch::kFloat).requires_grad(false);
  };
  if (ranks_.size() == 1) {
    for (const auto& parameter : parameters)
      sums_.push_back(torch::zeros(parameter.sizes(), options_of(parameter)));
    return;
  }
  std::vector<int64_t> counts;
  for (const auto& parameter : parameters)
    counts.push_back(parameter.numel());
  plan_ = plan_buckets(counts, ranks_.size(), bucket_elements);
  for (const int64_t size : plan_.sizes)
    buckets_.push_back(torch::zeros({size}, options_of(parameters.front())));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& place = plan_.places[i];
    sums_.push_back(buckets_[place.bucket]
                        .narrow(0, place.begin, place.count)
                        .view(parameters[i].sizes()));
  }
}

void GradientBuckets::add(size_t parameter, const torch::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (gradient.defined()) sums_[parameter].add_(gradient);
  if (!is_last_) return;
  --missing_[plan_.places[parameter].bucket];
  send_full_ones();
}

void GradientBuckets::begin_last_micro_step() {
  if (ranks_.size() == 1) return;
  is_last_ = true;
  missing_.assign(buckets_.size(), 0);
  for (const auto& place : plan_.places)
    ++missing_[place.bucket];
}

void GradientBuckets::send_full_ones() {
  for (; next_ < buckets_.size() && missing_[next_] <= 0; ++next_)
    pending_.push_back(
        scatters_ ? ranks_.start_reduce_scatter(buckets_[next_])
                  : ranks_.start_all_reduce(buckets_[next_]));
}

void GradientBuckets::reduce() {
  if (ranks_.size() == 1) return;
  missing_.assign(buckets_.size(), 0);
  send_full_ones();
  for (auto& pending : pending_)
    pending.wait();
  pending_.clear();
  next_ = 0;
  is_last_ = false;
}

double GradientBuckets::norm() const {
  double square_sum = 0;
  const auto add = [&](const torch::Tensor& tensor) {
    const double norm = tensor.norm().item<double>();
    square_sum += norm * norm;
  };
  if (ranks_.size() == 1) {
    for (const auto& sum : sums_)
      add(sum);
    return std::sqrt(square_sum);
  }
  // Each rank looks at its own parts, as with a sharded state it knows no others.
  for (const auto& bucket : buckets_) {
    const int64_t part = bucket.numel() / ranks_.size();
    add(bucket.narrow(0, ranks_.rank() * part, part));
  }
  double all = 0;
  for (const double of_rank : ranks_.gather(square_sum))
    all += of_rank;
  return std::sqrt(all);
}

void GradientBuckets::clear() {
  if (ranks_.size() == 1) {
    for (auto& sum : sums_)
      sum.zero_();
  }
  for (auto& bucket : buckets_)
    bucket.zero_();
}

}  // namespace draftsmith::train
