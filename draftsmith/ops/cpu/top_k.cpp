// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
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

/// How far ahead of the arithmetic logits are fetched: the processor's own prefetching stops at the
/// end of every page.
constexpr int64_t kBytesAhead = 2048;

/// exp(x) for x below 64, to some 2^-22 where it is not small; what is below -87 counts as that.
template <class D>
HWY_INLINE hn::Vec<D> fast_exp(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto bounded = hn::Max(x, hn::Set(d, -87.0F));
  const auto log2_e = hn::Set(d, 1.44269504F);
  // Added to this number, a float is rounded to an integer, which is then in its last bits.
  const auto rounder = hn::Set(d, 12582912.0F);
  const auto rounded = hn::MulAdd(bounded, log2_e, rounder);
  const auto f = hn::MulSub(bounded, log2_e, hn::Sub(rounded, rounder));
  // 2^f by the polynomial of least relative error in -0.5 .. 0.5, which is 7.5e-8.
  auto power = hn::Set(d, 1.3276471e-3F);
  for (const float term : {9.6755410e-3F, 5.5507131e-2F, 2.4022120e-1F, 6.9314694e-1F, 1.0000001F})
    power = hn::MulAdd(power, f, hn::Set(d, term));
  return hn::BitCast(
      d, hn::Add(hn::BitCast(di, power), hn::ShiftLeft<23>(hn::BitCast(di, rounded))));
}

/// Floats as integers of the same order, and back.
inline int64_t order_of(float value) {
  int32_t bits;
  hwy::CopyBytes<sizeof(bits)>(&value, &bits);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}
inline float float_at(int64_t order) {
  const auto place = static_cast<int32_t>(order);
  const int32_t bits = place < 0 ? place ^ 0x7FFFFFFF : place;
  float value;
  hwy::CopyBytes<sizeof(value)>(&bits, &value);
  return value;
}

/// The best k of the logits offered so far. What cannot be among them is turned away by one
/// comparison; the rest is sorted out whenever k more have come in.
class Candidates {
 public:
  explicit Candidates(int64_t k) : k_(static_cast<size_t>(k)) {
    const size_t room = 2 * k_ + kTile + HWY_MAX_BYTES / sizeof(float);
    logits_.resize(room);
    ids_.resize(room);
  }

  /// The lowest logit worth offering: all at first, later what beats the worst of the best. (Ids
  /// ascend, and ties go to the smaller one.)
  float lowest_wanted() const { return lowest_wanted_; }

  void offer(float logit, int64_t id) {
    logits_[size_] = logit;
    ids_[size_++] = static_cast<int32_t>(id);
  }
  /// The logits of `mask`.
  template <class D, class Mask>
  HWY_INLINE void offer(D d, Mask mask, hn::Vec<D> logits, hn::Vec<hn::RebindToSigned<D>> ids) {
    const hn::RebindToSigned<D> di;
    // Not CompressStore: on AMD's cores a masked compression into memory takes a hundred cycles.
    hn::StoreU(hn::Compress(ids, hn::RebindMask(di, mask)), di, ids_.data() + size_);
    hn::StoreU(hn::Compress(logits, mask), d, logits_.data() + size_);
    size_ += hn::CountTrue(d, mask);
  }

  /// To be called after every tile.
  void sort_out() {
    if (size_ < k_ || (is_full_ && size_ < 2 * k_)) return;
    keep_best();
    lowest_wanted_ = std::nextafter(bound_, std::numeric_limits<float>::infinity());
    is_full_ = true;
  }

