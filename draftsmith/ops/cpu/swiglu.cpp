// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include "draftsmith/ops/cpu/tasks.h"
#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/swiglu.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
struct SwigluForward {
  const SwigluParams& params;
  template <class D>
  HWY_INLINE void operator()(D d, int64_t i) const {
    const auto gate = load_wide(d, static_cast<const T*>(params.gate) + i);
    const auto up = load_wide(d, static_cast<const T*>(params.up) + i);
    // silu is rounded before `up` multiplies it, as the models do.
    const auto silu = round_to<T>(d, hn::Mul(gate, sigmoid_of(d, gate)));
    store_narrow(d, hn::Mul(silu, up), static_cast<T*>(params.out) + i);
  }
};

template <class T>
struct SwigluBackward {
  const SwigluParams& params;
  template <class D>
  HWY_INLINE void operator()(D d, int64_t i) const {
    const auto gate = load_wide(d, static_cast<const T*>(params.gate) + i);
    const auto up = load_wide(d, static_cast<const T*>(params.up) + i);
    const auto upstream = load_wide(d, static_cast<const T*>(params.out_gradient) + i);
    const auto one = hn::Set(d, hn::TFromD<D>{1});
    const auto sigmoid = sigmoid_of(d, gate);
    // silu'(x) = s (1 + x (1 - s))
    const auto slope = hn::Mul(sigmoid, hn::MulAdd(gate, hn::Sub(one, sigmoid), one));
    store_narrow(
        d, hn::Mul(hn::Mul(upstream, up), slope), static_cast<T*>(params.gate_gradient) + i);
    store_narrow(
        d, hn::Mul(upstream, hn::Mul(gate, sigmoid)), static_cast<T*>(params.up_gradient) + i);
  }
};

template <class T>
void swiglu_range(const SwigluParams& params, int64_t begin, int64_t end) {
  using C = typename Stored<T>::Compute;
  if (params.out_gradient == nullptr) {
    for_each_vector<C>(begin, end, SwigluForward<T>{params});
  } else {
    for_each_vector<C>(begin, end, SwigluBackward<T>{params});
  }
}

void run_swiglu_range(const SwigluParams& params, int64_t begin, int64_t end) {
  switch (params.storage) {
    case Storage::kBF16:
      return swiglu_range<BF16>(params, begin, end);
    case Storage::kF32:
      return swiglu_range<float>(params, begin, end);
    case Storage::kF64:
      return swiglu_range<double>(params, begin, end);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_swiglu_range);

void compute_swiglu(const SwigluParams& params) {
  at::parallel_for(0, params.count, kElementsPerTask, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(run_swiglu_range)(params, begin, end);
  });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
