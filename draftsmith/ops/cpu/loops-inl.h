// SPDX-License-Identifier: Apache-2.0
// Loops over vectors and functions of vectors that several kernels share. Included once per
// instruction set.

#if defined(DRAFTSMITH_OPS_CPU_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DRAFTSMITH_OPS_CPU_LOOPS_INL_H_
#undef DRAFTSMITH_OPS_CPU_LOOPS_INL_H_
#else
#define DRAFTSMITH_OPS_CPU_LOOPS_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Calls `step(d, i)` for vectors and, with a one-lane vector, for what is left over.
template <class C, class Step>
HWY_INLINE void for_each_vector(int64_t begin, int64_t end, const Step& step) {
  const hn::ScalableTag<C> d;
  const hn::CappedTag<C, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes)
    step(d, i);
  for (; i < end; ++i)
    step(one, i);
}

/// 1 / (1 + exp(-x)); 0 below a bound beyond which Exp is undefined and the value denormal.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid_of(D d, hn::Vec<D> x) {
  using C = hn::TFromD<D>;
  const auto bound = hn::Set(d, static_cast<C>(sizeof(C) == sizeof(float) ? -87 : -700));
  const auto one = hn::Set(d, C{1});
  const auto value = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(hn::Max(x, bound)))));
  return hn::IfThenElseZero(hn::Gt(x, bound), value);
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
