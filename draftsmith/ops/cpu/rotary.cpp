// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>

#include "draftsmith/ops/cpu/tasks.h"
#include "draftsmith/ops/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "draftsmith/ops/cpu/rotary.cpp"
// clang-format off: this header comes first and compiles the file once per instruction set.
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "draftsmith/ops/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// All heads of position s of row b.
template <class T>
void rotate_position(const RotaryParams& params, int64_t b, int64_t s) {
  using C = typename Stored<T>::Compute;
  const hn::ScalableTag<C> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t half = params.rotated / 2;
  const int64_t end = half / lanes * lanes;
  const int64_t angle_row = (params.has_batch_angles ? b : 0) * params.S + s;
  const T* cos = static_cast<const T*>(params.cos) + angle_row * half;
  const T* sin = static_cast<const T*>(params.sin) + angle_row * half;
  const C sign = params.is_inverse ? C{-1} : C{1};
  const auto signs = hn::Set(d, sign);
  for (int64_t h = 0; h < params.H; ++h) {
    const int64_t offset = ((b * params.S + s) * params.H + h) * params.E;
    const T* low = static_cast<const T*>(params.x) + offset;
    T* out = static_cast<T*>(params.out) + offset;
    for (int64_t j = 0; j < end; j += lanes) {
      const auto c = load_wide(d, cos + j);
      const auto sn = hn::Mul(signs, load_wide(d, sin + j));
      const auto x = load_wide(d, low + j);
      const auto y = load_wide(d, low + half + j);
      // Products are rounded before they are added, as the models do.
      const auto product = [&](auto a, auto b) HWY_ATTR { return round_to<T>(d, hn::Mul(a, b)); };
      store_narrow(d, hn::Sub(product(x, c), product(y, sn)), out + j);
      store_narrow(d, hn::Add(product(x, sn), product(y, c)), out + half + j);
    }
    for (int64_t j = end; j < half; ++j) {
      const C c = load_scalar(cos + j);
      const C sn = sign * load_scalar(sin + j);
      const C x = load_scalar(low + j);
      const C y = load_scalar(low + half + j);
      store_scalar<T>(x * c - y * sn, out + j);
      store_scalar<T>(x * sn + y * c, out + half + j);
    }
    std::copy(low + params.rotated, low + params.E, out + params.rotated);
  }
}

void run_rotate_position(const RotaryParams& params, int64_t b, int64_t s) {
  switch (params.storage) {
    case Storage::kBF16:
      return rotate_position<BF16>(params, b, s);
    case Storage::kF32:
      return rotate_position<float>(params, b, s);
    case Storage::kF64:
      return rotate_position<double>(params, b, s);
  }
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace draftsmith::ops {

HWY_EXPORT(run_rotate_position);

void compute_rotary(const RotaryParams& params) {
  at::parallel_for(
      0, params.B * params.S, rows_per_task(params.H * params.E), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          HWY_DYNAMIC_DISPATCH(run_rotate_position)(params, i / params.S, i % params.S);
      });
}

}  // namespace draftsmith::ops
#endif  // HWY_ONCE