  /// Calls take(rank, logit, id), best first.
  template <class Take>
  void finish(const Take& take) {
    keep_best();
    std::vector<size_t> order(k_);
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t left, size_t right) {
      if (logits_[left] != logits_[right]) return logits_[left] > logits_[right];
      return left < right;  // the smaller id
    });
    for (size_t rank = 0; rank < k_; ++rank)
      take(static_cast<int64_t>(rank), logits_[order[rank]], int64_t{ids_[order[rank]]});
  }

 private:
  /// Leaves the best k, in the order in which they came: that of their ids.
  void keep_best() {
    const float bound = bound_ = find_bound();
    size_t num_ties = k_;  // that have a place
    for (size_t i = 0; i < size_; ++i)
      num_ties -= logits_[i] > bound ? 1 : 0;
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      const float logit = logits_[i];
      const bool is_tie = logit == bound && num_ties > 0;
      num_ties -= is_tie ? 1 : 0;
      logits_[kept] = logit;
      ids_[kept] = ids_[i];
      kept += is_tie || logit > bound ? 1 : 0;
    }
    size_ = kept;
  }

  /// A logit b so that at least k are >= b and fewer, or none but the best k, are > b: found by
  /// bisection, which has no branches to mispredict.
  float find_bound() {
    const hn::ScalableTag<float> d;
    hn::StoreU(
        hn::Set(d, -std::numeric_limits<float>::infinity()), d, logits_.data() + size_);  // as end
    auto maxima = hn::LoadU(d, logits_.data());
    for (size_t i = 0; i < size_; i += hn::Lanes(d))
      maxima = hn::Max(maxima, hn::LoadU(d, logits_.data() + i));
    int64_t low = order_of(bound_);  // the best k of last time are still there
    int64_t high = order_of(hn::GetLane(hn::MaxOfLanes(d, maxima)));
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      const size_t count = count_from(float_at(middle));
      if (count >= k_) low = middle;
      if (count == k_) break;
      if (count < k_) high = middle - 1;
    }
    return float_at(low);
  }

  /// How many candidates are >= `bound`, which is above -inf.
  size_t count_from(float bound) const {
    const hn::ScalableTag<float> d;
    const auto bounds = hn::Set(d, bound);
    size_t count = 0;
    for (size_t i = 0; i < size_; i += hn::Lanes(d))
      count += hn::CountTrue(d, hn::Ge(hn::LoadU(d, logits_.data() + i), bounds));
    return count;
  }

  size_t k_;
  std::vector<float> logits_;
  std::vector<int32_t> ids_;
  size_t size_ = 0;
  float bound_ = -std::numeric_limits<float>::infinity();  // at least k are not below it
  float lowest_wanted_ = bound_;
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
  const float lowest = candidates.lowest_wanted();
  const hn::RebindToSigned<decltype(d)> di;
  const auto first_ids = hn::Iota(di, static_cast<int32_t>(first_id));
  const auto references = hn::Set(d, reference);
  auto sums = hn::Zero(d);
  auto maxima = hn::Set(d, std::numeric_limits<float>::lowest());
  for (int64_t i = 0; i < end; i += lanes) {
    __builtin_prefetch(reinterpret_cast<const char*>(x + i) + kBytesAhead);
    const auto logits = load_wide(d, x + i);
    maxima = hn::Max(maxima, logits);
    sums = hn::Add(sums, fast_exp(d, hn::Sub(logits, references)));
    if constexpr (kOffers) {
      const auto mask = hn::Ge(logits, hn::Set(d, lowest));
      if (!hn::AllFalse(d, mask))
        candidates.offer(d, mask, logits, hn::Add(first_ids, hn::Set(di, static_cast<int32_t>(i))));
    }
  }
  TileSums tile{hn::GetLane(hn::SumOfLanes(d, sums)), hn::GetLane(hn::MaxOfLanes(d, maxima))};
  for (int64_t i = end; i < count; ++i) {
    const float logit = load_scalar(x + i);
    tile.max = std::max(tile.max, logit);
    tile.sum += std::exp(logit - reference);
    if (kOffers && logit >= lowest) candidates.offer(logit, first_id + i);
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
  candidates.finish([&](int64_t rank, float logit, int64_t id) {
    params.ids[row * params.k + rank] = id;
    params.log_probs[row * params.k + rank] =
        static_cast<float>(static_cast<double>(logit) - log_sum);
  });
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
