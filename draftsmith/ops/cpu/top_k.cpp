// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/top_k.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Logits between two looks at the candidates; they stay in the first-level cache.
constexpr int64_t kTile = 1024;
/// How far a logit may lie above the reference that exponentials are taken against.
constexpr float kHeadroom = 8;

/// exp(x) for x below 64, to some 2^-22 where it is not small; what is below -87 counts as that.
template <class D>
HWY_INLINE hn::Vec<D> fast_exp(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto y = hn::Mul(hn::Max(x, hn::Set(d, -87.0F)), hn::Set(d, 1.44269504F));
  const auto whole = hn::NearestInt(y);
  const auto f = hn::Sub(y, hn::ConvertTo(d, whole));  // 2^f by its series
  auto power = hn::Set(d, 1.5403530e-4F);
  for (const float term :
       {1.3333558e-3F, 9.6181291e-3F, 5.5504109e-2F, 2.4022651e-1F, 6.9314718e-1F, 1.0F})
    power = hn::MulAdd(power, f, hn::Set(d, term));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, power), hn::ShiftLeft<23>(whole)));
}

/// A logit and its id as one number: the greater number is the better candidate, so that one
/// comparison also settles ties. Of equal logits the smaller id is better.
inline uint64_t pack_candidate(float logit, int32_t id) {
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
/// comparison; the rest is sorted out whenever k have come in again.
class Candidates {
 public:
  explicit Candidates(int64_t k) : k_(static_cast<size_t>(k)) {
    const size_t room = k_ + kTile + HWY_MAX_BYTES / sizeof(float);
    logits_.resize(room);
    ids_.resize(room);
    best_.reserve(k_ + room);
  }

  /// Only greater logits are worth offering: ids ascend, and ties go to the smaller one.
  float threshold() const { return threshold_; }
  bool is_full() const { return is_full_; }

  void offer(float logit, int64_t id) {
    logits_[size_] = logit;
    ids_[size_++] = static_cast<int32_t>(id);
  }
  /// The logits of `mask`, whose ids count up from `first_id`.
  template <class D, class Mask>
  HWY_INLINE void offer(D d, Mask mask, hn::Vec<D> logits, int64_t first_id) {
    const hn::RebindToSigned<D> di;
    const auto ids = hn::Iota(di, static_cast<int32_t>(first_id));
    // Not CompressStore: on AMD's cores a masked compression into memory takes a hundred cycles.
    hn::StoreU(hn::Compress(ids, hn::RebindMask(di, mask)), di, ids_.data() + size_);
    hn::StoreU(hn::Compress(logits, mask), d, logits_.data() + size_);
    size_ += hn::CountTrue(d, mask);
  }

  /// To be called after every tile.
  void sort_out() {
    if (best_.size() + size_ < k_ || (is_full_ && size_ < k_)) return;
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
    for (size_t i = 0; i < size_; ++i)
      best_.push_back(pack_candidate(logits_[i], ids_[i]));
    size_ = 0;
    std::nth_element(
        best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(k_ - 1), best_.end(),
        std::greater<>());
    best_.resize(k_);
  }

  size_t k_;
  std::vector<uint64_t> best_;
  std::vector<float> logits_;  // that have come in since, with their ids
  std::vector<int32_t> ids_;
  size_t size_ = 0;
  float threshold_ = 0;
  bool is_full_ = false;
};

struct TileSums {
  float sum;  // of exp(x - reference)
  float max;
};

/// One look at a tile; `kOffers` what is above the threshold.
template <bool kOffers, class T>
TileSums
scan_tile(const T* x, int64_t first_id, int64_t count, float reference, Candidates& candidates) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t end = count / lanes * lanes;
  const bool takes_all = !candidates.is_full();
  const float threshold = candidates.threshold();
  const auto thresholds = hn::Set(d, threshold);
  const auto forced = hn::Eq(hn::Set(d, takes_all ? 0.0F : 1.0F), hn::Zero(d));
  const auto references = hn::Set(d, reference);
  auto sums = hn::Zero(d);
  auto maxima = hn::Set(d, std::numeric_limits<float>::lowest());
  for (int64_t i = 0; i < end; i += lanes) {
    const auto logits = load_wide(d, x + i);
    maxima = hn::Max(maxima, logits);
    sums = hn::Add(sums, fast_exp(d, hn::Sub(logits, references)));
    if constexpr (kOffers) {
      const auto mask = hn::Or(hn::Gt(logits, thresholds), forced);
      if (!hn::AllFalse(d, mask)) candidates.offer(d, mask, logits, first_id + i);
    }
  }
  TileSums tile{hn::GetLane(hn::SumOfLanes(d, sums)), hn::GetLane(hn::MaxOfLanes(d, maxima))};
  for (int64_t i = end; i < count; ++i) {
    const float logit = load_scalar(x + i);
    tile.max = std::max(tile.max, logit);
    tile.sum += std::exp(logit - reference);
    if (kOffers && (takes_all || logit > threshold)) candidates.offer(logit, first_id + i);
  }
  return tile;
}

template <class T>
void top_k_row(const TopKParams& params, int64_t row) {
  const T* logits = static_cast<const T*>(params.logits) + row * params.vocab_size;
  Candidates candidates(params.k);
  float reference = std::numeric_limits<float>::lowest();
  double sum = 0;  // of exp(logit - reference)
  for (int64_t begin = 0; begin < params.vocab_size; begin += kTile) {
    const int64_t count = std::min(kTile, params.vocab_size - begin);
    const T* x = logits + begin;
    TileSums tile = scan_tile<true>(x, begin, count, reference, candidates);
    if (tile.max > reference + kHeadroom) {  // as in the first tile: look again
      sum *= std::exp(static_cast<double>(reference) - static_cast<double>(tile.max));
      reference = tile.max;
      tile = scan_tile<false>(x, begin, count, reference, candidates);
    }
    sum += static_cast<double>(tile.sum);
    candidates.sort_out();
  }
  const double log_sum = static_cast<double>(reference) + std::log(sum);
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
