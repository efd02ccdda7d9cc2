// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <ATen/Parallel.h>

#include "draftsmith/ops/cpu/tasks.h"
#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/short_conv.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/loops-inl.h"
#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// All channels of one token; token = b T + t.
template <class T>
void convolve_token(const ShortConvParams& params, int64_t token) {
  using C = typename Stored<T>::Compute;
  constexpr int64_t kMaxTaps = 16;
  const T* inputs[kMaxTaps];
  const int64_t b = token / params.T;
  for (int64_t j = 0; j < params.taps; ++j) {
    const int64_t from = params.sources[token * params.taps + j];
    if (from >= 0) {
      inputs[j] = static_cast<const T*>(params.x) + (b * params.T + from) * params.C;
    } else if (from == std::numeric_limits<int64_t>::min() || params.window == nullptr) {
      inputs[j] = nullptr;
    } else {
      inputs[j] = static_cast<const T*>(params.window) +
                  (b * (params.taps - 1) + params.taps - 1 + from) * params.C;
    }
  }
  const T* weight = static_cast<const T*>(params.weight);
  T* out = static_cast<T*>(params.out) + token * params.C;
  for_each_vector<C>(0, params.C, [&](auto d, int64_t c) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < params.taps; ++j)
      if (inputs[j] != nullptr)
        sum = hn::MulAdd(load_wide(d, inputs[j] + c), load_wide(d, weight + j * params.C + c), sum);
    sum = round_to<T>(d, sum);
    store_narrow(d, hn::Mul(sum, sigmoid_of(d, sum)), out + c);
  });
}

void run_convolve_token(const ShortConvParams& params, int64_t token) {
  switch (params.storage) {
    case Storage::kBF16:
      return convolve_token<BF16>(params, token);
    case Storage::kF32:
      return convolve_token<float>(params, token);
    case Storage::kF64:
      return convolve_token<double>(params, token);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_convolve_token);

void compute_short_conv(const ShortConvParams& params) {
  at::parallel_for(
      0, params.B * params.T, rows_per_task(params.C), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token)
          HWY_DYNAMIC_DISPATCH(run_convolve_token)(params, token);
      });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
