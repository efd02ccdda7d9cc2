// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "draftsmith/pipeline/ranks.h"

namespace draftsmith::train {

/// A part of a parameter, whose elements are counted in one row.
struct Slice {
  size_t parameter = 0;
  int64_t begin = 0;
  int64_t count = 0;

  bool operator==(const Slice&) const = default;
};

/// Which gradients travel together. Backward makes the last parameters' gradients first, so the
/// buckets are filled from the last parameter on. Parameters and the parts of ranks begin at
/// multiples of kAlignment elements: vectors of the update's kernel then hold the same elements
/// whether a parameter is updated whole or in slices, and so its bits are the same.
struct BucketPlan {
  static constexpr int64_t kAlignment = 16;  // float32 elements of a cache line

  struct Place {
    size_t bucket = 0;
    int64_t begin = 0;
    int64_t count = 0;
  };
  std::vector<Place> places;   // of each parameter
  std::vector<int64_t> sizes;  // elements of each bucket
  int64_t ranks = 1;

  /// What lies in the rank-th part of every bucket, bucket by bucket.
  std::vector<Slice> slices_of(int64_t rank) const;
};

/// Buckets are closed as soon as they hold `bucket_elements`.
BucketPlan plan_buckets(
    const std::vector<int64_t>& counts,  // elements of each parameter
    int64_t ranks,
    int64_t bucket_elements);

/// Gradients of a step, summed in float32 over micro-steps and ranks.
class GradientBuckets {
 public:
  /// 32 MiB: large enough that a transfer's start costs little, small enough that the first one
  /// starts early in backward.
  static constexpr int64_t kBucketElements = int64_t{8} << 20;

  /// With `scatters` a rank learns the sums of its own parts only.
  GradientBuckets(
      const std::vector<torch::Tensor>& parameters,
      pipeline::Ranks ranks,
      bool scatters,
      int64_t bucket_elements = kBucketElements);

  /// Adds the gradient of a micro-step; an undefined one is 0.
  void add(size_t parameter, const torch::Tensor& gradient);

  /// From now on a bucket is summed over ranks, while backward goes on, once each of its gradients
  /// was added. Buckets leave in the same order on every rank.
  void begin_last_micro_step();

  /// Sends what has not left, and waits until everything is summed.
  void reduce();

  /// The L2 norm of the sums, the same bits on every rank, sharded or not.
  double norm() const;

  void clear();

  /// [parameter's shape] float32; a view into a bucket if there are several ranks.
  const std::vector<torch::Tensor>& sums() const { return sums_; }
  const BucketPlan& plan() const { return plan_; }
  /// How many buckets have left in this step.
  size_t num_sent() const { return pending_.size(); }
  const std::vector<torch::Tensor>& buckets() const { return buckets_; }  // empty for one rank

 private:
  void send_full_ones();

  pipeline::Ranks ranks_;
  bool scatters_;
  BucketPlan plan_;
  std::vector<torch::Tensor> buckets_;
  std::vector<torch::Tensor> sums_;
  std::vector<int64_t> missing_;  // gradients that each bucket waits for, in a last micro-step
  bool is_last_ = false;
  size_t next_ = 0;  // bucket to leave
  std::vector<pipeline::Ranks::Pending> pending_;
};

}  // namespace draftsmith::train
