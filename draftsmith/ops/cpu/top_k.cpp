// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/top_k.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
#include <hwy/contrib/math/math-inl.h>

#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Logits that stay in the first-level cache between the two looks at them.
constexpr int64_t kTile = 1024;

/// A logit and its id as one number: the greater number is the better candidate, so that one
/// comparison also settles ties. Of equal logits the smaller id is better.
inline uint64_t pack_candidate(float logit, int64_t id) {
  uint32_t bits;
  logit += 0.0F;  // -0 equals 0
  hwy::CopyBytes<sizeof(bits)>(&logit, &bits);
  bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(bits) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}
inline int64_t candidate_id(uint64_t candidate) {
  return static_cast<int64_t>(0xFFFFFFFFu - static_cast<uint32_t>(candidate));
}
inline float candidate_logit(uint64_t candidate) {
  auto bits = static_cast<uint32_t>(candidate >> 32);
  bits = (bits & 0x80000000u) != 0 ? bits & 0x7FFFFFFFu : ~bits;
  float logit;
  hwy::CopyBytes<sizeof(logit)>(&bits, &logit);
  return logit;
}

/// The best k of the logits offered so far. What cannot be among them is turned away by one
/// comparison; the rest is sorted out whenever as many have come in again.
class Candidates {
 public:
  explicit Candidates(int64_t k) : k_(static_cast<size_t>(k)) { best_.reserve(2 * k_ + kTile); }

  /// Only greater logits are worth offering: ids ascend, and ties go to the smaller one.
  float threshold() const { return threshold_; }
  bool is_full() const { return is_full_; }

  void offer(float logit, int64_t id) { best_.push_back(pack_candidate(logit, id)); }

  void sort_out() {
    if (best_.size() < 2 * k_ && is_full_) return;
    if (best_.size() < k_) return;
    keep_best();
    threshold_ = candidate_logit(best_.back());
    is_full_ = true;
  }

  /// Best first.
  const std::vector<uint64_t>& finish() {
    keep_best();
    std::sort(best_.begin(), best_.end(), std::greater<>());
    return best_;
  }

 private:
  /// Leaves the best k, the worst of them last.
  void keep_best() {
    std::nth_element(
        best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(k_ - 1), best_.end(),
        std::greater<>());
    best_.resize(k_);
  }

  size_t k_;
  std::vector<uint64_t> best_;
  float threshold_ = 0;
  bool is_full_ = false;
};

template <class T>
float max_of(const T* x, int64_t count, float max) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = count / lanes * lanes;
  auto maxima = hn::Set(d, max);
  for (int64_t i = 0; i < end; i += lanes)
    maxima = hn::Max(maxima, load_wide(d, x + i));
  max = hn::GetLane(hn::MaxOfLanes(d, maxima));
  for (int64_t i = end; i < count; ++i)
    max = std::max(max, load_scalar(x + i));
  return max;
}

/// Sum of exp(x - max); offers what is above the threshold.
template <class T>
float scan_tile(const T* x, int64_t first_id, int64_t count, float max, Candidates& candidates) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = count / lanes * lanes;
  const bool takes_all = !candidates.is_full();
  const float threshold = candidates.threshold();
  const auto is_candidate = [&](float logit) { return takes_all || logit > threshold; };
  const auto thresholds = hn::Set(d, threshold);
  const auto maxima = hn::Set(d, max);
  auto sums = hn::Zero(d);
  for (int64_t i = 0; i < end; i += lanes) {
    const auto logits = load_wide(d, x + i);
    sums = hn::Add(sums, hn::Exp(d, hn::Sub(logits, maxima)));
    if (!takes_all && hn::AllFalse(d, hn::Gt(logits, thresholds))) continue;
    for (int64_t j = i; j < i + lanes; ++j)
      if (is_candidate(load_scalar(x + j))) candidates.offer(load_scalar(x + j), first_id + j);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (int64_t i = end; i < count; ++i) {
    const float logit = load_scalar(x + i);
    sum += std::exp(logit - max);
    if (is_candidate(logit)) candidates.offer(logit, first_id + i);
  }
  return sum;
}

template <class T>
void top_k_row(const TopKParams& params, int64_t row) {
  const T* logits = static_cast<const T*>(params.logits) + row * params.vocab_size;
  Candidates candidates(params.k);
  float max = std::numeric_limits<float>::lowest();
  double sum = 0;  // of exp(logit - max)
  for (int64_t begin = 0; begin < params.vocab_size; begin += kTile) {
    const int64_t count = std::min(kTile, params.vocab_size - begin);
    const float new_max = max_of(logits + begin, count, max);
    sum *= std::exp(static_cast<double>(max) - static_cast<double>(new_max));
    max = new_max;
    sum += static_cast<double>(scan_tile(logits + begin, begin, count, max, candidates));
    candidates.sort_out();
  }
  const double log_sum = static_cast<double>(max) + std::log(sum);
  const auto& best = candidates.finish();
  for (int64_t i = 0; i < params.k; ++i) {
    const uint64_t candidate = best[static_cast<size_t>(i)];
    params.ids[row * params.k + i] = candidate_id(candidate);
    params.log_probs[row * params.k + i] =
        static_cast<float>(static_cast<double>(candidate_logit(candidate)) - log_sum);
  }
}

void run_top_k_row(const TopKParams& params, int64_t row) {
  if (params.storage == Storage::kBF16) return top_k_row<BF16>(params, row);
  return top_k_row<float>(params, row);
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_top_k_row);

void compute_top_k(const TopKParams& params) {
  at::parallel_for(0, params.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      HWY_DYNAMIC_DISPATCH(run_top_k_row)(params, row);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
