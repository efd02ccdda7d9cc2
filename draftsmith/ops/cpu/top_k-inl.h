// SPDX-License-Identifier: Apache-2.0
// The k largest of a row in one pass. Included once per instruction set.

#include <algorithm>
#include <cstdint>
#include <vector>

#if defined(DRAFTSMITH_OPS_CPU_TOP_K_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DRAFTSMITH_OPS_CPU_TOP_K_INL_H_
#undef DRAFTSMITH_OPS_CPU_TOP_K_INL_H_
#else
#define DRAFTSMITH_OPS_CPU_TOP_K_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class C>
struct TopEntry {
  C value;
  int64_t index;
};

/// The k largest of `width` values, largest first, the lower index first on ties. `load(d, i)`
/// gives the vector of values at i, `scalar(i)` one value. A vector is looked at closely only if
/// it beats the k-th best so far, which on logits is seldom. Values are no NaN.
template <class C, class Load, class Scalar>
std::vector<TopEntry<C>> find_top(int64_t width, size_t k, const Load& load, const Scalar& scalar) {
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  std::vector<TopEntry<C>> best;
  best.reserve(k + 1);
  const auto offer = [&](C value, int64_t index) {
    if (best.size() == k && !(value > best.back().value)) return;
    const auto place = std::find_if(
        best.begin(), best.end(), [&](const TopEntry<C>& entry) { return value > entry.value; });
    best.insert(place, {value, index});
    if (best.size() > k) best.pop_back();
  };
  int64_t i = 0;
  for (; i < width && best.size() < k; ++i)
    offer(scalar(i), i);
  for (; i + lanes <= width; i += lanes) {
    const auto values = load(d, i);
    if (hn::AllFalse(d, hn::Gt(values, hn::Set(d, best.back().value)))) continue;
    for (int64_t lane = 0; lane < lanes; ++lane)
      offer(scalar(i + lane), i + lane);
  }
  for (; i < width; ++i)
    offer(scalar(i), i);
  return best;
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
